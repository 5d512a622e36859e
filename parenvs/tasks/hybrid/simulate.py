"""Simulates a step pass by pass: a second opinion beside the closed form.

Every stage does its operations in the order of ``parenvs.tasks.hybrid.schedules``. Transfers that
do not block pass a link between two neighbours one at a time, in the order in which they are ready;
between the last stage and the first there is a link of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from parenvs.tasks.hybrid.plan import SCHEDULES
from parenvs.tasks.hybrid.schedules import (
    SPLIT,
    TWO_WAYS,
    WEIGHT,
    Operation,
    chains,
    operations,
    rounds_of,
)
from parenvs.tasks.pipeline import formulas as pure
from parenvs.tasks.pipeline.formulas import BACKWARD, FORWARD, StageTimes
from parenvs.tasks.pipeline.formulas import simulate as simulate_row

KINDS = ("forward", "backward", "weights")
"""Words for ``FORWARD``, ``BACKWARD`` and ``WEIGHT``."""


class ChunkSeconds(NamedTuple):
    """Seconds of one micro-batch, (S, v) each.

    Attributes:
        forward: through each chunk of each stage.
        backward: the same, backward.
        transfer: of one message between each chunk and the one behind it, where stages do not wait
            for it.
        weights: of the backward pass, those of the gradients of weights; schedules that split it
            need them.
    """

    forward: np.ndarray
    backward: np.ndarray
    transfer: np.ndarray
    weights: np.ndarray | None = None


class TimetableRow(NamedTuple):
    """One pass of a timetable.

    Attributes:
        stage: that does it.
        chunk: of the stage.
        micro_batch: that passes.
        kind: one of ``KINDS``.
        start: seconds.
        end: seconds.
    """

    stage: int
    chunk: int
    micro_batch: int
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class HybridTimetable:
    """Times of the passes of each micro-batch through each chunk of each stage.

    Attributes:
        start: (2, S, v, M) float64 seconds; the first axis is forward and backward, and a third
            line the gradients of weights where the schedule has passes of their own for them.
        end: the same.
        second: number of the first micro-batch of the second chunk, where half of them enter at
            each end (M is that half then); else 0.
    """

    start: np.ndarray
    end: np.ndarray
    second: int = 0

    @property
    def stage_end(self) -> np.ndarray:
        """(S,) end of each stage's last pass."""
        return self.end.max(axis=(0, 2, 3))

    @property
    def core(self) -> float:
        """Seconds until the last pass ends."""
        return float(self.end.max())

    def length(self, exposed: np.ndarray) -> float:
        """Return the seconds until gradients are summed, too.

        Args:
            exposed: (S,) seconds of each stage's collectives behind its last pass.
        """
        return float((self.stage_end + exposed).max())

    def rows(self) -> Iterator[TimetableRow]:
        """Yield the passes, stage by stage, as they start."""
        stages = self.start.shape[1]
        for stage in range(stages):
            start, end = self.start[:, stage], self.end[:, stage]
            for flat in np.argsort(start, axis=None, kind="stable"):
                kind, chunk, micro_batch = np.unravel_index(flat, start.shape)
                yield TimetableRow(
                    stage,
                    int(chunk),
                    int(micro_batch + chunk * self.second),
                    KINDS[kind],
                    float(start[kind, chunk, micro_batch]),
                    float(end[kind, chunk, micro_batch]),
                )


