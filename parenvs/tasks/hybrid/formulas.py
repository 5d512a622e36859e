"""What a hybrid plan costs: seconds of a step and bytes on a device, every formula once.

A plan cuts a chain of layers into S stages, one after the other on blocks of devices. Inside a
stage t ranks share every matrix (tp), c ranks the tokens of a sample, and d replicas the samples
(dp). With v chunks a stage holds v pieces of the chain (interleaving). A step sends M micro-batches
through; arrays have the stage axis first, further axes are plans.

    x        F + B of a chunk, and its sends where they block
    core     max_s [ sum_{a<s} x_{a, chunk 0} + M X_s ],  X_s the sum over the chunks of stage s
    tail     max(0, max_s [ exposed_s - sum_{a<s} B_a ])  what is left of gradients' collectives
    L        core + tail + collective of tied weights + optimizer + step_seconds   (``compose``)

Schedules that split backward passes have another core, the longest path through their passes
(``parenvs.tasks.hybrid.schedules``), and a stage's collectives begin when it has done its last one.

With one chunk ``core`` is that of ``parenvs.tasks.pipeline.formulas``, whose functions are called
here. With v chunks of equal length it is Megatron's ``(M + (S-1)/v) X`` (arXiv 2104.04473,
section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from parenvs.arrays import running_sums
from parenvs.cluster import Cluster, Ring
from parenvs.tasks.hybrid import schedules
from parenvs.tasks.hybrid.layers import Chain, Figure, Layer, LayerSeconds, Split
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, SCHEDULES
from parenvs.tasks.hybrid.schedules import chains, rounds_of
from parenvs.tasks.hybrid.stack import HALF, Machine
from parenvs.tasks.pipeline.formulas import core_of, interleaved, tail_of


class Chunks(NamedTuple):
    """What schedules with split backward passes have on each chunk.

    Attributes:
        layers: (K, S, v, ...) layers of each kind.
        full: (K, S, v, ...) those of them whose forward pass runs again.
        selective: (K, S, v, ...) those of which only the attention runs again.
        passed: (S, v, ...) elements per sample that a chunk passes to the next of its chain.
    """

    layers: np.ndarray
    full: np.ndarray
    selective: np.ndarray
    passed: np.ndarray


class Stages(NamedTuple):
    """Plans as arrays, the stage axis first.

    Attributes:
        layers: (K, S, ...) layers of each kind on each stage.
        first_chunk: (K, S, ...) those of its first chunk.
        full: (K, S, ...) layers whose forward pass runs again in the backward pass.
        selective: (K, S, ...) layers of which only the attention runs again.
        on: (S, ...) elements per sample that a stage passes to the one behind, over its chunks.
        back: (S, ...) those whose gradients it passes to the one in front. At both ends of the
            chain the other neighbor's count twice: a device sends, or waits, on every turn.
        first: (S, ...) share of its first chunk in both.
        links: (S-1, ...) elements per sample from each stage to the next, over its chunks.
        tp: (S, ...) ranks that share every matrix.
        dp: (S, ...) replicas.
        zero: (S, ...) 0 to 3, which states the replicas share.
        device: (S, ...) first device of each stage.
        speed: (S, ...) of its slowest server.
        samples: (...) samples of a micro-batch over all replicas.
        micro_batches: (...) M.
        chunks: (...) v.
        context: (...) ranks that share the tokens of a sample.
        sequence_parallel: (...) bool.
        expert: (...) replicas among which experts are dealt out.
        blocking: (...) bool, whether the devices wait for their sends.
        gradient_bytes: (...) u, bytes of a gradient.
        gradient_overlap: (...) bool, whether gradients are summed during the last backward pass.
        shard: (...) replicas among which ZeRO shares states, neighbors; 0: all of them.
        expert_tp: (...) ranks that share every matrix of an expert; 0: ``tp``.
        offload: (...) bool, whether activations wait in the memory of the server.
        count: (P,) stages of each of P plans, at most S; what stands behind them holds nothing
            (None: all have S).
        schedule: of all plans, one of ``parenvs.tasks.hybrid.plan.SCHEDULES``.
        pieces: what each chunk has; None unless the schedule splits backward passes.
    """

    layers: np.ndarray
    first_chunk: np.ndarray
    full: np.ndarray
    selective: np.ndarray
    on: np.ndarray
    back: np.ndarray
    first: np.ndarray
    links: np.ndarray
    tp: np.ndarray
    dp: np.ndarray
    zero: np.ndarray
    device: np.ndarray
    speed: np.ndarray
    samples: Figure
    micro_batches: Figure
    chunks: Figure = 1
    context: Figure = 1
    sequence_parallel: Figure = False
    expert: Figure = 1
    blocking: Figure = True
    gradient_bytes: Figure = 2.0
    gradient_overlap: Figure = False
    shard: Figure = 0
    expert_tp: Figure = 0
    offload: Figure = False
    count: Figure = None
    schedule: str = ""
    pieces: Chunks | None = None

    def ends(self, side: int) -> list[tuple[Any, int]]:
        """Stage and chunk that hold the embedding (0) or the head (-1), of every chain."""
        if self.pieces is None:
            return [(self.last if side else 0, 0)]
        return [chain[side] for chain in chains(self.schedule, len(self.tp), 0)]

    @property
    def rounds(self) -> Figure:
        """(...) how often a stage does all of its chunks in a step."""
        return rounds_of(self.schedule, self.micro_batches)

    @property
    def last(self) -> Any:
        """Index of the last stage of every plan in (S, ...)."""
        return -1 if self.count is None else (self.count - 1, np.arange(len(self.count)))

    @property
    def several(self) -> Figure:
        """Whether a plan has several stages, a bool or (P,)."""
        return len(self.tp) > 1 if self.count is None else self.count > 1

    def ahead(self, figures: np.ndarray) -> np.ndarray:
        """(S, ...) figures of the stage in front of each; in front of the first is the last."""
        rolled = np.concatenate([figures[-1:], figures[:-1]])
        if self.count is not None:
            rolled[0] = figures[self.last]
        return rolled

    def behind(self, figures: np.ndarray) -> np.ndarray:
        """(S, ...) figures of the stage behind each; behind the last is the first."""
        rolled = np.concatenate([figures[1:], figures[:1]])
        if self.count is not None:
            rolled[self.last] = figures[0]
        return rolled

    @property
    def split(self) -> Split:
        """How each stage splits a layer."""
        samples = self.samples / self.dp
        return Split(
            self.tp, samples, self.context, self.sequence_parallel, self.expert, self.expert_tp
        )

    @property
    def apart(self) -> Figure:
        """(S, ...) replicas among which one copy of all experts is dealt out."""
        return self.expert * self.split.of_expert / self.tp

    @property
    def replicas(self) -> Figure:
        """(S, ...) ranks that hold the same parameters, tokens of a sample shared or not."""
        return self.dp * self.context

    @property
    def sharing(self) -> Figure:
        """(S, ...) replicas among which ZeRO shares states."""
        return np.where(np.equal(self.shard, 0), self.replicas, self.shard)

    @property
    def stride(self) -> Figure:
        """(S, ...) distance of the ranks that hold the same parameters."""
        return self.tp + 0 * self.replicas


class Step(NamedTuple):
    """Seconds of training steps, stage axis first; ``compose`` adds up ``length``.

    Attributes:
        forward: (S, ...) one micro-batch through all chunks of a stage: kernels.
        backward: (S, ...) the same, backward, nothing recomputed.
        recomputed: (S, ...) of forward passes that run again, their collectives included.
        exchange: (S, ...) collectives inside the stage, and copies to the memory of the server and
            back, that nothing hides, of one micro-batch.
        forward_exchange: (S, ...) those of them in the forward pass.
        sends: (S, ...) for which the stage waits, of one micro-batch.
        gathers: (S, ...) in which it waits for parameters that ZeRO 3 gathers, of one micro-batch.
        chunk: (S, ...) x of the first chunk.
        busy: (S, ...) X, all of the above.
        reduction: (S, ...) collectives of the gradients, of a step.
        exposed: (S, ...) what of them the stage's own last backward pass does not hide.
        start: (S, ...) in which ZeRO 3 gathers the first layer, once a step.
        hiding: (S, ...) backward pass of a micro-batch, which hides those of stages behind.
        update: (S, ...) optimizer.
        core: (...)
        tail: (...)
        tied: (...)
        optimizer: (...) the longest update.
        host: what every step takes besides, see ``Stack.step_seconds``.
        length: (...)
    """

    forward: np.ndarray
    backward: np.ndarray
    recomputed: np.ndarray
    exchange: np.ndarray
    forward_exchange: np.ndarray
    sends: np.ndarray
    gathers: np.ndarray
    chunk: np.ndarray
    busy: np.ndarray
    reduction: np.ndarray
    exposed: np.ndarray
    start: np.ndarray
    hiding: np.ndarray
    update: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    tied: np.ndarray
    optimizer: np.ndarray
    host: float
    length: np.ndarray


class Memory(NamedTuple):
    """Bytes on a device of each stage, (S, ...); ``total`` is the sum.

    Attributes:
        gradients: of them.
        optimizer: master weights and moments.
        activations: kept for backward passes of the micro-batches in flight.
        working: what exists only while a layer runs.
        total: all of it.
    """

    weights: np.ndarray
    gradients: np.ndarray
    optimizer: np.ndarray
    activations: np.ndarray
    working: np.ndarray
    total: np.ndarray


Model = HybridModel | Chain
"""Whatever chain formulas are asked about."""
Pair = tuple[np.ndarray, np.ndarray]
"""Two arrays: of parameters, those that all replicas hold and those of experts."""


def of_chunks(layers: np.ndarray, ahead: np.ndarray, behind: np.ndarray) -> dict[str, np.ndarray]:
    """Return the fields of ``Stages`` that follow from what each chunk has.

    Args:
        layers: (K, S, v, ...) layers by kind.
        ahead: (S, v, ...) elements per sample that cross the boundary behind each chunk.
        behind: (S, v, ...) those that cross the boundary in front of it.
    """
    total, first = layers.sum(axis=2), layers[:, :, 0]
    on, back = ahead.sum(axis=1), behind.sum(axis=1)
    links = on[:-1].copy()
    # The ends of the chain pass to one neighbor only, which counts twice (``Stages.back``).
    on[0] += ahead[0, 0]
    back[-1] += behind[-1, -1]
    share = first.sum(axis=0) / np.maximum(total.sum(axis=0), 1)
    return {
        "layers": total, "first_chunk": first, "on": on, "back": back, "links": links,
        "first": share,
    }  # fmt: skip


def step(
    model: Model, cluster: Cluster, machine: Machine, stages: Stages, held: Pair | None = None
) -> Step:
    """Return the seconds of training steps.

    ``held``: their ``parameters`` (default: they are computed).
    """
    held = parameters(model, stages) if held is None else held
    trained = _trained(model, stages, held)
    kinds = [_seconds(kind, machine, stages) for kind in model.kinds]
    of_stage = _summed(kinds, stages.layers)
    whole = stages.first_chunk is stages.layers  # as where no plan has several chunks
    first = of_stage if whole else _summed(kinds, stages.first_chunk)
    again = _again(kinds, machine, stages.full, stages.selective)
    if np.any(stages.offload):
        of_stage, first = _moved(model, machine, stages, (of_stage, first), again)
    # Recomputation and waits of a stage are spread over its layers: a chunk has its share of them.
    share_first = stages.first_chunk.sum(axis=0) / np.maximum(stages.layers.sum(axis=0), 1)
    # Embedding and head, their collectives too, on the first and last stage.
    forward_ends, backward_ends = np.zeros((2, *np.shape(stages.replicas)))
    for layer, stage, _ in _ends(model, stages):
        seconds = _seconds(layer, machine, stages)
        forward_ends[stage] += (seconds.forward + seconds.forward_exchange)[stage]
        backward_ends[stage] += (seconds.backward + seconds.backward_exchange)[stage]
    forward, backward = of_stage.forward + forward_ends, of_stage.backward + backward_ends
    exchange = of_stage.forward_exchange + of_stage.backward_exchange
    sends, first_sends, links = _sends(cluster, machine, stages)
    chunk = first.forward + first.backward + first.forward_exchange + first.backward_exchange
    chunk = chunk + again * share_first + first_sends
    if machine.stack.accumulate_bytes:
        # Each micro-batch's gradients are added to those of the micro-batches before.
        adding = machine.stack.accumulate_bytes * (trained[0] + trained[1]) / machine.memory_bw
        backward, chunk = backward + adding, chunk + adding * share_first
    both_ends, last = forward_ends + backward_ends, stages.last
    # The head is in the last chunk, which is the first only if it is alone.
    alone = (stages.chunks == 1) & np.asarray(stages.several)
    chunk[0] += both_ends[0]
    chunk[last] += np.where(alone, both_ends[last], 0)
    busy = forward + backward + again + exchange + sends
    # Collectives run beside the kernels and collectives of a pass, not beside its waits.
    hiding = backward + again + of_stage.backward_exchange
    gathers, gather_start, filled = _gathers(model, machine, stages, busy - hiding, hiding)
    gathers = gathers + _scatters(trained, machine, stages, hiding)
    busy, chunk = busy + gathers, chunk + gathers * share_first
    # A micro-batch reaches stage s when it has passed the first chunks of all stages in front.
    before = running_sums(chunk) - chunk
    # What hides ZeRO 3's collectives in the last backward pass hides no sums of gradients.
    sums, exposed = reduction(trained, machine, stages, hiding - filled)
    if stages.pieces is None:
        core = core_of(*_resources(before + busy, busy, chunk, links, stages), stages.micro_batches)
        # The last backward pass goes on in the stages in front: it hides the sums of those behind.
        ahead = running_sums(hiding) - hiding
        ahead[1:] += running_sums(links) / 2  # gradients' way to the stages in front
        tail = tail_of(exposed, ahead)
    else:
        table = passes(model, cluster, machine, stages, held)
        core, left = schedules.core(stages.schedule, *table, stages.rounds)
        # Gathers are no passes of the schedule: the worst stage waits for them in each round.
        core = core + stages.rounds * gathers.max(axis=0)
        tail = np.maximum((exposed - left).max(axis=0), 0.0)
    # Nothing runs beside the gather of the first layer.
    core = core + gather_start.max(axis=0)
    tied = _tied(model, machine, stages)
    update = _update(trained, machine, stages)
    optimizer = update.max(axis=0)
    length = compose(machine, core, tail, tied, optimizer)
    parts = (hiding, update, core, tail, tied, optimizer, machine.stack.step_seconds)
    return Step(
        forward, backward, again, exchange, of_stage.forward_exchange, sends, gathers, chunk, busy,
        sums, exposed, gather_start, *parts, length,
    )  # fmt: skip


def compose(
    machine: Machine, core: Figure, tail: Figure = 0.0, tied: Figure = 0.0, optimizer: Figure = 0.0
) -> Figure:
    """Return the seconds of a step, elementwise.

    Every evaluation, simulation, search and bound adds up the parts of a step here alone. It grows
    with each part, so that lower bounds of parts give a lower bound of the step. A negative tail,
    of the gradients' collectives behind the passes, counts as 0.
    """
    return core + np.maximum(tail, 0.0) + tied + optimizer + machine.stack.step_seconds


def passes(
    model: Model, cluster: Cluster, machine: Machine, stages: Stages, held: Pair | None = None
) -> Pair:
    """Return the seconds of every chunk's passes where backward passes are split.

    ``stages`` have ``pieces``; ``held`` are their ``parameters`` (default: they are computed).

    Returns:
        (3, S, v, ...) of forward passes, of backward passes without the gradients of weights, and
        of these; and (S, v, ...) of a message from a chunk to the next of its chain.
    """
    pieces, shape = stages.pieces, np.shape(stages.replicas)
    assert pieces is not None
    kinds = [_seconds(kind, machine, stages) for kind in model.kinds]

    def weight_seconds(layer: Layer) -> np.ndarray:
        # Weight gradients are products alone: a slower server delays all of their seconds.
        return _wide(layer.weight_seconds(machine, stages.split) / stages.speed, shape)

    of_weights = [weight_seconds(kind) for kind in model.kinds]
    table = np.zeros((3, *pieces.passed.shape[:2], *shape[1:]))
    adding: Figure = 0.0
    if machine.stack.accumulate_bytes:
        held = parameters(model, stages) if held is None else held
        adding = sum(_trained(model, stages, held)) / machine.memory_bw
        adding = machine.stack.accumulate_bytes * adding
    total = np.maximum(stages.layers.sum(axis=0), 1)
    for chunk in range(table.shape[2]):
        layers = pieces.layers[:, :, chunk]
        again = _again(kinds, machine, pieces.full[:, :, chunk], pieces.selective[:, :, chunk])
        sums = _summed(kinds, layers)
        weights: Figure = sum(n * part for n, part in zip(layers, of_weights, strict=True))
        table[0, :, chunk] = sums.forward + sums.forward_exchange
        # W passes have products with weights only; collectives and recomputation are in I.
        table[1, :, chunk] = sums.backward + sums.backward_exchange + again - weights
        table[2, :, chunk] = weights + adding * layers.sum(axis=0) / total
    for layer, stage, chunk in _ends(model, stages):
        seconds, part = _seconds(layer, machine, stages), weight_seconds(layer)
        table[0, stage, chunk] += (seconds.forward + seconds.forward_exchange)[stage]
        table[1, stage, chunk] += (seconds.backward + seconds.backward_exchange - part)[stage]
        table[2, stage, chunk] += part[stage]
    transfers = np.zeros(table.shape[1:])
    per_element, hop = _seconds_per_element(cluster, machine, stages)
    for chain in chains(stages.schedule, len(stages.tp), 0):
        for (stage, chunk), (following, _) in pairwise(chain):
            if stage != following:
                # A chain may run against the order of stages: the link is that of the lower stage.
                near = min(stage, following)
                crossing = pieces.passed[stage, chunk] * stages.samples
                transfers[stage, chunk] = crossing * per_element[near] + hop[near]
    return table, transfers


def _ends(model: Model, stages: Stages) -> Iterator[tuple[Layer, Any, int]]:
    """Yield embedding and head, each with the stages and the chunks that hold it."""
    for layer, side in ((model.embedding, 0), (model.head, -1)):
        if layer is not None:
            for stage, chunk in stages.ends(side):
                yield layer, stage, chunk


def memory(model: Model, machine: Machine, stages: Stages, held: Pair | None = None) -> Memory:
    """Return the bytes on a device of every stage (arXiv 2205.05198, section 4).

    ``held`` are their ``parameters`` (default: they are computed).
    """
    held = parameters(model, stages) if held is None else held
    split, shape = stages.split, np.shape(stages.replicas)
    working: Figure = np.zeros(shape)
    for number, kind in enumerate(model.kinds):
        # A layer that is recomputed in full holds all its activations while its backward pass runs.
        at_work = np.where(
            stages.full[number] > 0, kind.saved_bytes(machine, split, RECOMPUTE_MODES[0]), 0.0
        )
        working = np.maximum(working, at_work + kind.working_bytes(machine, split))
    if stages.pieces is None:
        flight = _in_flight(stages)
        saved, largest = _saved(model, machine, stages)
        activations = _wide(saved * flight / stages.chunks, shape)
        if np.any(stages.offload):  # one layer's are at work while another's are on their way
            activations = np.where(
                stages.offload, np.minimum(activations, 2 * largest), activations
            )
        if model.embedding is not None:
            of_embedding = _wide(model.embedding.saved_bytes(machine, split, "none"), shape)
            # The embedding is in the first of the chunks alone.
            activations[0] += of_embedding[0] * flight[0] / stages.chunks
    else:
        activations = _held(model, machine, stages)
    if model.head is not None:
        for last, _ in stages.ends(-1):
            activations[last] += _wide(model.head.saved_bytes(machine, split, "none"), shape)[last]
            running = _wide(model.head.working_bytes(machine, split), shape)[last]
            working[last] = np.maximum(working[last], running)
    parts = (*_states(model, machine, stages, held), activations, working)
    return Memory(*parts, total=sum(parts[1:], parts[0]))


def _saved(model: Model, machine: Machine, stages: Stages) -> tuple[Figure, Figure]:
    """Bytes that the layers of a stage keep of a micro-batch, and the most that one of them does.

    Each is (S, ...), or a number for all.
    """
    # In the order of ``RECOMPUTE_MODES``.
    counts = (stages.layers - stages.full - stages.selective, stages.selective, stages.full)
    saved: Figure = 0.0
    largest: Figure = 0.0
    for number, kind in enumerate(model.kinds):
        sizes = [kind.saved_bytes(machine, stages.split, mode) for mode in RECOMPUTE_MODES]
        parts = [(count[number], size) for count, size in zip(counts, sizes, strict=True)]
        saved = saved + sum(count * size for count, size in parts)
        for count, size in parts:
            largest = np.maximum(largest, np.where(count > 0, size, 0.0))
    return saved, largest


def _moved(
    model: Model,
    machine: Machine,
    stages: Stages,
    passes: tuple[LayerSeconds, LayerSeconds],
    again: np.ndarray,
) -> list[LayerSeconds]:
    """Return the seconds of all chunks, and of the first, with copies of activations.

    What layers keep leaves for the memory of the server beside the forward pass and comes back
    beside the backward pass, which hide a copy as they hide a collective.
    """
    total, exposed = np.maximum(stages.layers.sum(axis=0), 1), machine.stack.exposed
    copy = np.where(stages.offload, _saved(model, machine, stages)[0] / machine.host_bw, 0.0)
    moved = []
    for seconds, layers in zip(passes, (stages.layers, stages.first_chunk), strict=True):
        share = layers.sum(axis=0) / total
        out = exposed(copy * share, seconds.forward)
        back = exposed(copy * share, seconds.backward + again * share)
        ahead, behind = seconds.forward_exchange + out, seconds.backward_exchange + back
        moved.append(seconds._replace(forward_exchange=ahead, backward_exchange=behind))
    return moved


def _held(model: Model, machine: Machine, stages: Stages) -> np.ndarray:
    """(S, ...) bytes of activations where backward passes are split, at the peak of each stage."""
    pieces, split, shape = stages.pieces, stages.split, np.shape(stages.replicas)
    assert pieces is not None
    plain = pieces.layers - pieces.full - pieces.selective
    saved = np.zeros((*pieces.passed.shape[:2], *shape[1:]))
    for number, kind in enumerate(model.kinds):
        parts = (plain, pieces.selective, pieces.full)
        for mode, part in zip(RECOMPUTE_MODES, parts, strict=True):
            saved += part[number] * _wide(kind.saved_bytes(machine, split, mode), shape)[:, None]
    if model.embedding is not None:
        of_embedding = _wide(model.embedding.saved_bytes(machine, split, "none"), shape)
        for stage, chunk in stages.ends(0):
            saved[stage, chunk] += of_embedding[stage]
    rounds = np.broadcast_to(np.round(stages.rounds).astype(np.int64), shape[1:])
    # In steady rounds what is held repeats, so the peak is reached before.
    counts = np.minimum(rounds, schedules.steady(len(saved), int(rounds.max(initial=1))))
    peak = np.zeros((len(saved), *shape[1:]))
    for count in np.unique(counts):
        lines = schedules.held(stages.schedule, len(saved), int(count))
        peak_of_count = np.einsum("skv,sv...->sk...", lines, saved).max(axis=1)
        peak = np.where(counts == count, peak_of_count, peak)
    return peak


def _states(
    model: Model, machine: Machine, stages: Stages, held: Pair
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(S, ...) bytes of weights, of gradients, and of the optimizer.

    A parameter takes the bytes of weight and gradient, and ``Stack.moment_bytes`` of fp32 master
    weight and two moments at half precision, 8 of moments at full. ZeRO 1 shares the last among the
    replicas, or some of them, 2 the gradients, 3 the weights, of which two layers are gathered at a
    time. Weights that are not trained have neither gradient nor moments.
    """
    width, zero, stack = machine.width, stages.zero, machine.stack
    if stack.state_bytes is not None:
        weights = width * (held[0] + held[1])
        # Only the total is known of such a stack: ``gradients`` stands for all but the weights.
        return weights, (stack.state_bytes - 1) * weights, 0.0 * weights
    # Only replicas that hold the same experts can share their states.
    dealt = np.maximum(stages.sharing / stages.apart, 1)
    trained = _trained(model, stages, held)
    sums = [
        np.where(zero >= level, 1 / stages.sharing, 1.0) * dense
        + np.where(zero >= level, 1 / dealt, 1.0) * experts
        for level, (dense, experts) in ((3, held), (2, trained), (1, trained))
    ]
    weights = width * sums[0]
    largest: Figure = 0.0
    if stack.copied_layers or np.any(zero >= 2):
        largest = _largest(model, stages, lambda kind: sum(kind.parameters(stages.split)))
    # One layer runs while the next one is gathered.
    weights = weights + np.where(zero >= 3, 2 * largest * width, 0.0)
    # Full precision has two moments in fp32, and needs no master copy.
    moments = stack.moment_bytes if machine.precision in HALF else 8.0
    gradient_bytes = np.maximum(stages.gradient_bytes, stack.gradient_least)
    # A layer's gradients are whole until they are scattered.
    copies = np.maximum(stack.copied_layers, np.where(zero >= 2, 1.0, 0.0))
    copied = np.where(stages.sharing > 1, copies * largest, 0.0)
    gradients = gradient_bytes * (sums[1] + copied)
    if stack.dummy_gradients:
        shapes = _largest(model, stages, lambda kind: kind.different_weights(stages.split))
        gradients = gradients + width * shapes
    return weights, gradients, moments * sums[2]


