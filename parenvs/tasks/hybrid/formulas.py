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

from collections import namedtuple
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from parenvs.cluster import Cluster
from parenvs.compiled import Array, Figure, running_sums, shared
from parenvs.tasks.hybrid import schedules
from parenvs.tasks.hybrid import stage_formulas as of_stage
from parenvs.tasks.hybrid.layers import FIGURES, Chain, Layer, Split, figures_of
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import SCHEDULES
from parenvs.tasks.hybrid.schedules import chains, rounds_of
from parenvs.tasks.hybrid.stack import Machine
from parenvs.tasks.hybrid.stage_formulas import exposed_seconds
from parenvs.tasks.pipeline.formulas import core_of, interleaved, tail_of

Chunks = namedtuple("Chunks", ("layers", "full", "selective", "passed"))
"""What schedules with split backward passes have on each chunk.

Attributes:
    layers: (K, S, v, ...) layers of each kind.
    full: (K, S, v, ...) those of them whose forward pass runs again.
    selective: (K, S, v, ...) those of which only the attention runs again.
    passed: (S, v, ...) elements per sample that a chunk passes to the next of its chain.
"""


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
        schedule: of all plans, one of ``parenvs.tasks.hybrid.plan.SCHEDULES``.
        pieces: what each chunk has; None unless the schedule splits backward passes.
    """

    layers: Array
    first_chunk: Array
    full: Array
    selective: Array
    on: Array
    back: Array
    first: Array
    links: Array
    tp: Array
    dp: Array
    zero: Array
    device: Array
    speed: Array
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
    schedule: str = ""
    pieces: Chunks | None = None

    def ends(self, side: int) -> list[tuple[Any, int]]:
        """Stage and chunk that hold the embedding (0) or the head (-1), of every chain."""
        if self.pieces is None:
            return [(side, 0)]
        return [chain[side] for chain in chains(self.schedule, len(self.tp), 0)]

    @property
    def rounds(self) -> Figure:
        """(...) how often a stage does all of its chunks in a step."""
        return rounds_of(self.schedule, self.micro_batches)

    @property
    def several(self) -> bool:
        """Whether plans have several stages."""
        return len(self.tp) > 1

    def ahead(self, figures: Array) -> Array:
        """(S, ...) figures of the stage in front of each; in front of the first is the last."""
        return np.concatenate([figures[-1:], figures[:-1]])

    def behind(self, figures: Array) -> Array:
        """(S, ...) figures of the stage behind each; behind the last is the first."""
        return np.concatenate([figures[1:], figures[:1]])

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


Step = namedtuple("Step", (
    "forward", "backward", "recomputed", "exchange", "forward_exchange", "sends", "gathers",
    "chunk", "busy", "reduction", "exposed", "start", "hiding", "update", "core", "tail",
    "tied", "optimizer", "host", "length",
))  # fmt: skip
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


Memory = namedtuple("Memory", (
    "weights", "gradients", "optimizer", "activations", "working", "total",
))  # fmt: skip
"""Bytes on a device of each stage, (S, ...); ``total`` is the sum.

Attributes:
    gradients: of them.
    optimizer: master weights and moments.
    activations: kept for backward passes of the micro-batches in flight.
    working: what exists only while a layer runs.
    total: all of it.
