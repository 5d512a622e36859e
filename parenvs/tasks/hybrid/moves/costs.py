"""What plans take and hold, compiled: a plan at a time, by the formulas of a stage.

Figures of layers are looked up, see ``parenvs.tasks.hybrid.plan_arrays.Table``.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from parenvs.compiled import Array, bare, compiled
from parenvs.tasks.hybrid import stage_formulas as of_stage
from parenvs.tasks.hybrid.formulas import compose
from parenvs.tasks.hybrid.moves import columns as col
from parenvs.tasks.hybrid.moves.changes import Plan, Problems, place_of, plan_at, slowest
from parenvs.tasks.pipeline import formulas as pure

through = compiled(pure.through)


Work = namedtuple("Work", ("stages", "counts", "slow"))
"""Memory for one plan.

Attributes:
    stages: (S, 5) of each stage: split, tp, ranks with the same parameters, servers of its
        first and of its last device.
    counts: (4, K) layers of a stage by kind, those of the first chunk, in full, selectively.
    slow: (2 + K, 16) figures of layers on a server that is slower.
"""


def work_for(problems: Problems) -> Work:
    """Return memory for one plan of some problems."""
    stages = np.zeros((col.MAX_STAGES, 5), np.int64)
    counts = np.zeros((4, problems.kinds_before.shape[2]))
    return Work(stages, counts, np.zeros(problems.figures.shape[2:]))


@bare
def _split(problems: Problems, row: int, plan: Plan, stages: Array) -> None:
    """Write what depends on the devices of each stage."""
    known, numbers = problems.known[row], plan.numbers
    samples, context = numbers[col.SAMPLES], numbers[col.CONTEXT]
    expert = place_of(problems, row, 3, numbers[col.EXPERT])
    rest = place_of(problems, row, 2, context) * known.expert_choices + expert
    first, devices, tp, ranks, split, server = 0, 0, 0, 0, 0, 1.0 / known.devices_per_server
    for stage in range(numbers[col.COUNT]):
        if devices != plan.stages[stage, col.DEVICES] or tp != plan.stages[stage, col.TP]:
            devices, tp = plan.stages[stage, col.DEVICES], plan.stages[stage, col.TP]
            dp = devices // (tp * context)
            ranks = dp * context
            # Mixed radix: the split's number among all that the problem's plans can have.
            split = place_of(problems, row, 0, samples // dp) * known.tp_choices
            split += place_of(problems, row, 1, tp)
            split = split * known.context_choices * known.expert_choices + rest
        stages[stage, 0], stages[stage, 1] = split * 2 + numbers[col.SHARED], tp
        # Halves make products as whole as quotients, and they are quicker.
        stages[stage, 2], stages[stage, 3] = ranks, int((first + 0.5) * server)
        first += devices
        stages[stage, 4] = int((first - 0.5) * server)


@bare
def _link(known: Any, plan: Plan, stages: Array, stage: int) -> tuple[float, float]:
    x, y = stages[stage], stages[stage + 1 if stage + 1 < plan.numbers[col.COUNT] else 0]
    shared = plan.numbers[col.SHARED] > 0
    return of_stage.element_seconds(known, x[3], x[4], x[1], x[2], y[3], y[4], y[1], y[2], shared)


@bare
def _count_layers(
    problems: Problems, row: int, plan: Plan, stage: int, counts: Array
) -> tuple[float, float, float]:
    """Write the layers of a stage; return elements that it passes on and back, and a share.

    Elements are per sample, over its chunks; the share is that of the first chunk.
    """
    numbers, ends, kinds = plan.numbers, plan.ends, problems.known[row].kinds
    count, pieces = numbers[col.COUNT], numbers[col.COUNT] * numbers[col.CHUNKS]
    before, crossing = problems.kinds_before[row], problems.crossing[row]
    full = plan.stages[stage, col.FULL]
    again = full + plan.stages[stage, col.SELECTIVE]
    on, back, first, passed = 0.0, 0.0, 0, 0
    for piece in range(stage, pieces, count):
        begin, end = ends[piece - 1] if piece > 0 else 0, ends[piece]
        on, back = on + crossing[end], back + crossing[begin]
        # The first layers of the stage are recomputed in full, those behind them selectively.
        in_full = begin + min(max(full - passed, 0), end - begin)
        in_part = begin + min(max(again - passed, 0), end - begin)
        for kind in range(kinds):
            if piece == stage:
                counts[0, kind], counts[2, kind], counts[3, kind] = 0.0, 0.0, 0.0
                counts[1, kind] = before[end, kind] - before[begin, kind]
            counts[0, kind] += before[end, kind] - before[begin, kind]
            if again > 0:
                counts[2, kind] += before[in_full, kind] - before[begin, kind]
                counts[3, kind] += before[in_part, kind] - before[in_full, kind]
        passed += end - begin
        first = passed if piece == stage else first
    return on, back, first / max(passed, 1)


@bare
def _slow_down(table: Array, speed: float, least: float, slow: Array) -> None:
    """Write the figures of layers on a server of a speed, whose passes take a least time."""
    for layer in range(len(slow)):
        for figure in range(slow.shape[1]):
            slow[layer, figure] = table[layer, figure]
        # Devices wait for a host that starts kernels slower than they run.
        slow[layer, 0], slow[layer, 1] = max(slow[layer, 0], least), max(slow[layer, 1], least)
        for figure in (0, 1, 4, 5):
            slow[layer, figure] /= speed


@bare
def judge(
    problems: Problems, row: int, plan: Plan, work: Work, busy: Array,
    bytes_held: Array,
) -> tuple[float, float]:  # fmt: skip
    """Return the step time of a legal plan, and the bytes on its fullest device over the limit.

    ``busy`` and ``bytes_held`` are (S,): where the seconds of a micro-batch on each stage, and the
    bytes on its devices over the limit, are written.
    """
    known, numbers, stages, counts = problems.known[row], plan.numbers, work.stages, work.counts
    count, chunks, samples = numbers[col.COUNT], numbers[col.CHUNKS], numbers[col.SAMPLES]
    micro_batches, crossing, ends = known.batch / samples, problems.crossing[row], plan.ends
    kinds, u, blocking = known.kinds, known.gradient_bytes, known.blocking > 0
    software = (u, known.gradient_overlap > 0, micro_batches)
    _split(problems, row, plan, stages)
    ahead, hop_ahead = _link(known, plan, stages, count - 1) if count > 1 else (0.0, 0.0)
    first, passed, hidden, sent, links, both_ahead = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    core, tail, gather, optimizer, fullness = 0.0, -np.inf, 0.0, 0.0, 0.0
    for stage in range(count):
        devices = plan.stages[stage, col.DEVICES]
        speed = slowest(problems, row, plan, first, devices, 1)[0] if known.differs else 1.0
        first += devices
        on, back, share = _count_layers(problems, row, plan, stage, counts)
        sends, link = (0.0, 0.0), 0.0
        if count > 1:
            seconds, hop = _link(known, plan, stages, stage)
            passes = on if stage < count - 1 else 0.0
            # The ends of the chain pass to one neighbor only, which counts twice (``Stages.back``).
            if stage == 0:
                on += crossing[ends[0]]
            if stage == count - 1:
                back += crossing[ends[count * chunks - 2]]
            both = 2 * passes * seconds
            sends = of_stage.wait_seconds(
                known, on, back, both_ahead + both, seconds, ahead, hop, hop_ahead, samples,
                chunks, share, blocking,
            )  # fmt: skip
            if not blocking and stage < count - 1:
                # There and back: activations forward, their gradients backward.
                link = 2 * (passes * samples * seconds + chunks * hop)
            ahead, hop_ahead, both_ahead = seconds, hop, both
        table = problems.figures[row, stages[stage, 0]]
        if speed != 1.0 or known.layer_seconds > 0:
            _slow_down(table, speed, known.layer_seconds, work.slow)
            table = work.slow
        front, back_end, layers = table[0], table[1], table[2:]
        # Whether the stage has the embedding, and the head.
        fronts = 1.0 if stage == 0 and known.has_front else 0.0
        backs = 1.0 if stage == count - 1 and known.has_back else 0.0
        forward = fronts * (front[0] + front[2]) + backs * (back_end[0] + back_end[2])
        backward = fronts * (front[1] + front[3]) + backs * (back_end[1] + back_end[3])
        tp, ranks = stages[stage, 1], stages[stage, 2]
        # Embedding and head in one stage hold the shared table once.
        alone = 1.0 / tp if count == 1 else 0.0
        held = (
            _parameters(table, 0, counts, kinds, fronts, backs) - alone * known.tied,
            _parameters(table, 1, counts, kinds, fronts, backs),
            _parameters(table, 2, counts, kinds, fronts, backs) - alone * known.tied_learned,
            _parameters(table, 3, counts, kinds, fronts, backs),
        )
        sharing = ranks if numbers[col.SHARD] == 0 else numbers[col.SHARD]
        replicas = (plan.stages[stage, col.ZERO], ranks, sharing, tp, numbers[col.EXPERT])
        figures = of_stage.stage_seconds(
            known, kinds, layers, counts, (False, 1.0),
            (forward, backward, stage == 0 or chunks == 1), sends, held, replicas, software, False,
        )  # fmt: skip
        chunk, busy[stage], _, exposed, start, hiding, update = figures[7:]
        weights, gradients, moments = of_stage.state_bytes(
            known, kinds, layers, counts, held, replicas, u
        )
        saved, most = of_stage.saved_bytes(kinds, layers, counts)
        flight = of_stage.in_flight(count - stage, count, micro_batches, chunks, False)
        kept = of_stage.kept_bytes(
            saved, fronts * front[of_stage.BYTES], backs * back_end[of_stage.BYTES], flight, chunks,
            False, most,
        )  # fmt: skip
        working = of_stage.working_bytes(kinds, layers, counts)
        working = max(working, backs * back_end[of_stage.RUNNING])
        bytes_held[stage] = (weights + gradients + moments + kept + working) / known.limit
        fullness = max(fullness, bytes_held[stage])
        # A micro-batch reaches a stage when it has passed the first chunks of all in front. A link
        # carries the messages of each chunk in turn; without one it takes no time.
        passed += chunk
        ready = passed - chunk + busy[stage] + sent
        core = max(core, through(ready, busy[stage], micro_batches))
        sent += link / chunks
        if stage < count - 1:
            along = passed + (sent - link / chunks) + link
            core = max(core, through(along, link, micro_batches))
        # The last backward pass goes on in the stages in front, also while gradients are on their
        # way there: it hides the sums of those behind.
        hidden += hiding
        tail = max(tail, exposed - (hidden - hiding + links / 2))
        links += link
        gather, optimizer = max(gather, start), max(optimizer, update)
    tied = 0.0
    if count > 1 and known.tied_learned > 0:
        # Where tp differs, the end with fewer ranks has the larger parts, and takes longer.
        ranks = min(plan.stages[0, col.TP], plan.stages[count - 1, col.TP])
        tied = of_stage.pair_seconds(known, u * known.tied_learned / ranks)
    return compose(known, core + gather, tail, tied, optimizer), fullness


@bare
def _parameters(
    table: Array, which: int, counts: Array, kinds: int, fronts: float, backs: float
) -> float:
    """Return the parameters of a stage: all replicas', experts', and those that are trained."""
    column = of_stage.PARAMETERS + which
    held = of_stage.total(table[2:], column, counts, 0, kinds)
    return held + fronts * table[0, column] + backs * table[1, column]


@bare
def judge_all(
    problems: Problems, rows: Array, plans: Plan, which: Array, work: Work,
    length: Array, fullness: Array, busy: Array, held: Array,
) -> None:  # fmt: skip
    """Judge plans ``which``, (k,), of problems ``rows``, (N,); write the figures of each."""
    for k in which:
        length[k], fullness[k] = judge(problems, rows[k], plan_at(plans, k), work, busy[k], held[k])
        # Stages that an earlier plan had must not count for this one.
        busy[k, plans.numbers[k, col.COUNT] :], held[k, plans.numbers[k, col.COUNT] :] = 0.0, 0.0