def _in_flight(stages: Stages) -> Figure:
    """(S, ...) chunks of micro-batches whose activations each stage holds at once.

    One chunk: ``min(S - s, M)``, or ``min(2 (S - s) - 1, M)`` if stages start early. v chunks:
    ``min(2 (S - s - 1) + (v - 1) S + 1, M v)`` (arXiv 2104.04473, section 2.2); on the first stage
    that is Megatron's factor ``1 + (S-1)/(S v)``.
    """
    chunks, micro_batches, size = stages.chunks, stages.micro_batches, len(stages.tp)
    number = np.arange(size).reshape(-1, *(1,) * np.ndim(micro_batches * chunks))
    count = size if stages.count is None else stages.count
    left = np.maximum(count - number, 0)
    # 1F1B: stage s has S - s micro-batches on their way before the first one comes back.
    is_early = stages.schedule == SCHEDULES[2]
    alone = np.minimum(2 * left - 1 if is_early else left, micro_batches)
    if np.all(chunks == 1):
        return alone
    many = np.minimum(2 * (left - 1) + (chunks - 1) * count + 1, micro_batches * chunks)
    return np.where(chunks == 1, alone, many)


_KERNELS = ("forward", "backward", "attention", "last")
"""Fields of ``LayerSeconds`` in which a device computes; links of a slow server are as fast."""


