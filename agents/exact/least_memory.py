"""Minima over ranges of an array, for dynamic programmes over the pivots of a chain.

JOINED: The plan whose fullest stage needs the least memory: says how far a problem is from fitting.
"""

from __future__ import annotations

import numpy as np

from parenvs.pipeline.cuts import CutSpace
from parenvs.pipeline.problem import Pipeline, check_stages


class RangeMinimum:
    """Where the least of ``values[first:end]`` is, for many ranges at once."""

    def __init__(self, values: np.ndarray) -> None:
        """Prepare ``values``, shape (n,), in O(n log n)."""
        self.values = values
        # Row j holds where the least of 2**j consecutive values is.
        rows = [np.arange(len(values))]
        while (half := 1 << (len(rows) - 1)) < len(values):
            left = rows[-1]
            right = np.append(left[half:], np.full(min(half, len(left)), left[-1]))
            rows.append(np.where(values[right] < values[left], right, left))
        self._table = np.stack(rows)

    def argmin(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Index of the least value of each range ``[first, end)``; ``first < end``."""
        level = np.frexp(end - first)[1] - 1
        left, right = self._table[level, first], self._table[level, end - (1 << level)]
        return np.where(self.values[right] < self.values[left], right, left)


def least_of_worse(
    have: np.ndarray, at: np.ndarray, to: np.ndarray, count: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best last step of plans that are as slow as their slowest step.

    For each target t, the least over ``i < count[t]`` of ``max(have[i], to[t] - at[i])``.

    Args:
        have: (m,) value of the plans up to place i.
        at: (m,) position of place i, ascending.
        to: (t,) position of each target.
        count: (t,) number of places that a target may be reached from.

    Returns:
        (t,) values, infinite where count is 0, and (t,) the places i.
    """
    value, place = np.full(len(to), np.inf), np.zeros(len(to), dtype=np.int64)
    some = np.flatnonzero(count > 0)
    if not some.size:
        return value, place
    to, count, least = to[some], count[some], RangeMinimum(have)
    # From later places the step is shorter, but fewer plans are left to choose from: the best is
    # where the two cross, or one place before.
    low, high = np.zeros_like(count), count - 1
    while (open_ := low < high).any():
        middle = (low + high) // 2
        crossed = have[least.argmin(middle, count)] >= to - at[middle]
        high = np.where(open_ & crossed, middle, high)
        low = np.where(open_ & ~crossed, middle + 1, low)
    best = least.argmin(low, count)
    before = least.argmin(np.maximum(low - 1, 0), count)
    worse, worse_before = (np.maximum(have[i], to - at[i]) for i in (best, before))
    value[some] = np.minimum(worse, worse_before)
    place[some] = np.where(worse_before < worse, before, best)
    return value, place


_BYTES = 0.5
"""Bytes below which two plans need the same memory."""
Plan = tuple[np.ndarray, np.ndarray, float]


def least_excess_pruned(space: CutSpace) -> Plan:
    """The plan of ``space`` whose fullest stage needs the least memory, exactly.

    Goes suffix by suffix: a candidate's value is the fullest stage of the best suffix from it on.

    Returns:
        ``(cuts, device_cuts, excess_bytes)``, the excess over the memory limit; <= 0 fits.
    """
    pipeline, stages, pivot, device = space.pipeline, space.stages, space.pivots, space.devices
    n, devices, variables = len(pipeline.profile), pipeline.cluster.devices, pipeline.variable_sum
    value = np.where(
        space.allowed[-1],
        pipeline.memory_of(pivot, np.full_like(pivot, n), devices - device, np.ones_like(pivot)),
        np.inf,
    )
    follow: list[np.ndarray] = []
    ahead = device[:, None] < device
    ahead &= variables[pivot][:, None] < variables[pivot]
    i, j = np.nonzero(ahead)
    for k in range(2, stages):
        full = np.full((len(pivot), len(pivot)), np.inf)
        needs = pipeline.memory_of(pivot[i], pivot[j], device[j] - device[i], np.full_like(i, k))
        full[i, j] = np.maximum(needs, value[j])
        follow.append(full.argmin(axis=1))
        value = np.where(space.allowed[stages - 1 - k], full.min(axis=1), np.inf)
    legal = (variables[pivot] > 0) & np.isfinite(value)
    first = pivot[legal]
    needs = pipeline.memory_of(
        np.zeros_like(first), first, device[legal], np.full_like(first, stages)
    )
    value[legal] = np.maximum(needs, value[legal])
    chosen = [int(np.where(legal, value, np.inf).argmin())]
    for step in reversed(follow):
        chosen.append(int(step[chosen[-1]]))
    cuts, device_cuts = space.plan(chosen)
    return cuts, device_cuts, float(pipeline.excess_bytes(cuts, device_cuts))


def least_excess(pipeline: Pipeline) -> Plan:
    """The plan over all pivots and device cuts whose fullest stage needs the least memory.

    Bisects the memory: each test finds a plan within it or proves that there is none, so that the
    result is exact to half a byte.

    Returns:
        ``(cuts, device_cuts, excess_bytes)``, the excess over the memory limit; <= 0 fits.

    Raises:
        InfeasibleError: more stages than variables or devices.
    """
    check_stages(pipeline)
    stages = pipeline.stages
    # The stages together hold all parameters.
    low = pipeline.copies * float(pipeline.parameter_sum[-1]) / stages * (1 - 1e-12)
    probe, best = max(low, 1.0), None
    while best is None:
        best = plan_within(pipeline, stages, probe)
        low, probe = (low, probe) if best else (probe, 2 * probe)
    high = float(pipeline.stage_memory(*best).max())
    while high - low > _BYTES:
        plan = plan_within(pipeline, stages, (low + high) / 2)
        if plan is None:
            low = (low + high) / 2
        else:
            best, high = plan, float(pipeline.stage_memory(*plan).max())
    return *best, high - pipeline.memory_limit


def plan_within(
    pipeline: Pipeline, stages: int, limit: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """A plan with no stage above ``limit`` bytes, or None if there is none; exact.

    ``need[p]`` is the least number of devices on which k stages hold the pivots from p on; more
    devices never hurt. A stage from p on over r devices may end at any pivot up to its reach.
    """
    n, devices = len(pipeline.profile), pipeline.cluster.devices
    variables, weights = pipeline.variable_sum, pipeline.copies * pipeline.parameter_sum
    most = limit * (1 + 1e-12)
    need = np.full(n + 1, devices + 1)
    need[n] = 0
    ends: list[np.ndarray] = []
    for k in range(1, stages + 1):
        # Whatever the cuts, the stages before p and those behind hold all parameters once.
        ok = (weights[-1] - weights[:-1] <= k * most) & (weights[:-1] <= (stages - k) * most)
        p = np.flatnonzero(ok) if k < stages else np.zeros(1, dtype=np.int64)
        after = np.searchsorted(variables, variables[p], side="right")  # first end with a variable
        least, chosen = np.full(len(p), devices + 1), np.zeros(n + 1, dtype=np.int64)
        needs = RangeMinimum(need)
        for group in range(1, devices - stages + 2):
            reach = _reach(pipeline, p, group, k, limit)
            some = np.flatnonzero(after <= reach)
            end = needs.argmin(after[some], reach[some] + 1)
            total = need[end] + group
            better = total < least[some]
            least[some[better]], chosen[p[some[better]]] = total[better], end[better]
        need = np.full(n + 1, devices + 1)
        need[p] = least
        ends.append(chosen)
        if need.min() > devices:
            return None
    if need[0] > devices:
        return None
    return _unroll(pipeline, ends, limit)


def _unroll(
    pipeline: Pipeline, ends: list[np.ndarray], limit: float
) -> tuple[np.ndarray, np.ndarray]:
    """The plan along the chosen ends; devices that nobody needs go to the last stage."""
    bounds, groups = [0], []
    for k in range(len(ends), 0, -1):
        first, end = bounds[-1], int(ends[k - 1][bounds[-1]])
        sizes = np.arange(1, pipeline.cluster.devices + 1)
        place = np.full_like(sizes, first)
        needs = pipeline.memory_of(place, np.full_like(place, end), sizes, np.full_like(place, k))
        groups.append(int(sizes[needs <= limit][0]))
        bounds.append(end)
    return np.array(bounds[1:-1]), np.cumsum(groups[:-1])


def _reach(pipeline: Pipeline, p: np.ndarray, group: int, k: int, limit: float) -> np.ndarray:
    """The last end of a stage from each p on that fits; p itself if none does."""
    n = len(pipeline.profile)
    end = p.copy()
    step = 1 << (n.bit_length() - 1)
    while step:
        further = np.minimum(end + step, n)
        needs = pipeline.memory_of(p, further, np.full_like(p, group), np.full_like(p, k))
        ok = (end + step <= n) & (needs <= limit)
        end[ok] = further[ok]
        step //= 2
    return end
