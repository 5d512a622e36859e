"""Orders of passes: one after the other on every stage, and what follows of them.

A stage does operations in a fixed order, each one pass or several that run together. Unit k of the
forward passes of 1F1B is chunk ``(k % (S v)) // S`` of micro-batch ``(k // (S v)) S + k % S``;
backward passes take the chunks from the last to the first. Stage s begins with ``2 (S - s - 1) +
(v - 1) S`` forward passes (``S - s - 1`` with one chunk), then alternates one forward and one
backward pass, then drains (arXiv 2104.04473, section 2.2; Megatron-LM's order).

Others split the backward pass in the gradients of inputs, for which the stage in front waits, and
those of weights, which fill bubbles:

    zb-h1       ZB-H1 of arXiv 2401.10241: weights s micro-batches behind the inputs on stage s
    zb-v        ZB-V of the same: two chunks, the second in the opposite order of stages
    dualpipe    DualPipe of arXiv 2412.19437: half of the micro-batches enter at each end, for which
                every stage holds the weights of two; a forward and a backward pass run together
    dualpipe-v  its half (DualPipeV): two chunks as with zb-v, weights once

Their core is the longest path through all operations, ``core``; the bubbles that are published for
equal stages follow of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from parenvs.compiled import Array, compiled
from parenvs.tasks.hybrid.plan import SCHEDULES
from parenvs.tasks.pipeline import formulas as pure
from parenvs.tasks.pipeline.formulas import BACKWARD, FORWARD, StageTimes
from parenvs.tasks.pipeline.formulas import simulate as simulate_row

WEIGHT = 2
"""Kind of a pass that makes gradients of weights; ``BACKWARD`` makes those of inputs then."""
SPLIT = ("zb-h1", "zb-v", "dualpipe", "dualpipe-v")
"""Schedules that split backward passes."""
CHUNKS = {"zb-h1": 1, "zb-v": 2, "dualpipe": 2, "dualpipe-v": 2}
"""Ranges of layers on each stage of them."""
TWO_WAYS = "dualpipe"
"""The schedule in which half of the micro-batches enter at each end."""
_AT_ONCE = 256
"""Plans whose paths are followed at once, which bounds memory."""
Pass = tuple[int, int, int]
"""Kind, chunk and micro-batch of a pass."""
Operation = tuple[Pass, ...]
"""Passes that begin and end together."""
Place = tuple[int, int]
"""Stage and chunk."""


def chains(schedule: str, stages: int, chunks: int) -> list[list[Place]]:
    """Return the stages and chunks that a micro-batch passes, from the first layer to the last.

    One chain, or two if micro-batches enter at both ends.
    """
    # Chunk 0 goes from the first stage to the last, chunk 1 of V schedules comes back.
    there = [(stage, 0) for stage in range(stages)]
    if schedule not in SPLIT:
        return [[(stage, chunk) for chunk in range(chunks) for stage in range(stages)]]
    if CHUNKS[schedule] == 1:
        return [there]
    back = [(stage, 1) for stage in reversed(range(stages))]
    return [there, back] if schedule == TWO_WAYS else [there + back]


def piece_of(schedule: str, stages: int, chunks: int) -> Array:
    """(S, v) which piece of the layers each chunk of each stage holds."""
    if schedule not in SPLIT:
        return np.arange(stages * chunks).reshape(chunks, stages).T
    pieces = np.zeros((stages, chunks), np.int64)
    for chain in chains(schedule, stages, chunks):
        for number, place in enumerate(chain):
            pieces[place] = number
    return pieces


def rounds_of(schedule: str, micro_batches: Any) -> Any:
    """Return how often a stage does all of its chunks: M, or M / 2 if half enter at each end."""
    return micro_batches / 2 if schedule == TWO_WAYS else micro_batches


def fewest(schedule: str, stages: int) -> int:
    """Return the micro-batches that a schedule needs."""
    return 2 * stages if schedule.startswith("dualpipe") else 1


def orders(stages: int, micro_batches: int, chunks: int) -> Array:
    """(3, S, 2 M v) kind, chunk and micro-batch of passes under 1F1B; with chunks S divides M."""
    left, total = stages - 1 - np.arange(stages)[:, None], micro_batches * chunks
    warming = left if chunks == 1 else 2 * left + (chunks - 1) * stages
    warming = np.minimum(warming, total)
    # Warm up, then one forward and one backward pass in turn, then drain.
    turn = np.arange(2 * total) - warming
    last = 2 * (total - warming)
    drains = turn >= last
    kind = np.where((turn >= 0) & (drains | (turn % 2 == 1)), BACKWARD, FORWARD)
    unit = np.where(turn < 0, turn + warming, turn // 2 + warming * (kind == FORWARD))
    unit = np.where(drains, turn - last // 2, unit)
    # After so many units the pattern of chunks begins again.
    rounds, rest = np.divmod(unit, stages * chunks)
    # Gradients come back through the last chunk first.
    chunk = np.abs(rest // stages - (chunks - 1) * (kind == BACKWARD))
    return np.stack([kind, chunk, rounds * stages + rest % stages])


def operations(
    schedule: str, stage: int, stages: int, rounds: int, chunks: int
) -> Iterator[Operation]:
    """Yield the operations of a stage in their order, under any schedule but ``early``."""
    if schedule not in SPLIT:
        passes = orders(stages, rounds, chunks)[:, stage].T.tolist()
        yield from (((kind, chunk, m),) for kind, chunk, m in passes)
        return
    # The second half of the stages does what the first does, with both directions exchanged.
    swapped = schedule == TWO_WAYS and stage >= stages // 2
    rank, ranks = stage, stages
    if schedule == TWO_WAYS:
        rank, ranks = min(stage, stages - 1 - stage), stages // 2
    of_schedule = {"zb-h1": _zb_h1, "zb-v": _zb_v}.get(schedule, _dual)
    done: Counter[tuple[int, int]] = Counter()
    for word in of_schedule(rank, ranks, rounds):
        members = []
        for letter, digit in zip(word[::2], word[1::2], strict=True):
            kind, chunk = "FIW".index(letter), int(digit) ^ swapped
            number = done[kind, chunk]
            done[kind, chunk] += 1
            if number < rounds:
                members.append((kind, chunk, number))
        if members:
            yield tuple(members)


def _zb_h1(stage: int, stages: int, rounds: int) -> Iterator[str]:
    """Operations of ZB-H1 as letters, forward, input and weight, each with its chunk."""
    warming = min(stages - stage - 1, rounds)
    yield from ["F0"] * warming
    for k in range(rounds):
        yield from ["F0"] * (warming + k < rounds) + ["I0"] + ["W0"] * (k >= stage)
    yield from ["W0"] * min(stage, rounds)


def _zb_v(stage: int, stages: int, rounds: int) -> Iterator[str]:
    """Operations of ZB-V; those of micro-batches that there are not are left out."""
    # The pattern needs as many; passes of micro-batches that do not exist are dropped.
    rounds = max(2 * stages - 1, rounds)
    left = stages - stage
    yield from ["F0"] * (2 * left - 1) + ["F1", "F0"] * stage + ["F1", "I1", "W1"] * left
    begun = 2 * left - 1 + stage
    for k in range(rounds - stages):
        yield from ["F0"] * (begun + k < rounds) + ["I0", "W0", "F1", "I1", "W1"]
    yield from ["I0", "I1"] * stage + ["I0", "W0"] * left + ["W1"] * stage + ["W0"] * stage


def _dual(rank: int, ranks: int, rounds: int) -> Iterator[str]:
    """Operations of DualPipeV's ``rank``, or of DualPipe's in the first half of the stages."""
    left = ranks - rank - 1
    yield from ["F0"] * (2 * left) + ["F0", "F1"] * (rank + 1) + ["I1", "W1", "F1"] * left
    for k in range(rounds - 2 * ranks + rank + 1):
        # The last rank has no backward pass yet to run beside its first forward pass.
        yield from ["F0", "I1W1"] if k == 0 and not left else ["F0I1W1"]
        yield "F1I0W0"
    yield from ["I1W1", "F1I0W0"] * left
    turns = ["1", "0"] * (rank + 1)
    yield from [f"I{chunk}W{chunk}" for chunk in turns[: rank + 1]]
    owed = turns[rank + 1 :]  # weights of the second half fill the end
    yield from [f"I{chunk}" for chunk in owed]
    owed += ["0"] * left
    for chunk in owed[:left]:
        yield from [f"W{chunk}", "I0"]
    yield from [f"W{chunk}" for chunk in owed[left:]]


def steady(stages: int, rounds: int) -> int:
    """Return the rounds after which nothing new happens but one round more in the middle."""
    return min(rounds, 4 * stages + 4)


@lru_cache(maxsize=64)
def held(schedule: str, stages: int, rounds: int) -> Array:
    """(S, K, v) activations of each chunk that a stage holds at a time, no line below another.

    An activation is held from its forward pass to the gradients of its weights. Of the lines of a
    stage, which may repeat, one is the peak, whatever an activation of each chunk takes.
    """
    chunks, peaks = CHUNKS[schedule], []
    for stage in range(stages):
        now, seen = [0] * chunks, set()
        for members in operations(schedule, stage, stages, steady(stages, rounds), chunks):
            for kind, chunk, _ in members:
                now[chunk] += kind == FORWARD
            # After forward passes and before weights are released: the peak of an operation.
            seen.add(tuple(now))
            for kind, chunk, _ in members:
                now[chunk] -= kind == WEIGHT
        lines = np.array(sorted(seen))
        # A line that another one reaches in every chunk is no peak.
        peaks.append(lines[(lines[:, None] <= lines).all(axis=2).sum(axis=1) == 1])
    most = max(map(len, peaks))
    return np.stack([x[np.arange(most) * (np.arange(most) < len(x))] for x in peaks])


class _Wave(NamedTuple):
    """Operations none of which waits for another, all of whose predecessors lie in earlier waves.

    Attributes:
        own: (n,) their numbers.
        stage: (n,) where they run.
        counts: (n, 3 v) which passes each consists of, by kind and chunk.
        ahead: (n, 3) numbers of the operations in front: of the same stage, of the chunk in front
            of a forward pass, and of that behind a backward pass; -1: none.
        over: (n, 3) the boundary over which what they wait for comes, as ``stage v + chunk`` of the
            chunk in front of it; -1: none.
    """

    own: Array
    stage: Array
    counts: Array
    ahead: Array
    over: Array


class _Waves(NamedTuple):
    """All operations of a step.

    Attributes:
        waves: in an order in which they can run.
        last: (S,) number of each stage's last operation.
        middle: (S,) that of one in the middle, where every round is like the one before.
    """

    waves: tuple[_Wave, ...]
    last: Array
    middle: Array


@lru_cache(maxsize=32)
def _waves(schedule: str, stages: int, rounds: int) -> _Waves:
    chunks = CHUNKS[schedule]
    neighbors: dict[Place, tuple[Place | None, Place | None]] = {}
    for chain in chains(schedule, stages, chunks):
        padded = [None, *chain, None]
        neighbors |= dict(zip(chain, zip(padded, padded[2:], strict=False), strict=True))
    members_of: list[Operation] = []
    of_stage: list[int] = []
    number_of: dict[tuple[int, ...], int] = {}
    for stage in range(stages):
        for members in operations(schedule, stage, stages, rounds, chunks):
            for kind, chunk, m in members:
                number_of[kind, stage, chunk, m] = len(members_of)
            members_of.append(members)
            of_stage.append(stage)
    size, stage_of = len(members_of), np.array(of_stage)
    first, end = (np.searchsorted(stage_of, np.arange(stages), side=x) for x in ("left", "right"))
    ahead, over = np.full((2, size, 3), -1)
    counts = np.zeros((size, 3 * chunks), np.int64)
    ahead[:, 0] = np.arange(-1, size - 1)  # of the same stage, in order
    ahead[first, 0] = -1
    for number, (stage, members) in enumerate(zip(of_stage, members_of, strict=True)):
        for kind, chunk, m in members:
            counts[number, kind * chunks + chunk] += 1
            near = None if kind == WEIGHT else neighbors[stage, chunk][kind]
            if near is not None:
                ahead[number, 1 + kind] = number_of[(kind, *near, m)]
                front = near if kind == FORWARD else (stage, chunk)
                over[number, 1 + kind] = front[0] * chunks + front[1]
    # Operations of one depth run as one array: that of the deepest one in front and one more.
    depth, before = np.zeros(size, np.int64), np.full(size, -1)
    while (depth != before).any():
        before = depth
        depth = np.where(ahead >= 0, depth[ahead] + 1, 0).max(axis=1)
    sort = np.argsort(depth, kind="stable")
    parts = np.split(sort, np.flatnonzero(np.diff(depth[sort])) + 1)
    waves = tuple(_Wave(x, stage_of[x], counts[x], ahead[x], over[x]) for x in parts)
    return _Waves(waves, end - 1, first + (end - first) // 2)


def core(schedule: str, passes: Array, transfers: Array, rounds: Any) -> tuple[Array, Array]:
    """Return the seconds of the longest path through all operations, links taken to be free.

    Every round beyond ``steady`` ones adds the busiest work on the path: the path runs through the
    middle of some stage's operations, and stays there that much longer.

    Args:
        schedule: one of ``SPLIT``.
        passes: as of ``formulas.passes``, (3, S, v, ...) seconds.
        transfers: (S, v, ...) seconds of a message from each chunk to the next of its chain.
        rounds: (...) see ``rounds_of``.

    Returns:
        (...) seconds, and (S, ...) those that are left when a stage has done its last operation.
    """
    shape, (stages, chunks) = passes.shape[3:], passes.shape[1:3]
    # M / 2 of two ways is a float that is whole.
    columns = np.broadcast_to(np.round(rounds).astype(np.int64), shape).reshape(-1)
    table = passes.reshape(3, stages, chunks, -1)
    links = np.concatenate([transfers.reshape(stages * chunks, -1), np.zeros((1, table.shape[-1]))])
    seconds, left = np.empty(table.shape[-1]), np.empty((stages, table.shape[-1]))
    # Beyond the steady rounds each one repeats the one before: its busiest work is added instead.
    capped = np.minimum(columns, steady(stages, int(columns.max(initial=1))))
    for count in np.unique(capped).tolist():
        waves, alike = _waves(schedule, stages, count), np.flatnonzero(capped == count)
        for which in np.split(alike, range(_AT_ONCE, len(alike), _AT_ONCE)):
            more = columns[which] - count
            path = _longest(waves, table[..., which], links[:, which], more)
            seconds[which], left[:, which] = path
    return seconds.reshape(shape), left.reshape(stages, *shape)


def _longest(every: _Waves, passes: Array, links: Array, more: Array) -> tuple[Array, Array]:
    """(N,) seconds of the longest path with ``more`` rounds in the middle; (S, N) what is left.

    ``passes`` is (3, S, v, N), ``links`` (S v + 1, N) seconds of messages, and a line of zeros.
    """
    stages, size = passes.shape[1], passes.shape[-1]
    # An operation lasts as long as its passes together.
    of_stage = passes.transpose(1, 0, 2, 3).reshape(stages, -1, size)
    ends = np.zeros((every.last[-1] + 2, size))  # the last line: operations without any in front
    durations = []
    for wave in every.waves:
        lasts = np.einsum("nk,nkc->nc", wave.counts, of_stage[wave.stage])
        ends[wave.own] = (ends[wave.ahead] + links[wave.over]).max(axis=1) + lasts
        durations.append(lasts)
    seconds, last = ends[:-1].max(axis=0), ends[every.last]
    if more.any():
        # Backward over the waves: the longest path from the end of each operation to the end.
        after = np.zeros_like(ends)
        for wave, lasts in zip(reversed(every.waves), reversed(durations), strict=True):
            behind = after[wave.own] + lasts
            for side in range(3):
                np.maximum.at(after, wave.ahead[:, side], behind + links[wave.over[:, side]])
        # The longest path through each stage's middle, where the further rounds are put.
        through = ends[every.middle] + after[every.middle]
        longer = (through + more * of_stage.sum(axis=1)).max(axis=0)
        last = last + longer - seconds
        seconds = longer
    return seconds, seconds - last


class ChunkSeconds(NamedTuple):
    """Seconds of one micro-batch, (S, v) each.

    ``transfer`` is of one message between each chunk and the one behind it, where stages do not
    wait for it; ``weights`` is the part of ``backward`` for gradients of weights, where schedules
    split it.
    """

    forward: Array
    backward: Array
    transfer: Array
    weights: Array | None = None


@dataclass(frozen=True)
class HybridTimetable:
    """Times of the passes of each micro-batch through each chunk of each stage.

    Attributes:
        start: (2, S, v, M) float64 seconds; the first axis is forward and backward, and a third
            line the gradients of weights where the schedule has passes of their own for them.
        end: the same.
    """

    start: Array
    end: Array

    @property
    def stage_end(self) -> Array:
        """(S,) end of each stage's last pass."""
        return self.end.max(axis=(0, 2, 3))

    @property
    def core(self) -> float:
        """Seconds until the last pass ends."""
        return float(self.end.max())

    def length(self, exposed: Array) -> float:
        """Return the seconds until gradients are summed, (S,) ``exposed`` behind the passes."""
        return float((self.stage_end + exposed).max())