def _seconds(layer: Layer, machine: Machine, stages: Stages) -> LayerSeconds:
    """Return a layer's seconds as (S, ...) arrays; slower servers compute longer."""
    shape, speed = np.shape(stages.replicas), stages.speed
    wide = LayerSeconds(*(_wide(part, shape) for part in layer.seconds(machine, stages.split)))
    if least := machine.stack.layer_seconds:
        # Devices wait for a host that starts kernels slower than they run.
        passes = np.maximum(wide.forward, least), np.maximum(wide.backward, least)
        wide = wide._replace(forward=passes[0], backward=passes[1])
    if np.all(speed == 1):
        return wide
    return wide._replace(**{name: getattr(wide, name) / speed for name in _KERNELS})


def _wide(figures: Figure, shape: tuple[int, ...]) -> np.ndarray:
    """Return figures as an array of a shape or a wider one; it is not written to."""
    return figures if np.shape(figures) == shape else np.asarray(figures * np.ones(shape))


def _summed(kinds: list[LayerSeconds], counts: np.ndarray) -> LayerSeconds:
    """Return the seconds of (K, S, ...) layers together, without what recomputation asks for."""
    sums = [counts[0] * part for part in kinds[0][:4]]
    for kind, count in zip(kinds[1:], counts[1:], strict=True):
        sums = [before + count * part for before, part in zip(sums, kind[:4], strict=True)]
    return LayerSeconds(*sums)