"""


Model = HybridModel | Chain
"""Whatever chain formulas are asked about."""
Pair = tuple[Array, Array]
"""Two arrays: of parameters, those that all replicas hold and those of experts."""


def of_chunks(layers: Array, ahead: Array, behind: Array) -> dict[str, Array]:
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


def step(model: Model, cluster: Cluster, machine: Machine, stages: Stages) -> Step:
    """Return the seconds of training steps."""
    shape, chain = np.shape(stages.replicas), delayed(model, machine, stages)
    held = (*parameters(chain, stages), *parameters(chain, stages, True))
    # Embedding and head, their collectives too, on the first and last stage.
    ends = np.zeros((2, *shape))
    for layer, stage, _ in _ends(chain, stages):
        ends[0][stage] += (layer[0] + layer[2])[stage]
        ends[1][stage] += (layer[1] + layer[3])[stage]
    # The head is in the last chunk, which is the first only if it is alone.
    index = np.arange(len(ends[0])).reshape(-1, *(1,) * (ends.ndim - 2))
    begins = (index == 0) | np.equal(stages.chunks, 1)
    sends, first_sends, links = _sends(cluster, machine, stages)
    parts = of_stage.stage_seconds(
        machine.rates, len(chain.kinds), chain.kinds, _counts(stages),
        (stages.offload, machine.host_bw), (*ends, begins), (sends, first_sends), held,
        _replicas(stages),
        (stages.gradient_bytes, stages.gradient_overlap, stages.micro_batches),
        stages.schedule == schedules.TWO_WAYS,
    )  # fmt: skip
    parts = tuple(_wide(part, shape) for part in parts)
    gathers, chunk, busy, _, exposed, gather_start, hiding, update = parts[6:]
    # A micro-batch reaches stage s when it has passed the first chunks of all stages in front.
    before = running_sums(chunk) - chunk
    if stages.pieces is None:
        core = core_of(*_resources(before + busy, busy, chunk, links, stages), stages.micro_batches)
        # The last backward pass goes on in the stages in front: it hides the sums of those behind.
        ahead = running_sums(hiding) - hiding
        ahead[1:] += running_sums(links) / 2  # gradients' way to the stages in front
        tail = tail_of(exposed, ahead)
    else:
        table = passes(chain, cluster, machine, stages)
        core, left = schedules.core(stages.schedule, *table, stages.rounds)
        # Gathers are no passes of the schedule: the worst stage waits for them in each round.
        core = core + stages.rounds * gathers.max(axis=0)
        tail = np.maximum((exposed - left).max(axis=0), 0.0)
    # Nothing runs beside the gather of the first layer.
    core = core + gather_start.max(axis=0)
    tied = _tied(chain, machine, stages)
    optimizer = update.max(axis=0)
    length = compose(machine, core, tail, tied, optimizer)
    return Step._make((*parts, core, tail, tied, optimizer, machine.step_seconds, length))


@shared
def compose(
    machine: Any, core: Figure, tail: Figure = 0.0, tied: Figure = 0.0, optimizer: Figure = 0.0
) -> Figure:
    """Return the seconds of a step, elementwise.

    Every evaluation, simulation, search and bound adds up the parts of a step here alone. It grows
    with each part, so that lower bounds of parts give a lower bound of the step. A negative tail,
    of the gradients' collectives behind the passes, counts as 0. ``machine`` may be its rates.
    """
    return core + np.maximum(tail, 0.0) + tied + optimizer + machine.step_seconds


def passes(model: Model, cluster: Cluster, machine: Machine, stages: Stages) -> Pair:
    """Return the seconds of every chunk's passes where backward passes are split.

    ``stages`` have ``pieces``.

    Returns:
        (3, S, v, ...) of forward passes, of backward passes without the gradients of weights, and
        of these; and (S, v, ...) of a message from a chunk to the next of its chain.
    """
    pieces, shape = stages.pieces, np.shape(stages.replicas)
    assert pieces is not None
    model, size = delayed(model, machine, stages), len(model.kinds)
    table = np.zeros((3, *pieces.passed.shape[:2], *shape[1:]))
    adding: Figure = 0.0
    if machine.stack.accumulate_bytes:
        adding = sum(parameters(model, stages, True)) / machine.memory_bw
        adding = machine.stack.accumulate_bytes * adding
    whole = np.maximum(stages.layers.sum(axis=0), 1)
    for chunk in range(table.shape[2]):
        layers = pieces.layers[:, :, chunk]
        counts = (layers, layers, pieces.full[:, :, chunk], pieces.selective[:, :, chunk])
        again = of_stage.again_seconds(machine.rates, size, model.kinds, counts)
        forward, backward, ahead, behind, weights = (
            of_stage.total(model.kinds, figure, counts, 0, size) for figure in (0, 1, 2, 3, -1)
        )
        table[0, :, chunk] = forward + ahead
        # W passes have products with weights only; collectives and recomputation are in I.
        table[1, :, chunk] = backward + behind + again - weights
        table[2, :, chunk] = weights + adding * layers.sum(axis=0) / whole
    for layer, stage, chunk in _ends(model, stages):
        table[0, stage, chunk] += (layer[0] + layer[2])[stage]
        table[1, stage, chunk] += (layer[1] + layer[3] - layer[-1])[stage]
        table[2, stage, chunk] += layer[-1][stage]
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


def _ends(model: Model, stages: Stages) -> Iterator[tuple[Any, Any, int]]:
    """Yield embedding and head, each with the stages and the chunks that hold it."""
    for layer, side in ((model.embedding, 0), (model.head, -1)):
        if layer is not None:
            for stage, chunk in stages.ends(side):
                yield layer, stage, chunk


def memory(model: Model, machine: Machine, stages: Stages) -> Memory:
    """Return the bytes on a device of every stage (arXiv 2205.05198, section 4)."""
    shape, chain = np.shape(stages.replicas), delayed(model, machine, stages)
    counts, size, kinds = _counts(stages), len(chain.kinds), chain.kinds
    working = _wide(of_stage.working_bytes(size, kinds, counts), shape).copy()
    front, back = np.zeros((2, *shape))
    for layer, stage, _ in _ends(chain, stages):
        at_end = back if layer is chain.head else front
        at_end[stage] += layer[of_stage.BYTES][stage]
        if layer is chain.head:
            working[stage] = np.maximum(working[stage], layer[of_stage.RUNNING][stage])
    if stages.pieces is None:
        saved, most = of_stage.saved_bytes(size, kinds, counts)
        index = np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
        left, early, chunks = shape[0] - index, stages.schedule == SCHEDULES[2], stages.chunks
        flight = of_stage.in_flight(left, shape[0], stages.micro_batches, chunks, early)
        kept = of_stage.kept_bytes(saved, front, back, flight, stages.chunks, stages.offload, most)
        activations = _wide(kept, shape)
    else:
        activations = _held(chain, front, stages) + back
    held = (*parameters(chain, stages), *parameters(chain, stages, True))
    states = of_stage.state_bytes(
        machine.rates, size, kinds, counts, held, _replicas(stages), stages.gradient_bytes
    )
    parts = (*(_wide(part, shape) for part in states), activations, working)
    return Memory._make((*parts, sum(parts[1:], parts[0])))


def _counts(stages: Stages) -> tuple[Array, ...]:
    return stages.layers, stages.first_chunk, stages.full, stages.selective


def _replicas(stages: Stages) -> tuple[Figure, ...]:
    return stages.zero, stages.replicas, stages.sharing, stages.tp, stages.apart


def _held(chain: Chain, front: Array, stages: Stages) -> Array:
    """(S, ...) bytes of activations where backward passes are split, at the peak of each stage.

    ``front`` are those of the embedding.
    """
    pieces, shape = stages.pieces, np.shape(stages.replicas)
    assert pieces is not None
    by_kind = (pieces.layers, pieces.layers, pieces.full, pieces.selective)
    kinds = [kind[:, :, None] for kind in chain.kinds]
    saved, _ = of_stage.saved_bytes(len(kinds), kinds, by_kind)
    for stage, chunk in stages.ends(0):
        saved[stage, chunk] += front[stage]
    rounds = np.broadcast_to(np.round(stages.rounds).astype(np.int64), shape[1:])
    # In steady rounds what is held repeats, so the peak is reached before.
    counts = np.minimum(rounds, schedules.steady(len(saved), int(rounds.max(initial=1))))
    peak = np.zeros((len(saved), *shape[1:]))
    for count in np.unique(counts):
        lines = schedules.held(stages.schedule, len(saved), int(count))
        peak_of_count = np.einsum("skv,sv...->sk...", lines, saved).max(axis=1)
        peak = np.where(counts == count, peak_of_count, peak)
    return peak


_KERNELS = [0, 1, 4, 5, FIGURES - 1]
"""Figures of layers in which a device computes; links of a slow server are as fast."""


def looked_up(model: Model, machine: Machine, stages: Stages) -> Chain:
    """Return the figures of a chain's layers, which ``step`` and ``memory`` take in its place."""
    shape, splits = np.shape(stages.replicas), stages.pieces is not None
    front, back, *kinds = (
        layer and figures_of(layer, machine, stages.split, shape, splits)
        for layer in (model.embedding, model.head, *model.kinds)
    )
    return Chain(kinds, front, back, model.tied_parameters, model.tied_share)