def simulate(
    seconds: ChunkSeconds, micro_batches: int, schedule: str = SCHEDULES[0]
) -> HybridTimetable:
    """Simulate one training step.

    Args:
        seconds: of the chunks.
        micro_batches: M, with several chunks a multiple of S.
        schedule: one of ``SCHEDULES``; ``early`` is that of ``parenvs.tasks.pipeline.formulas``.
    """
    stages, chunks = seconds.forward.shape
    if schedule == "early":
        return _early(seconds, micro_batches)
    is_split, rounds = schedule in SPLIT, int(rounds_of(schedule, micro_batches))
    parts = [seconds.forward, seconds.backward]
    if is_split:
        assert seconds.weights is not None, "the weights' part of backward passes"
        parts = [seconds.forward, seconds.backward - seconds.weights, seconds.weights]
    size = stages * chunks  # chunk c of stage s is number c S + s
    duration = [x.T.ravel().tolist() for x in parts]
    transfer = seconds.transfer.T.ravel().tolist()
    start = [[[0.0] * rounds for _ in range(size)] for _ in parts]
    end = [[[0.0] * rounds for _ in range(size)] for _ in parts]
    # When what a pass waits for is there; None: not yet.
    ready: list[list[list[float | None]]] = [[[None] * rounds for _ in range(size)] for _ in parts]
    behind, link_of = [-1] * size, [-1] * size  # the next of a chain, and the link to it
    ahead = [-1] * size
    for chain in chains(schedule, stages, chunks):
        numbers = [chunk * stages + stage for stage, chunk in chain]
        ready[FORWARD][numbers[0]] = [0.0] * rounds
        for one, other in pairwise(numbers):
            behind[one], ahead[other] = other, one
            near = min(one % stages, other % stages) if is_split else one % stages
            link_of[one] = near if one % stages != other % stages else -1
    if is_split:
        ready[WEIGHT] = [[0.0] * rounds for _ in range(size)]

    def ordered(stage: int) -> Iterator[Operation]:
        for members in operations(schedule, stage, stages, rounds, chunks):
            yield tuple((kind, chunk * stages + stage, m) for kind, chunk, m in members)

    orders = [ordered(stage) for stage in range(stages)]
    waiting = [next(own, None) for own in orders]
    free_at, link_free = [0.0] * stages, [0.0] * stages
    is_busy = [False] * stages
    events: list[tuple[float, int, Operation]] = []  # end, stage, passes

    def begin(stage: int) -> None:
        """Begin the next operation of a stage, if all that it waits for is known."""
        if is_busy[stage] or (following := waiting[stage]) is None:
            return
        begins = free_at[stage]
        for kind, number, m in following:
            there = ready[kind][number][m]
            if there is None:
                return
            begins = max(begins, there)
        ends = begins
        for kind, number, m in following:
            start[kind][number][m] = ends
            ends += duration[kind][number]
            end[kind][number][m] = ends
        is_busy[stage], free_at[stage] = True, ends
        waiting[stage] = next(orders[stage], None)
        heapq.heappush(events, (ends, stage, following))

    for stage in range(stages):
        begin(stage)
    while events:
        now, stage, members = heapq.heappop(events)
        is_busy[stage] = False
        for kind, number, m in members:
            following = behind[number] if kind == FORWARD else ahead[number]
            if kind == FORWARD and following < 0:
                ready[BACKWARD][number][m] = now
            elif kind != WEIGHT and following >= 0:
                boundary = number if kind == FORWARD else following
                link, arrival = link_of[boundary], now
                if link >= 0:
                    arrival = max(now, link_free[link]) + transfer[boundary]
                    link_free[link] = arrival if transfer[boundary] else link_free[link]
                ready[kind][following][m] = arrival
                begin(following % stages)
        begin(stage)

    def table(nested: list[list[list[float]]]) -> np.ndarray:
        return np.array(nested).reshape(-1, chunks, stages, rounds).transpose(0, 2, 1, 3)

    return HybridTimetable(table(start), table(end), rounds if schedule == TWO_WAYS else 0)


def _early(seconds: ChunkSeconds, micro_batches: int) -> HybridTimetable:
    """Simulate one chunk a stage as the pure pipeline task does, links as stages of their own."""
    forward, backward, link = (x[:, 0] for x in seconds[:3])
    there, back = (pure.interleaved(x, link[:-1]) for x in (forward, backward))
    times = StageTimes(there, back, np.zeros_like(there))
    table = simulate_row(times, micro_batches)
    start, end = (x[::2].transpose(1, 0, 2)[:, :, None] for x in (table.start, table.end))
    return HybridTimetable(start, end)