def simulate(
    seconds: ChunkSeconds, micro_batches: int, schedule: str = SCHEDULES[0]
) -> HybridTimetable:
    """Simulate a training step; ``early`` is that of ``parenvs.tasks.pipeline.formulas``."""
    stages, chunks = seconds.forward.shape
    if schedule == "early":
        # The pure pipeline task has one chunk a stage, and links as stages between stages.
        forward, backward, link = (x[:, 0] for x in seconds[:3])
        there, back = (pure.interleaved(x, link[:-1]) for x in (forward, backward))
        table = simulate_row(StageTimes(there, back, np.zeros_like(there)), micro_batches)
        start, end = (x[::2].transpose(1, 0, 2)[:, :, None] for x in (table.start, table.end))
        return HybridTimetable(start, end)
    is_split, rounds = schedule in SPLIT, int(rounds_of(schedule, micro_batches))
    parts = [seconds.forward, seconds.backward]
    if is_split:
        assert seconds.weights is not None, "the weights' part of backward passes"
        parts = [seconds.forward, seconds.backward - seconds.weights, seconds.weights]
    size = stages * chunks  # chunk c of stage s is number c S + s
    behind, ahead, link_of = np.full((3, size), -1)
    # When what a pass waits for is there; gradients of weights wait for nothing.
    ready = np.full((len(parts), size, rounds), np.inf)
    ready[WEIGHT:] = 0.0
    for chain in chains(schedule, stages, chunks):
        numbers = [chunk * stages + stage for stage, chunk in chain]
        ready[FORWARD, numbers[0]] = 0.0
        for number, following in pairwise(numbers):
            behind[number], ahead[following] = following, number
            stage, other = number % stages, following % stages
            if stage != other:
                # Where chains run against the order of stages, the link is that of the lower one.
                link_of[number] = min(stage, other) if is_split else stage
    start, end = np.zeros((2, *ready.shape))
    duration = np.stack([x.T.ravel() for x in parts])
    neighbors = np.stack([behind, ahead, link_of])
    members = _members(schedule, stages, rounds, chunks)
    _play(members, neighbors, duration, seconds.transfer.T.ravel(), ready, start, end)
    start, end = (x.reshape(-1, chunks, stages, rounds).transpose(0, 2, 1, 3) for x in (start, end))
    return HybridTimetable(start, end)