def delayed(model: Model, machine: Machine, stages: Stages) -> Chain:
    """Return the (16, S, ...) figures of a chain's layers; slower servers compute longer."""
    shape, least = np.shape(stages.replicas), machine.layer_seconds
    chain = model if isinstance(model.kinds[0], Array) else looked_up(model, machine, stages)
    is_late, tables = bool(least) or np.any(stages.speed != 1), []
    for table in (chain.embedding, chain.head, *chain.kinds):
        if table is not None and table.ndim == len(shape):  # of plans, on every stage alike
            table = np.broadcast_to(table[:, None], (FIGURES, *shape))
        if table is not None and is_late:
            table = table.copy()
            # Devices wait for a host that starts kernels slower than they run.
            table[:2] = np.maximum(table[:2], least)
            table[_KERNELS] /= stages.speed
        tables.append(table)
    front, back, *kinds = tables
    return Chain(kinds, front, back, chain.tied_parameters, chain.tied_share)


def _wide(figures: Figure, shape: tuple[int, ...]) -> Array:
    """Return figures as an array of a shape or a wider one; it is not written to."""
    return figures if np.shape(figures) == shape else np.asarray(figures * np.ones(shape))


def _sends(cluster: Cluster, machine: Machine, stages: Stages) -> tuple[Array, Array, Array]:
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
    both = np.zeros_like(stages.on)
    if not machine.stack.duplex:
        passed = 2 * stages.links * seconds[:-1]
        both[:-1] += passed
        both[1:] += passed
    waits, first = of_stage.wait_seconds(
        machine.rates, stages.on, stages.back, both, seconds, stages.ahead(seconds), hop,
        stages.ahead(hop), samples, stages.chunks, stages.first, blocking,
    )  # fmt: skip
    # There and back: activations forward, their gradients backward.
    links = 2 * (stages.links * samples * seconds[:-1] + stages.chunks * hop[:-1])
    return waits, first, np.where(blocking, 0.0, links)


