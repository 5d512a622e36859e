"""The plan whose fullest stage needs the least memory: how far a problem is from fitting."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.problem import Pipeline, check_split, check_stages
from parenvs.tasks.pipeline.profile import RangeTable
from parenvs.tasks.pipeline.spaces import Cuts, CutSpace

_TOLERANCE = 0.5
"""Bytes; plans that differ by less count as equal."""


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

    A dynamic programme over suffixes: ``fullest[c]`` is the memory of the fullest stage, in bytes,
    of the best suffix of k stages that starts at candidate c.
    """
    pipeline, stages, pivot, device = space.pipeline, space.stages, space.pivots, space.devices
    n, devices, variables = len(pipeline.profile), pipeline.cluster.devices, pipeline.variable_sum
    fullest = np.where(
        space.allowed[-1] & pipeline.is_group[devices - device],
        pipeline.memory_of(pivot, np.full_like(pivot, n), devices - device, np.ones_like(pivot)),
        np.inf,
    )
    successors: list[np.ndarray] = []  # of each candidate, for suffixes of 2, 3, ... stages
    may_follow = device[:, None] < device
    may_follow &= variables[pivot][:, None] < variables[pivot]
    may_follow &= pipeline.is_group[np.maximum(device - device[:, None], 0)]
    i, j = np.nonzero(may_follow)
    for k in range(2, stages):
        pairs = np.full((len(pivot), len(pivot)), np.inf)
        stage = pipeline.memory_of(pivot[i], pivot[j], device[j] - device[i], np.full_like(i, k))
        pairs[i, j] = np.maximum(stage, fullest[j])
        successors.append(pairs.argmin(axis=1))
        fullest = np.where(space.allowed[stages - 1 - k], pairs.min(axis=1), np.inf)
    legal = (variables[pivot] > 0) & np.isfinite(fullest) & pipeline.is_group[device]
    first_cut = pivot[legal]
    first_stage = pipeline.memory_of(
        np.zeros_like(first_cut), first_cut, device[legal], np.full_like(first_cut, stages)
    )
    fullest[legal] = np.maximum(first_stage, fullest[legal])
    if not legal.any():  # the candidates allow no groups of whole samples
        nothing = np.zeros(0, dtype=np.int64)
        return LeastExcess(nothing, nothing, np.inf)
    chosen = [int(np.where(legal, fullest, np.inf).argmin())]
    for successor in reversed(successors):
        chosen.append(int(successor[chosen[-1]]))
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
    check_split(pipeline)
    stages = pipeline.stages
    # The stages together hold all parameters, so one of them holds an even share.
    weights = formulas.weight_bytes(float(pipeline.parameter_sum[-1]), pipeline.copies)
    low = weights / stages * (1 - 1e-12)  # no plan fits below
    probe, best = max(low, 1.0), None
    while best is None:
        best = plan_within(pipeline, stages, probe)
        low, probe = (low, probe) if best else (probe, 2 * probe)
    high = float(pipeline.stage_memory(*best).max())
    while high - low > _TOLERANCE:
        plan = plan_within(pipeline, stages, (low + high) / 2)
        if plan is None:
            low = (low + high) / 2
        else:
            best, high = plan, float(pipeline.stage_memory(*plan).max())
    return LeastExcess(*best, high - pipeline.memory_limit)


def plan_within(pipeline: Pipeline, stages: int, limit: float) -> Cuts | None:
    """A plan with no stage above ``limit`` bytes, or None if there is none; exact.

    A dynamic programme over suffixes: ``needed_devices[p]`` is the least number of devices on which
    k stages hold the pivots from p on; more devices never hurt. A stage from p on over ``group``
    devices may end at any pivot up to its reach.
    """
    if not pipeline.fractions:
        return _whole_within(pipeline, stages, limit)
    n, devices = len(pipeline.profile), pipeline.cluster.devices
    variables = pipeline.variable_sum
    weights = formulas.weight_bytes(pipeline.parameter_sum, pipeline.copies)
    weights_limit = limit * (1 + 1e-12)
    needed_devices = np.full(n + 1, devices + 1)  # more than there are where k stages cannot do it
    needed_devices[n] = 0
    ends: list[np.ndarray] = []
    for k in range(1, stages + 1):
        # Whatever the cuts, the stages before p and those behind hold all parameters once.
        legal = weights[-1] - weights[:-1] <= k * weights_limit
        legal &= weights[:-1] <= (stages - k) * weights_limit
        p = np.flatnonzero(legal) if k < stages else np.zeros(1, dtype=np.int64)
        first_end = np.searchsorted(variables, variables[p], side="right")  # with a variable
        fewest, end_of = np.full(len(p), devices + 1), np.zeros(n + 1, dtype=np.int64)
        devices_behind = RangeTable(needed_devices)
        furthest = _reach(pipeline, p, devices - stages + 1, k, limit)
        rows = np.flatnonzero(first_end <= furthest)  # for which more devices may be of use
        for group in range(1, devices - stages + 2):
            if not rows.size:
                break
            reach = _reach(pipeline, p[rows], group, k, limit)
            legal = first_end[rows] <= reach
            row, last = rows[legal], reach[legal]
            end = devices_behind.place(first_end[row], last + 1)
            total = needed_devices[end] + group
            fewer = total < fewest[row]
            fewest[row[fewer]], end_of[p[row[fewer]]] = total[fewer], end[fewer]
            rows = rows[(reach < furthest[rows]) & (group + 1 < fewest[rows])]
        needed_devices = np.full(n + 1, devices + 1)
        needed_devices[p] = fewest
        ends.append(end_of)
        if needed_devices.min() > devices:
            return None
    if needed_devices[0] > devices:
        return None
    return _unroll(pipeline, ends, limit)