@lru_cache(maxsize=8)
def _members(schedule: str, stages: int, rounds: int, chunks: int) -> Array:
    """(S, operations, w) passes of each operation, ``(kind S v + chunk S + s) M + m``; -1: none."""
    if schedule not in SPLIT:
        kind, chunk, m = orders(stages, rounds, chunks)
        place = (kind * chunks + chunk) * stages + np.arange(stages)[:, None]
        return np.asarray(place * rounds + m)[..., None]
    rows = [
        [
            [((kind * chunks + chunk) * stages + stage) * rounds + m for kind, chunk, m in members]
            for members in operations(schedule, stage, stages, rounds, chunks)
        ]
        for stage in range(stages)
    ]
    passes = np.full((stages, max(map(len, rows)), 3), -1)
    for stage, row in enumerate(rows):
        for number, members in enumerate(row):
            passes[stage, number, : len(members)] = members
    return passes


@compiled
def _play(
    members: Array,
    neighbors: Array,
    duration: Array,
    transfer: Array,
    ready: Array,
    start: Array,
    end: Array,
) -> None:
    """Run all operations.

    Args:
        members: see ``_members``.
        neighbors: (3, S v) the next and the last chunk of a chain, and the link to the next; -1:
            none.
        duration: (kinds, S v) seconds of a pass.
        transfer: (S v,) seconds of a message to the next chunk.
        ready: (kinds, S v, M) when what a pass waits for is there; infinite: not yet.
        start: the same, where the beginnings of passes are written.
        end: where their ends are.
    """
    stages, count, width = members.shape
    size, rounds = ready.shape[1:]
    behind, ahead, link_of = neighbors
    seconds, there = duration.ravel(), ready.ravel()
    begins, ends = start.ravel(), end.ravel()
    done = np.zeros(stages, np.int64)  # operations that have ended
    free_at, link_free = np.zeros(stages), np.zeros(stages)
    ending = np.full(stages, np.inf)  # of the operation that runs
    asked = np.arange(stages + width + 1)  # stages whose next operation may begin, the first ``n``
    n = stages
    while True:
        for stage in asked[:n]:
            number = done[stage]
            if ending[stage] < np.inf or number == count:
                continue
            moment = free_at[stage]
            for one in members[stage, number]:
                if one >= 0:
                    moment = max(moment, there[one])
            if moment == np.inf or members[stage, number, 0] < 0:
                continue
            for one in members[stage, number]:
                if one >= 0:
                    begins[one] = moment
                    moment += seconds[one // rounds]
                    ends[one] = moment
            ending[stage] = free_at[stage] = moment
        stage = int(ending.argmin())
        now = ending[stage]
        if now == np.inf:
            return
        ending[stage] = np.inf
        asked[0], n = stage, 1
        # The passes of an operation end together, and set free what waits for them.
        for one in members[stage, done[stage]]:
            kind, place = divmod(one // rounds, size)
            if one < 0 or kind == WEIGHT:
                continue
            following = behind[place] if kind == FORWARD else ahead[place]
            if following >= 0:
                boundary = place if kind == FORWARD else following
                link, arrival = link_of[boundary], now
                if link >= 0:
                    # A link carries one message at a time.
                    arrival = max(now, link_free[link]) + transfer[boundary]
                    link_free[link] = arrival if transfer[boundary] else link_free[link]
                there[(kind * size + following) * rounds + one % rounds] = arrival
                asked[n] = following % stages
                n += 1
            elif kind == FORWARD:
                there[(BACKWARD * size + place) * rounds + one % rounds] = now
        done[stage] += 1