def transfer_seconds(cluster: Cluster, machine: Machine, stages: Stages, elements: Array) -> Array:
    """(S, ...) seconds in which each stage passes a micro-batch to the next, the last to the first.

    ``elements``: (S, ...) elements per sample that are passed.
    """
    seconds, hop = _seconds_per_element(cluster, machine, stages)
    return elements * stages.samples * seconds + hop


def _seconds_per_element(cluster: Cluster, machine: Machine, stages: Stages) -> Pair:
    """Seconds that a stage's send to the next takes: for each element of a micro-batch, and once.

    Both are (S, ...); the last stage sends to the first if there are several chunks.
    """
    inside, shape = cluster.devices_per_server, stages.layers.shape[1:]
    replicas, tp = _wide(stages.replicas, shape), _wide(stages.tp, shape)
    last = (stages.device + stages.tp * stages.replicas - 1) // inside
    own = stages.device // inside, last, tp, replicas
    figures = (*own, *map(stages.behind, own), np.asarray(stages.sequence_parallel))
    parts = of_stage.element_seconds(machine.rates, *figures)
    return _wide(parts[0], shape), _wide(parts[1], shape)


def _resources(passed: Array, busy: Array, chunk: Array, links: Array, stages: Stages) -> Pair:
    """Seconds up to and of every resource: stages, and links where sends do not block."""
    if len(busy) == 1 or np.all(stages.blocking):
        return passed, busy
    # A link carries the messages of each chunk in turn, so the first is there after one of them.
    of_chunk = links / stages.chunks
    sent = running_sums(of_chunk)
    passed_stages = passed.copy()
    passed_stages[1:] += sent
    passed_links = running_sums(chunk)[:-1] + (sent - of_chunk) + links
    return interleaved(passed_stages, passed_links), interleaved(busy, links)