def _whole_within(pipeline: Pipeline, stages: int, limit: float) -> Cuts | None:
    """``plan_within`` where devices share no sample, so that more of them are not always allowed.

    ``ends[k - 1][d, p]`` is where the first of k stages that hold the pivots from p on, on exactly
    d devices, may end; 0 if they cannot.
    """
    n, devices = len(pipeline.profile), pipeline.cluster.devices
    variables, sizes = pipeline.variable_sum, np.flatnonzero(pipeline.is_group).tolist()
    fits = np.zeros((devices + 1, n + 1), dtype=np.bool_)
    fits[0, n] = True
    ends: list[np.ndarray] = []
    groups: list[np.ndarray] = []
    places = np.arange(n + 1)
    for k in range(1, stages + 1):
        p = np.arange(n) if k < stages else np.zeros(1, dtype=np.int64)
        first_end = np.minimum(np.searchsorted(variables, variables[p], side="right"), n)
        has_variable = variables[-1] > variables[p]
        # Of each place, the next one from which the stages behind can go on.
        following = np.where(fits, places, n + 1)
        following = np.minimum.accumulate(following[:, ::-1], axis=1)[:, ::-1]
        end_of, group_of = np.zeros((2, devices + 1, n + 1), dtype=np.int64)
        for group in sizes:
            reach = _reach(pipeline, p, group, k, limit)
            end = following[: devices + 1 - group, first_end]
            found = (end <= reach) & has_variable & (end_of[group:, p] == 0)
            row, column = np.nonzero(found)
            end_of[row + group, p[column]] = end[row, column]
            group_of[row + group, p[column]] = group
        fits = end_of > 0
        ends.append(end_of)
        groups.append(group_of)
    if not fits[devices, 0]:
        return None
    cuts, device_cuts, left = [0], [0], devices
    for k in range(stages, 0, -1):
        start = cuts[-1]
        cuts.append(int(ends[k - 1][left, start]))
        left -= int(groups[k - 1][left, start])
        device_cuts.append(devices - left)
    return np.array(cuts[1:-1]), np.array(device_cuts[1:-1])


def _unroll(pipeline: Pipeline, ends: list[np.ndarray], limit: float) -> Cuts:
    """The plan of the ends that ``plan_within`` chose.

    Each stage gets as few devices as it needs, the last one those that are left over.

    Args:
        pipeline: the problem.
        ends: of the k-th stage from the end, in row k - 1: (n+1,) its end for each first pivot.
        limit: bytes.
    """
    bounds, groups = [0], []
    for k in range(len(ends), 0, -1):
        end = int(ends[k - 1][bounds[-1]])
        sizes = np.arange(1, pipeline.cluster.devices + 1)
        first = np.full_like(sizes, bounds[-1])
        memory = pipeline.memory_of(first, np.full_like(sizes, end), sizes, np.full_like(sizes, k))
        groups.append(int(sizes[memory <= limit][0]))
        bounds.append(end)
    return np.array(bounds[1:-1]), np.cumsum(groups[:-1])


def _reach(pipeline: Pipeline, p: np.ndarray, group: int, k: int, limit: float) -> np.ndarray:
    """Of each p, the last end of a stage from p on that fits; p itself if none does.

    Bisects, as memory grows with the end.
    """
    n = len(pipeline.profile)
    end = p.copy()
    step = 1 << (n.bit_length() - 1)
    while step:
        further = np.minimum(end + step, n)
        memory = pipeline.memory_of(p, further, np.full_like(p, group), np.full_like(p, k))
        fits = (end + step <= n) & (memory <= limit)
        end[fits] = further[fits]
        step //= 2
    return end
