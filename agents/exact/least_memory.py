"""The plan whose fullest stage needs the least memory: says how far a problem is from fitting."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parenvs.pipeline import formulas
from parenvs.pipeline.cuts import Cuts, CutSpace
from parenvs.pipeline.problem import Pipeline, check_stages
from parenvs.pipeline.ranges import RangeTable

_BYTES = 0.5
"""Bytes below which two plans need the same memory."""


class LeastExcess(NamedTuple):
    """A plan whose fullest stage needs the least memory.

    Attributes:
        cuts: (S-1,) int64.
        device_cuts: (S-1,) int64.
        excess_bytes: what its fullest stage needs beyond the memory limit; <= 0 fits.
    """

    cuts: np.ndarray
    device_cuts: np.ndarray
    excess_bytes: float


def least_excess_pruned(space: CutSpace) -> LeastExcess:
    """The plan of ``space`` whose fullest stage needs the least memory, exactly.

    Goes suffix by suffix: a candidate's value is the fullest stage of the best suffix from it on.
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
    return LeastExcess(cuts, device_cuts, float(pipeline.excess_bytes(cuts, device_cuts)))


def least_excess(pipeline: Pipeline) -> LeastExcess:
    """The plan over all pivots and device cuts whose fullest stage needs the least memory.

    Bisects the memory: each test finds a plan within it or proves that there is none, so that the
    result is exact to half a byte.

    Raises:
        InfeasibleError: more stages than variables or devices.
    """
    check_stages(pipeline)
    stages = pipeline.stages
    # The stages together hold all parameters.
    weights = formulas.weight_bytes(float(pipeline.parameter_sum[-1]), pipeline.copies)
    low = weights / stages * (1 - 1e-12)
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
    return LeastExcess(*best, high - pipeline.memory_limit)


def plan_within(pipeline: Pipeline, stages: int, limit: float) -> Cuts | None:
    """A plan with no stage above ``limit`` bytes, or None if there is none; exact.

    ``need[p]`` is the least number of devices on which k stages hold the pivots from p on; more
    devices never hurt. A stage from p on over r devices may end at any pivot up to its reach.
    """
    n, devices = len(pipeline.profile), pipeline.cluster.devices
    variables = pipeline.variable_sum
    weights = formulas.weight_bytes(pipeline.parameter_sum, pipeline.copies)
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
        least_need = RangeTable(need)
        for group in range(1, devices - stages + 2):
            reach = _reach(pipeline, p, group, k, limit)
            some = np.flatnonzero(after <= reach)
            end = least_need.place(after[some], reach[some] + 1)
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


def _unroll(pipeline: Pipeline, ends: list[np.ndarray], limit: float) -> Cuts:
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
