"""Simulates the 1F1B schedule wave by wave: a second opinion beside the closed form.

Compute stages and transfers are 2S-1 resources in a row, each busy with one micro-batch at a time
(links are half-duplex). The k-th resource from the end warms up with min(k, M) forward passes, then
alternates one backward pass and one forward pass, then drains. A forward pass waits for that of the
resource before it, a backward pass for that of the resource after it. The all-reduce of a stage
starts when its last backward pass ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parenvs.tasks.pipeline import formulas

FORWARD, BACKWARD = 0, 1
"""Kinds of passes: index of ``Timetable.start`` and ``Timetable.end`` along axis -2."""
Wave = tuple[int, np.ndarray, np.ndarray]
"""Kind, resources and micro-batches of passes at one time."""
_KEPT = 10_000
"""Schedules of at most so many resources times micro-batches are kept."""


@dataclass(frozen=True)
class StageTimes:
    """Seconds of each stage for one micro-batch, and of its all-reduce for one step.

    Attributes:
        forward: (..., 2S-1) float64; odd indices are transfers.
        backward: (..., 2S-1) float64; odd indices are transfers.
        all_reduce: (..., 2S-1) float64, zero for transfers and stages of one device.
    """

    forward: np.ndarray
    backward: np.ndarray
    all_reduce: np.ndarray

    def length(self, micro_batches: int) -> np.ndarray:
        """Return the closed-form seconds of one training step, shape (...)."""
        forward, backward, all_reduce = (
            np.moveaxis(row, -1, 0) for row in (self.forward, self.backward, self.all_reduce)
        )
        seconds = formulas.StageSeconds(forward, backward, all_reduce[::2])
        return formulas.length(seconds, micro_batches)


@dataclass(frozen=True)
class Timetable:
    """Times of the passes of each micro-batch through each resource, and of the all-reduces.

    Attributes:
        start: (..., 2S-1, 2, M) float64 seconds, starts of the passes; axis -2: forward, backward.
        end: (..., 2S-1, 2, M) float64 seconds, ends of the passes.
        reduce_start: (..., 2S-1) float64 seconds, start of each all-reduce.
        reduce_end: (..., 2S-1) float64 seconds, end of each all-reduce.
        length: (...) float64 seconds, end of the last all-reduce.
    """

    start: np.ndarray
    end: np.ndarray
    reduce_start: np.ndarray
    reduce_end: np.ndarray
    length: np.ndarray


def _waves(resources: int, micro_batches: int) -> Iterator[Wave]:
    """Yield passes that wait for none of each other, each after the passes it waits for.

    The wave of a pass is its time in a schedule of equal passes: resource r begins with micro-batch
    m at r + m while it warms up, at r + 2m after that, and goes back at 2R - 1 - r + 2m.

    Yields:
        The kind, the resources, and the micro-batch that passes through each of them.
    """
    last_resource, last = resources - 1, micro_batches - 1
    for wave in range(2 * (resources + micro_batches) - 2):
        warming = range(max(wave - last, 0), wave + 1) if wave < resources else range(0)
        # Among the resources of the wave's parity, those whose micro-batch there is.
        low = max(2 * resources - wave, wave - 2 * last, 0)
        steady = range(low + (wave - low) % 2, min(wave, last_resource) + 1, 2)
        low = max(2 * resources - 1 - wave, 0)
        high = min(2 * (last + resources) - 1 - wave, last_resource)
        back = range(low + (wave + 1 - low) % 2, high + 1, 2)
        for kind, spans, twice in (
            (FORWARD, warming, False), (FORWARD, steady, True), (BACKWARD, back, True),
        ):  # fmt: skip
            if len(spans):
                rows = np.asarray(spans)
                waited = wave - rows if kind == FORWARD else wave - 2 * resources + 1 + rows
                yield kind, rows, waited // 2 if twice else waited


@lru_cache(maxsize=64)
def _kept_waves(resources: int, micro_batches: int) -> tuple[Wave, ...]:
    """Return the waves of a small schedule, which are asked for again and again."""
    return tuple(_waves(resources, micro_batches))


def simulate(times: StageTimes, micro_batches: int) -> Timetable:
    """Simulate one training step of each plan.

    Args:
        times: seconds of the stages, arrays of shape (..., 2S-1).
        micro_batches: M.

    Returns:
        A ``Timetable`` whose arrays have the same leading shape.
    """
    resources = times.forward.shape[-1]
    lead = times.forward.shape[:-1]
    duration = (np.moveaxis(times.forward, -1, 0), np.moveaxis(times.backward, -1, 0))
    start = np.empty((resources, 2, micro_batches, *lead))
    # With a row of zeros at either side, the resources at the ends wait for nothing.
    ends = np.zeros((resources + 2, 2, micro_batches, *lead))
    free_at = np.zeros((resources, *lead))  # end of each resource's last pass so far
    small = resources * micro_batches <= _KEPT
    for kind, rows, m in (_kept_waves if small else _waves)(resources, micro_batches):
        before = rows if kind == FORWARD else rows + 2
        begin = np.maximum(free_at[rows], ends[before, kind, m])
        start[rows, kind, m] = begin
        free_at[rows] = ends[rows + 1, kind, m] = begin + duration[kind][rows]
    end = ends[1:-1]
    plans_first = (*range(3, 3 + len(lead)), 0, 1, 2)
    start, end = start.transpose(plans_first), end.transpose(plans_first)
    reduce_start = end[..., BACKWARD, -1]
    reduce_end = reduce_start + times.all_reduce
    return Timetable(start, end, reduce_start, reduce_end, reduce_end.max(axis=-1))