def _again(
    kinds: list[LayerSeconds], machine: Machine, full: np.ndarray, selective: np.ndarray
) -> np.ndarray:
    """(S, ...) seconds in which a stage's backward pass recomputes."""
    total = np.zeros(full.shape[1:])
    for kind, whole, attention in zip(kinds, full, selective, strict=True):
        repeated = kind.forward + kind.forward_exchange
        if machine.stack.early_stop:
            # Nothing behind the last product is needed to compute gradients.
            repeated = repeated - kind.last
        total = total + whole * repeated + attention * kind.attention
    return total


def _sends(
    cluster: Cluster, machine: Machine, stages: Stages
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds that stages wait for sends: of all chunks, of the first; and (S-1, ...) of links.

    A rank passes the elements of its samples and tokens, its share of them under sequence
    parallelism or with scatter and gather, which needs an all-gather behind. Without ``duplex``
    a stage receives from a neighbor when it has sent to it: twice the time, and none at the ends.
    """
    zeros = np.zeros(stages.layers.shape[1:])
    if len(zeros) == 1:
        return zeros, zeros.copy(), np.zeros((0, *zeros.shape[1:]))
    seconds, hop = _seconds_per_element(cluster, machine, stages)
    samples, blocking = stages.samples, stages.blocking
    passing = stages.on * seconds + stages.back * stages.ahead(seconds)
    if not machine.stack.duplex:
        both = 2 * stages.links * seconds[:-1]
        passing = np.zeros_like(passing)
        passing[:-1] += both
        passing[1:] += both
    # Both directions start together, so the slower one counts.
    hops = np.maximum(hop, stages.ahead(hop)) + machine.stack.send_wait
    blocking, linked = blocking & np.asarray(stages.several), ~np.asarray(blocking)
    if stages.count is not None:
        number = np.arange(len(zeros))[:, None]
        blocking, linked = blocking & (number < stages.count), linked & (number < stages.count - 1)
        linked = linked[:-1]
    waits = np.where(blocking, samples * passing + 2 * stages.chunks * hops, 0.0)
    first = np.where(blocking, samples * stages.first * passing + 2 * hops, 0.0)
    # There and back: activations forward, their gradients backward.
    links = 2 * (stages.links * samples * seconds[:-1] + stages.chunks * hop[:-1])
    return waits, first, np.where(linked, links, 0.0)


def transfer_seconds(
    cluster: Cluster, machine: Machine, stages: Stages, elements: np.ndarray
) -> np.ndarray:
    """(S, ...) seconds in which each stage passes a micro-batch to the next, the last to the first.

    ``elements``: (S, ...) elements per sample that are passed.
    """
    seconds, hop = _seconds_per_element(cluster, machine, stages)
    return elements * stages.samples * seconds + hop


def _seconds_per_element(cluster: Cluster, machine: Machine, stages: Stages) -> Pair:
    """Seconds that a stage's send to the next takes: for each element of a micro-batch, and once.

    Both are (S, ...); the last stage sends to the first if there are several chunks.
    """
    links, replicas, shape = machine.links, stages.replicas, stages.layers.shape[1:]
    server = stages.device // cluster.devices_per_server
    last = (stages.device + stages.tp * replicas - 1) // cluster.devices_per_server
    # Both stages in one server: no device of either is in another.
    single = np.maximum(last, stages.behind(last)) == np.minimum(server, stages.behind(server))
    scattered = stages.sequence_parallel | np.bool_(machine.stack.scatter_gather)
    ranks = _wide(replicas * np.where(scattered, stages.tp, 1), shape)
    # With unequal ranks the side with fewer of them passes the larger shares.
    fewest = np.minimum(ranks, stages.behind(ranks))
    hop = _wide(links.hop(single), shape)
    seconds = (links.send(machine.width, single, fewest) - hop) / fewest
    gathering = scattered & ~np.asarray(stages.sequence_parallel)
    if not np.any(gathering):
        return seconds, hop
    received = stages.behind(stages.stride)
    # Each rank gets the share of its tp rank and gathers the rest over tp.
    whole = machine.width / stages.behind(_wide(replicas, shape))
    ring = links.ring(received, 1)
    # The lap's latency counts once per message, not per element.
    gather = ring.all_gather(whole) - ring.lap
    return seconds + np.where(gathering, gather, 0.0), hop + np.where(gathering, ring.lap, 0.0)


def _resources(
    passed: np.ndarray, busy: np.ndarray, chunk: np.ndarray, links: np.ndarray, stages: Stages
) -> Pair:
    """Seconds up to and of every resource: stages, and links where sends do not block."""
    there: Any = True
    if stages.count is not None:
        # Behind the last stage is no resource: the sums up to there are rounded in another order.
        there = np.arange(len(busy))[:, None] < stages.count
        passed = passed * there
    if len(busy) == 1 or np.all(stages.blocking):
        return passed, busy
    # A link carries the messages of each chunk in turn, so the first is there after one of them.
    of_chunk = links / stages.chunks
    sent = running_sums(of_chunk)
    passed_stages = passed.copy()
    passed_stages[1:] += sent
    passed_links = running_sums(chunk)[:-1] + (sent - of_chunk) + links
    passed_links *= there if stages.count is None else there[1:]
    return interleaved(passed_stages, passed_links), interleaved(busy, links)


def parameters(model: Model, stages: Stages, trained: bool = False) -> Pair:
    """Return the parameters on a device, (S, ...): those all replicas hold, and experts'.

    ``trained``: count those alone that are trained.
    """
    split, shape = stages.split, np.shape(stages.replicas)

    def of(layer: Layer) -> tuple[Figure, Figure]:
        return layer.trained(split) if trained else layer.parameters(split)

    held: list[Any] = [0.0, 0.0]
    for kind, count in zip(model.kinds, stages.layers, strict=True):
        held = [total + count * part for total, part in zip(held, of(kind), strict=True)]
    dense, experts = (_wide(total, shape) for total in held)
    for layer, stage, _ in _ends(model, stages):
        for total, part in zip((dense, experts), of(layer), strict=True):
            if np.any(part):
                total[stage] += _wide(part, shape)[stage]
    # A frozen table is in neither end's count of trained parameters.
    tied = 0.0 if trained and _is_frozen(model.head) else model.tied_parameters
    if stages.pieces is not None:
        for stage, _ in stages.ends(0):
            # Embedding and head in one stage hold the shared table once.
            if stage in dict(stages.ends(-1)):
                dense[stage] -= tied / stages.tp[stage]
    if not np.all(stages.several):
        dense[0] -= np.where(stages.several, 0.0, tied / stages.tp[0])
    return dense, experts


def _is_frozen(layer: Layer | None) -> bool:
    return layer is not None and layer.frozen


def _trained(model: Model, stages: Stages, held: Pair) -> Pair:
    """Return the parameters of ``held`` that have gradients, moments and updates."""
    layers = (*model.kinds, model.embedding, model.head)
    return parameters(model, stages, True) if any(map(_is_frozen, layers)) else held


def _largest(model: Model, stages: Stages, figure: Callable[[Layer], Figure]) -> np.ndarray:
    """(S, ...) largest figure of a stage's layers."""
    largest = np.zeros_like(stages.replicas, dtype=float)
    for kind, count in zip(model.kinds, stages.layers, strict=True):
        largest = np.maximum(largest, np.where(count > 0, figure(kind), 0.0))
    return largest


def _rings(machine: Machine, stages: Stages) -> list[Ring]:
    """Rings of the replicas that share the states of what all hold, and of the same experts.

    The ranks of a ring are ``stride`` apart, as tp ranks lie between them; those with the same
    experts are as many times farther apart as experts are dealt out.
    """
    return [
        machine.links.ring(np.maximum(stages.sharing // apart, 1), stages.stride * apart)
        for apart in (1, stages.apart)
    ]


def _gathers(
    model: Model, machine: Machine, stages: Stages, ahead: np.ndarray, behind: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of ZeRO 3's collectives of a micro-batch, (S, ...) each.

    Weights are gathered in both passes, of ``ahead`` and ``behind`` seconds, gradients of trained
    ones scattered in the backward pass; each pass hides its own.

    Returns:
        What a stage waits for, the collectives of one layer, which nothing can hide, and what of
        the backward pass hides some.
    """
    stack = machine.stack
    forward, backward, none = np.zeros((3, *np.shape(stages.replicas)))
    if not np.any(stages.zero >= 3):
        return none, none, none
    rings = _rings(machine, stages)
    for kind, count in zip(model.kinds, stages.layers, strict=True):
        held, trained = kind.parameters(stages.split), kind.trained(stages.split)
        for ring, own, learned in zip(rings, held, trained, strict=True):
            if not np.any(own):
                continue
            # Seconds of a byte of each weight, without the latency of the way around.
            passing = (ring.all_gather(1.0) - ring.lap) / stack.gather_share
            gather = count * (machine.gathered * own * passing + ring.lap)
            scatter = count * (machine.width * learned * passing + ring.lap)
            forward = forward + gather
            backward = backward + gather + np.where(np.greater(learned, 0), scatter, 0.0)
    late = stack.exposed(backward, behind, stack.gather_hidden)
    waits = stack.exposed(forward, ahead, stack.gather_hidden) + late
    layers = np.maximum(stages.layers.sum(axis=0), 1)
    parts = waits, (forward + backward) / layers, backward - late
    waits, start, filled = (np.where(stages.zero >= 3, part, 0.0) for part in parts)
    return waits, start, filled


def _scatters(trained: Pair, machine: Machine, stages: Stages, backward: np.ndarray) -> np.ndarray:
    """(S, ...) seconds that a micro-batch waits for ZeRO 2's collectives of gradients.

    A rank keeps a share of the gradients, so each micro-batch's are scattered before the next one's
    are made; those of the last are in ``reduction``, so that with one micro-batch a step takes what
    it takes with ZeRO 1.
    """
    level, stack = np.equal(stages.zero, 2), machine.stack
    total = np.zeros(np.shape(stages.replicas))
    if not np.any(level):
        return total
    for ring, own in zip(_rings(machine, stages), trained, strict=True):
        scatter = ring.all_gather(stages.gradient_bytes * own, stack.bucket)
        total = total + np.where(own == 0, 0.0, scatter)
    left = stack.exposed(total, backward, stack.gather_hidden)
    waits = np.where(stages.gradient_overlap, left, total)
    return np.where(level, waits * (1 - 1 / np.maximum(stages.micro_batches, 1)), 0.0)


def reduction(held: Pair, machine: Machine, stages: Stages, backward: np.ndarray) -> Pair:
    """(S, ...) seconds of the gradients' collectives, and what the last backward pass leaves.

    Where some of the replicas share states, gradients are scattered among those, summed with the
    same part of the others, and gathered; with ZeRO 3 the sum alone is left, beside the backward
    pass.
    """
    u, bucket = stages.gradient_bytes, machine.stack.bucket
    dense, experts = held
    sharing = np.asarray(np.where(stages.zero == 0, stages.replicas, stages.sharing))
    some = np.any(sharing != stages.replicas)
    total: np.ndarray = np.zeros_like(dense)
    for own, expert in ((dense, 1), (experts, stages.apart)):
        if not np.any(own):
            continue
        # Ranks with the same experts are as many times farther apart as experts are dealt out.
        every, stride = np.maximum(stages.replicas // expert, 1), stages.stride * expert
        group = np.maximum(sharing // expert, 1)
        ring = machine.links.ring(group, stride)
        scattered = ring.all_gather(u * own, bucket)
        gathered = ring.all_gather(machine.gathered * own, bucket)
        # A ring sums arrays in the time in which it scatters and gathers them.
        seconds = scattered + np.where(stages.zero == 0, scattered, gathered)
        # Nothing is exchanged where there is nothing to sum, nor with ZeRO 3 at the end of a step.
        seconds = np.where(stages.zero >= 3, 0.0, seconds)
        if some:  # the ranks that hold one part, one in each group
            between = machine.links.ring(every // group, stride * group)
            seconds = seconds + 2 * between.all_gather(u * own / group, bucket)
        total = total + np.where(own == 0, 0.0, seconds)
    if stages.schedule == schedules.TWO_WAYS:  # a stage has the weights of its opposite, too
        own = u * (dense + experts) / np.where(stages.zero == 0, 1, stages.sharing)
        total = total + machine.links.all_reduce(own, 2, machine.links.devices_per_server)
    # ZeRO 3 scatters the gradients of each layer as soon as they are there.
    layers = stages.layers.sum(axis=0)
    overlap = stages.gradient_overlap | (stages.zero >= 3)
    return total, exposed_seconds(total, layers, backward, overlap)


def exposed_seconds(total: Figure, layers: Figure, backward: Figure, overlap: Figure) -> Figure:
    """Seconds of gradients' collectives that a stage's last backward pass does not hide.

    Those of one of the stage's layers are never hidden, and without ``overlap`` all are exposed.
    """
    # The gradients of the first layer are made last, so its share can hide beside nothing.
    hidden = np.maximum(total / np.maximum(layers, 1), total - backward)
    return np.where(overlap, hidden, total)


def _tied(model: Model, machine: Machine, stages: Stages) -> np.ndarray:
    """(...) seconds in which first and last stage sum the gradients of weights they share."""
    # Schedules whose chains turn round have embedding and head in one stage.
    alone = stages.pieces is not None and dict(stages.ends(0)).keys() & dict(stages.ends(-1))
    if (
        alone
        or _is_frozen(model.head)
        or not np.any(model.tied_parameters)
        or not np.any(stages.several)
    ):
        return np.zeros(np.shape(stages.tp)[1:])
    # Where tp differs, the end with fewer ranks has the larger parts, and takes longer.
    ranks = np.minimum(stages.tp[0], stages.tp[stages.last])
    size = stages.gradient_bytes * model.tied_parameters / ranks
    seconds = machine.links.all_reduce(size, 2, machine.links.devices_per_server)
    return np.where(stages.several & np.greater(model.tied_parameters, 0), seconds, 0.0)


def _update(held: Pair, machine: Machine, stages: Stages) -> np.ndarray:
    dense, experts = held
    stack = machine.stack
    # The optimizer is bound by memory: seconds are bytes over bandwidth.
    traffic = stack.optimizer_bytes if machine.precision in HALF else stack.optimizer_bytes_full
    dealt = np.maximum(stages.sharing / stages.apart, 1)
    own = np.where(stages.zero >= 1, dense / stages.sharing + experts / dealt, dense + experts)
    return np.asarray(traffic * own / machine.memory_bw)