def parameters(model: Model, stages: Stages, trained: bool = False) -> Pair:
    """Return the parameters on a device, (S, ...): those all replicas hold, and experts'.

    ``trained``: count those alone that are trained.
    """
    split, shape = stages.split, np.shape(stages.replicas)

    def of(layer: Any) -> Any:
        if isinstance(layer, Layer):
            return layer.trained(split) if trained else layer.parameters(split)
        first = of_stage.PARAMETERS + (2 if trained else 0)
        return layer[first : first + 2]

    held: list[Any] = [0.0, 0.0]
    for kind, count in zip(model.kinds, stages.layers, strict=True):
        held = [sums + count * part for sums, part in zip(held, of(kind), strict=True)]
    dense, experts = (_wide(sums, shape) for sums in held)
    for layer, stage, _ in _ends(model, stages):
        for sums, part in zip((dense, experts), of(layer), strict=True):
            if np.any(part):
                sums[stage] += _wide(part, shape)[stage]
    tied = model.tied_parameters * (model.tied_share if trained else 1.0)
    if stages.pieces is not None:
        for stage, _ in stages.ends(0):
            # Embedding and head in one stage hold the shared table once.
            if stage in dict(stages.ends(-1)):
                dense[stage] -= tied / stages.tp[stage]
    if not stages.several:
        dense[0] -= tied / stages.tp[0]
    return dense, experts


def reduction(held: Pair, machine: Machine, stages: Stages, backward: Array) -> Pair:
    """(S, ...) seconds of the gradients' collectives, and what the last backward pass leaves.

    Where some of the replicas share states, gradients are scattered among those, summed with the
    same part of the others, and gathered; with ZeRO 3 the sum alone is left, beside the backward
    pass.
    """
    rates, replicas, u = machine.rates, _replicas(stages), stages.gradient_bytes
    sums = of_stage.summing_seconds(rates, held[0], 1, replicas, u)
    sums = sums + of_stage.summing_seconds(rates, held[1], stages.apart, replicas, u)
    overlap = stages.gradient_overlap | (stages.zero >= 3)
    return sums, exposed_seconds(sums, stages.layers.sum(axis=0), backward, overlap)


def _tied(model: Model, machine: Machine, stages: Stages) -> Array:
    """(...) seconds in which first and last stage sum the gradients of weights they share."""
    # Schedules whose chains turn round have embedding and head in one stage.
    alone = stages.pieces is not None and dict(stages.ends(0)).keys() & dict(stages.ends(-1))
    tied = model.tied_parameters * model.tied_share
    if alone or not tied or not stages.several:
        return np.zeros(np.shape(stages.tp)[1:])
    # Where tp differs, the end with fewer ranks has the larger parts, and takes longer.
    ranks = np.minimum(stages.tp[0], stages.tp[-1])
    return np.asarray(of_stage.pair_seconds(machine.rates, stages.gradient_bytes * tied / ranks))
