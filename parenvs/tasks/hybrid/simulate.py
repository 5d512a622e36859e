"""Simulates (interleaved) 1F1B pass by pass: a second opinion beside the closed form.

Every stage does its passes in a fixed order. Unit k of its forward passes is chunk ``(k % (S v)) //
S`` of micro-batch ``(k // (S v)) S + k % S``; backward passes take the chunks from the last to the
first. Stage s begins with ``2 (S - s - 1) + (v - 1) S`` forward passes (``S - s - 1`` with one
chunk), then alternates one forward and one backward pass, then drains (arXiv 2104.04473, section
2.2; Megatron-LM's order). Transfers that do not block pass a link between two neighbours one at a
time, in the order in which they are ready; between the last stage and the first there is a link of
its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parenvs.tasks.hybrid.plan import SCHEDULES
from parenvs.tasks.pipeline import formulas as pure
from parenvs.tasks.pipeline.simulate import BACKWARD, FORWARD, StageTimes
from parenvs.tasks.pipeline.simulate import simulate as simulate_row

KINDS = ("forward", "backward")
"""Words for ``FORWARD`` and ``BACKWARD``."""
Pass = tuple[int, int, int]
"""Kind, chunk and micro-batch of a pass."""


class ChunkSeconds(NamedTuple):
    """Seconds of one micro-batch, (S, v) each.

    Attributes:
        forward: through each chunk of each stage.
        backward: the same, backward.
        transfer: of one message between each chunk and the one behind it, where stages do not wait
            for it.
    """

    forward: np.ndarray
    backward: np.ndarray
    transfer: np.ndarray


class TimetableRow(NamedTuple):
    """One pass of a timetable.

    Attributes:
        stage: that does it.
        chunk: of the stage.
        micro_batch: that passes.
        kind: ``"forward"`` or ``"backward"``.
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
        start: (2, S, v, M) float64 seconds; the first axis is forward and backward.
        end: (2, S, v, M) float64 seconds.
    """

    start: np.ndarray
    end: np.ndarray

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
        _, stages, _, _ = self.start.shape
        for stage in range(stages):
            start, end = self.start[:, stage], self.end[:, stage]
            for flat in np.argsort(start, axis=None, kind="stable"):
                kind, chunk, micro_batch = np.unravel_index(flat, start.shape)
                yield TimetableRow(
                    stage,
                    int(chunk),
                    int(micro_batch),
                    KINDS[kind],
                    float(start[kind, chunk, micro_batch]),
                    float(end[kind, chunk, micro_batch]),
                )


def order(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Pass]:
    """Return the passes of a stage in the order in which it does them.

    Args:
        stage: s.
        stages: S.
        micro_batches: M, with several chunks a multiple of S.
        chunks: v.
    """
    left, total = stages - stage - 1, micro_batches * chunks
    warming = left if chunks == 1 else 2 * left + (chunks - 1) * stages
    warming = min(warming, total)
    turn = stages * chunks

    def unit(k: int, kind: int) -> Pass:
        chunk = k % turn // stages
        chunk = chunk if kind == FORWARD else chunks - 1 - chunk
        return kind, chunk, k // turn * stages + k % stages

    passes = [unit(k, FORWARD) for k in range(warming)]
    for k in range(total - warming):
        passes += (unit(warming + k, FORWARD), unit(k, BACKWARD))
    return passes + [unit(k, BACKWARD) for k in range(total - warming, total)]


def simulate(
    seconds: ChunkSeconds, micro_batches: int, schedule: str = SCHEDULES[0]
) -> HybridTimetable:
    """Simulate one training step.

    Args:
        seconds: of the chunks.
        micro_batches: M, with several chunks a multiple of S.
        schedule: one of ``SCHEDULES``; ``early`` is that of ``parenvs.tasks.pipeline.simulate``.
    """
    stages, chunks = seconds.forward.shape
    if schedule == "early":
        return _early(seconds, micro_batches)
    places = stages * chunks  # of the chain: chunk c of stage s is at c S + s
    duration = [x.T.ravel().tolist() for x in (seconds.forward, seconds.backward)]
    transfer = seconds.transfer.T.ravel().tolist()
    start = [[[0.0] * micro_batches for _ in range(places)] for _ in KINDS]
    end = [[[0.0] * micro_batches for _ in range(places)] for _ in KINDS]
    # When what a pass waits for is there; None: not yet.
    ready: list[list[list[float | None]]] = [
        [[None] * micro_batches for _ in range(places)] for _ in KINDS
    ]
    ready[FORWARD][0] = [0.0] * micro_batches
    orders = [iter(order(stage, stages, micro_batches, chunks)) for stage in range(stages)]
    waiting = [next(passes, None) for passes in orders]
    free_at, link_free = [0.0] * stages, [0.0] * stages
    is_busy = [False] * stages
    events: list[tuple[float, int, int, int, int]] = []  # end, stage, kind, place, micro-batch

    def begin(stage: int) -> None:
        """Begin the next pass of a stage, if all that it waits for is known."""
        if is_busy[stage] or (following := waiting[stage]) is None:
            return
        kind, chunk, m = following
        place = chunk * stages + stage
        there = ready[kind][place][m]
        if there is None:
            return
        begins = max(free_at[stage], there)
        ends = begins + duration[kind][place]
        start[kind][place][m], end[kind][place][m] = begins, ends
        is_busy[stage], free_at[stage] = True, ends
        waiting[stage] = next(orders[stage], None)
        heapq.heappush(events, (ends, stage, kind, place, m))

    for stage in range(stages):
        begin(stage)
    while events:
        now, stage, kind, place, m = heapq.heappop(events)
        is_busy[stage] = False
        if kind == FORWARD and place == places - 1:
            ready[BACKWARD][place][m] = now
        elif (following := place + (1 if kind == FORWARD else -1)) >= 0:
            boundary = min(place, following)
            link = boundary % stages
            arrival = max(now, link_free[link]) + transfer[boundary]
            link_free[link] = arrival if transfer[boundary] else link_free[link]
            ready[kind][following][m] = arrival
            begin(following % stages)
        begin(stage)

    def table(nested: list[list[list[float]]]) -> np.ndarray:
        shape = (2, chunks, stages, micro_batches)
        return np.array(nested).reshape(shape).transpose(0, 2, 1, 3)

    return HybridTimetable(table(start), table(end))


def _early(seconds: ChunkSeconds, micro_batches: int) -> HybridTimetable:
    """Simulate one chunk a stage as the pure pipeline task does, links as stages of their own."""
    forward, backward, link = (x[:, 0] for x in seconds)
    there, back = (pure.interleaved(x, link[:-1]) for x in (forward, backward))
    times = StageTimes(there, back, np.zeros_like(there))
    table = simulate_row(times, micro_batches)
    start, end = (x[::2].transpose(1, 0, 2)[:, :, None] for x in (table.start, table.end))
    return HybridTimetable(start, end)
