"""What a pipeline plan costs: every formula of seconds and bytes, once.

A plan cuts a chain of pivots into S stages and the devices into S groups of consecutive ones. The
2S-1 resources of a pipeline stand in a row: stages compute at the even places, the transfers
between them stand at the odd ones, so that communication overlaps computation. A training step
sends M micro-batches through them (arXiv 2007.04069, sections 3.5 and 4.4). Its length is
``core + tail``:

    x = F + B                                          forward and backward seconds of a resource
    core = max_j [ sum_{s<=j} x_s + (M-1) x_j ]        the arg max is the pivot stage
    tail = max( 0, max_s [ AR_s - sum_{a<s} B_a ] )    what backward passes leave of an all-reduce

The functions are pure. They take NumPy arrays, elementwise over plans;
where there is an axis over stages, it is the first. Units are seconds, bytes and bytes per second.
The network's part (which devices share a server, what a group's bandwidth is, what gradients cost
to synchronize) is in ``parenvs.cluster``, as partitions pay for it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from parenvs.cluster import sync_seconds
from parenvs.compiled import Array, Figure, running_sums


class StageSeconds(NamedTuple):
    """Seconds of every resource of plans.

    Attributes:
        forward: (2S-1, ...) of one micro-batch.
        backward: (2S-1, ...) of one micro-batch.
        all_reduce: (S, ...) of one step; transfers have none.
    """

    forward: Figure
    backward: Figure
    all_reduce: Figure


STEP_SECONDS = 0.0
"""Seconds of a step beside core and tail, the same for all plans."""


def compose(core: Figure, tail: Figure) -> Figure:
    """Return the seconds of a step: its only composition, for reports, solvers and bounds."""
    return core + tail + STEP_SECONDS


def core_budget(seconds: Figure) -> Figure:
    """Return the most core plus tail of a step of so many seconds, the inverse of ``compose``."""
    return seconds - STEP_SECONDS


def compute_seconds(work: Figure, group: Figure) -> Figure:
    """Seconds of a stage: the seconds that its work takes one device, over its devices."""
    return work / group


def transfer_seconds(crossing: Figure, bandwidth: Figure) -> Figure:
    """Seconds in which the bytes that cross a cut pass a link, one direction."""
    return crossing / bandwidth


def stage_seconds(
    forward: Figure,
    backward: Figure,
    parameters: Figure,
    crossing: Figure,
    group: Figure,
    group_bandwidth: Figure,
    link_bandwidth: Figure,
    sync: str = "allreduce",
    again: Figure = 0.0,
    exchange: Figure = 0.0,
) -> StageSeconds:
    """Seconds of every resource of plans.

    Args:
        forward: (S+1, ...) forward seconds on one device before each boundary of the stages.
        backward: (S+1, ...) backward seconds likewise.
        parameters: (S+1, ...) bytes of the parameters before each boundary.
        crossing: (S-1, ...) bytes that cross each boundary inside the chain.
        group: (S, ...) devices of each stage.
        group_bandwidth: (S, ...) bandwidth of the devices of each stage.
        link_bandwidth: (S-1, ...) bandwidth of the devices of each two neighboring stages.
        sync: how gradients are synchronized, see ``parenvs.cluster.sync_seconds``.
        again: (S, ...) bytes of parameters that a stage holds and an earlier pivot counts.
        exchange: (S, ...) seconds in which a stage sums shared gradients with other stages.
    """
    link = transfer_seconds(crossing, link_bandwidth)
    return StageSeconds(
        interleaved(compute_seconds(forward[1:] - forward[:-1], group), link),
        interleaved(compute_seconds(backward[1:] - backward[:-1], group), link),
        sync_seconds(parameters[1:] - parameters[:-1] + again, group, group_bandwidth, sync)
        + exchange,
    )


def exchange_seconds(shared: Figure, bandwidth: Figure) -> Figure:
    """Seconds to sum the gradients of tied variables with another stage that holds them.

    A ring over two devices: ``2 W (2 - 1) / (2 bw)``.
    """
    return shared / bandwidth


def interleaved(stages: Figure, transfers: Figure) -> Figure:
    """(2S-1, ...) of (S, ...) figures of stages and (S-1, ...) of the transfers between them."""
    row = np.empty((2 * stages.shape[0] - 1, *stages.shape[1:]), stages.dtype)
    row[::2], row[1::2] = stages, transfers
    return row


def through(passed: Figure, seconds: Figure, micro_batches: Figure) -> Figure:
    """Seconds until M micro-batches have passed a resource and, once, those in front of it.

    Args:
        passed: forward plus backward seconds up to this resource, itself included.
        seconds: its own forward plus backward seconds.
        micro_batches: M.
    """
    return passed + (micro_batches - 1) * seconds


def core_and_tail(
    seconds: Figure, backward: Figure, all_reduce: Figure, micro_batches: Figure
) -> tuple[Figure, Figure]:
    """The two parts of the length of a step, seconds, each (...).

    Args:
        seconds: (2S-1, ...) forward plus backward seconds of every resource.
        backward: (2S-1, ...) backward seconds alone.
        all_reduce: (S, ...) seconds of the stages' all-reduces.
        micro_batches: M, a number or (...).
    """
    core = core_of(running_sums(seconds), seconds, micro_batches)
    # Backward passes in front of a stage run after its own, while it reduces its gradients.
    return core, tail_of(all_reduce, (running_sums(backward) - backward)[::2])


def core_of(passed: Figure, seconds: Figure, micro_batches: Figure) -> Figure:
    """Seconds until the micro-batches have passed the resource that takes longest, (...).

    Args:
        passed: (resources, ...) seconds up to each resource, itself included.
        seconds: (resources, ...) its own.
        micro_batches: M, a number or (...).
    """
    # ``reduce`` has half the overhead of ``max``, which counts on few values.
    return np.maximum.reduce(through(passed, seconds, micro_batches))


def tail_of(all_reduce: Figure, hidden: Figure) -> Figure:
    """What backward passes leave of the longest collective of gradients, seconds, (...).

    Args:
        all_reduce: (S, ...) seconds of the stages' collectives.
        hidden: (S, ...) backward seconds of the stages in front of each.
    """
    return np.maximum(np.maximum.reduce(all_reduce - hidden), 0.0)


def length(seconds: StageSeconds, micro_batches: Figure) -> Figure:
    """Seconds of one training step, (...): core plus tail."""
    both = seconds.forward + seconds.backward
    return compose(*core_and_tail(both, seconds.backward, seconds.all_reduce, micro_batches))


def prepend_core(
    core: Any, seconds: Any, micro_batches: Any, maximum: Callable[[Any, Any], Any] = np.maximum
) -> Any:
    """Core of a suffix of plans with one more resource in front.

    ``core' = x + max((M-1) x, core)``: all resources behind wait for the first micro-batch, and no
    maximum changes by what is added to each of its terms.

    Args:
        core: of the resources behind; 0 where there are none.
        seconds: x, forward plus backward seconds of the resource in front.
        micro_batches: M.
        maximum: greater of two, elementwise; ``max`` for plain numbers.
    """
    largest = maximum((micro_batches - 1) * seconds, core)
    # In place: label searches do this to millions of labels.
    largest += seconds
    return largest


def prepend_tail(
    tail: Any, backward: Any, all_reduce: Any, maximum: Callable[[Any, Any], Any] = np.maximum
) -> Any:
    """Tail of a suffix with one more resource in front: ``tail' = max(AR, tail - B)``.

    The tail of a whole plan is at least 0; that of a suffix is bounded once it is complete.

    Args:
        tail: of the resources behind.
        backward: B, backward seconds of the resource in front.
        all_reduce: AR, seconds of its all-reduce; 0 for a transfer.
        maximum: greater of two, elementwise; ``max`` for plain numbers.
    """
    return maximum(tail - backward, all_reduce)


def value(length_seconds: Any, bubble_free_seconds: Any) -> Any:
    """``1/L`` of plans, L in units of the seconds of a step without bubbles: at most 1."""
    return bubble_free_seconds / length_seconds


def in_flight(stages_left: Figure, micro_batches: Figure) -> Figure:
    """K, micro-batches whose activations a stage holds: ``min(2 k - 1, M)``.

    Args:
        stages_left: k, stages from this one to the last, itself included.
        micro_batches: M.
    """
    return np.minimum(2 * stages_left - 1, micro_batches)


def weight_bytes(parameters: Figure, copies: Figure, frozen: Figure = 0.0) -> Figure:
    """Bytes that each device of a stage holds of its weights, gradients included.

    Args:
        parameters: bytes of its variables.
        copies: copies of them, see ``parenvs.tasks.pipeline.plan.COPIES``.
        frozen: bytes of its frozen weights, of which there is one copy.
    """
    return copies * parameters + frozen


def recomputed_bytes(largest: Figure, entering: Figure, flight: Figure) -> Figure:
    """Bytes of activations that a stage holds which recomputes them in the backward pass.

    Args:
        largest: bytes of the largest cut inside the stage, that at its end included.
        entering: bytes that enter the stage, of one micro-batch.
        flight: K.
    """
    return largest + flight * entering


def kept_bytes(resident: Figure, flight: Figure) -> Figure:
    """Bytes of activations that a stage holds which keeps all that are ``resident``."""
    return flight * resident


def stage_bytes(weights: Figure, activations: Figure, group: Figure) -> Figure:
    """Bytes on each device of a stage: its weights, and its share of the activations."""
    return weights + activations / group


FORWARD, BACKWARD = 0, 1
"""Kinds of passes: index of ``Timetable.start`` and ``Timetable.end`` along axis -2."""
Wave = tuple[int, Array, Array]
"""Kind, resources and micro-batches of passes at one time."""
_CACHED = 10_000
"""Schedules of at most so many resources times micro-batches are kept."""


@dataclass(frozen=True)
class StageTimes:
    """Seconds of each stage for one micro-batch, and of its all-reduce for one step.

    Attributes:
        forward: (..., 2S-1) float64; odd indices are transfers.
        backward: (..., 2S-1) float64; odd indices are transfers.
        all_reduce: (..., 2S-1) float64, zero for transfers and stages of one device.
    """

    forward: Array
    backward: Array
    all_reduce: Array


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

    start: Array
    end: Array
    reduce_start: Array
    reduce_end: Array
    length: Array


def _waves(resources: int, micro_batches: int) -> Iterator[Wave]:
    """Yield passes that wait for none of each other, each after the passes it waits for.

    Each is a kind, resources, and the micro-batch that passes through each of them. The wave of a
    pass is its time in a schedule of equal passes: resource r begins with micro-batch m at r + m
    while it warms up, at r + 2m after that, and goes back at 2R - 1 - r + 2m.
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
def _cached_waves(resources: int, micro_batches: int) -> tuple[Wave, ...]:
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
    small = resources * micro_batches <= _CACHED
    for kind, rows, m in (_cached_waves if small else _waves)(resources, micro_batches):
        before = rows if kind == FORWARD else rows + 2
        begin = np.maximum(free_at[rows], ends[before, kind, m])
        start[rows, kind, m] = begin
        free_at[rows] = ends[rows + 1, kind, m] = begin + duration[kind][rows]
    end = ends[1:-1]
    plans_first = (*range(3, 3 + len(lead)), 0, 1, 2)
    start, end = start.transpose(plans_first), end.transpose(plans_first)
    reduce_start = end[..., BACKWARD, -1]
    reduce_end = reduce_start + times.all_reduce
    length = compose(reduce_end.max(axis=-1), 0.0)
    return Timetable(start, end, reduce_start, reduce_end, length)
