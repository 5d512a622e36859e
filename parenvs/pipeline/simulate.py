"""Simulates the 1F1B schedule event by event: a second opinion beside the closed form.

Compute stages and transfers are 2S-1 resources in a row, each busy with one micro-batch at a time
(links are half-duplex). The k-th resource from the end warms up with min(k, M) forward passes, then
alternates one backward pass and one forward pass, then drains. A forward pass waits for that of the
resource before it, a backward pass for that of the resource after it. The all-reduce of a stage
starts when its last backward pass ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parenvs.pipeline import formulas

FORWARD, BACKWARD = 0, 1
"""Kinds of passes: index of ``Timetable.start`` and ``Timetable.end`` along axis -2."""


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


@lru_cache(maxsize=64)
def _order(resources: int, micro_batches: int) -> tuple[tuple[int, int, int], ...]:
    """Return (resource, kind, micro-batch) of all passes, each after the passes it waits for."""
    queues = []
    for resource in range(resources):
        warm_up = min(resources - resource, micro_batches)
        queue = [(FORWARD, m) for m in range(warm_up)]
        for m in range(micro_batches):
            queue.append((BACKWARD, m))
            if warm_up + m < micro_batches:
                queue.append((FORWARD, warm_up + m))
        queues.append(queue)
    position = [0] * resources  # of the next pass in each queue
    done: set[tuple[int, int, int]] = set()
    order: list[tuple[int, int, int]] = []
    while len(order) < 2 * resources * micro_batches:
        for resource, queue in enumerate(queues):
            while position[resource] < len(queue):
                kind, m = queue[position[resource]]
                neighbour = resource - 1 if kind == FORWARD else resource + 1
                if 0 <= neighbour < resources and (neighbour, kind, m) not in done:
                    break
                done.add((resource, kind, m))
                order.append((resource, kind, m))
                position[resource] += 1
    return tuple(order)


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
    end = np.empty_like(start)
    free_at = np.zeros((resources, *lead))  # end of each resource's last pass so far
    for resource, kind, m in _order(resources, micro_batches):
        neighbour = resource - 1 if kind == FORWARD else resource + 1
        begin = free_at[resource]
        if 0 <= neighbour < resources:
            begin = np.maximum(begin, end[neighbour, kind, m])
        start[resource, kind, m] = begin
        free_at[resource] = end[resource, kind, m] = begin + duration[kind][resource]
    plans_first = (*range(3, 3 + len(lead)), 0, 1, 2)
    start, end = start.transpose(plans_first), end.transpose(plans_first)
    reduce_start = end[..., BACKWARD, -1]
    reduce_end = reduce_start + times.all_reduce
    return Timetable(start, end, reduce_start, reduce_end, reduce_end.max(axis=-1))
