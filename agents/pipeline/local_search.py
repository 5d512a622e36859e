"""Local search around a plan, and the check that an incumbent may serve as its start."""

from __future__ import annotations

import time

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK
from parenvs.core.plan import Answer
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, check_split
from parenvs.tasks.pipeline.spaces import Cuts

GRID = 200_000
"""Most plans that a step of ``improve`` compares by default."""


def improve(
    pipeline: Pipeline,
    plan: Cuts,
    rounds: int = 8,
    deadline: float = np.inf,
    pivots: np.ndarray | None = None,
    devices: np.ndarray | None = None,
    max_points: int = GRID,
) -> Cuts:
    """Move one pivot and its device cut at a time while the plan gets shorter and fits the memory.

    Args:
        pipeline: the problem.
        plan: cuts and device cuts, (S-1,) each, to start from.
        rounds: largest number of passes over the cuts; a pass without success is the last.
        deadline: the search ends at this ``time.perf_counter()``.
        pivots: where cuts may move to, ascending (default: any pivot).
        devices: where device cuts may move to, ascending (default: any device).
        max_points: plans that a step compares at most, those with the nearest pivots.

    Returns:
        The shortest plan found; it is ``plan`` if no move makes that shorter.
    """
    cuts, device_cuts = plan
    if pivots is None:
        pivots = np.arange(len(pipeline.profile))
    if devices is None:
        devices = np.arange(pipeline.cluster.devices)
    best_length = float(pipeline.length(cuts, device_cuts))
    variables = pipeline.variable_sum
    ends = np.concatenate([[0], cuts, [len(pipeline.profile)]])
    edges = np.concatenate([[0], device_cuts, [pipeline.cluster.devices]])
    for _ in range(rounds):
        length_before = best_length
        for k in range(1, len(ends) - 1):
            if time.perf_counter() > deadline:
                break
            p = pivots[(pivots > ends[k - 1]) & (pivots < ends[k + 1])]
            p = p[(variables[p] > variables[ends[k - 1]]) & (variables[ends[k + 1]] > variables[p])]
            d = devices[(devices > edges[k - 1]) & (devices < edges[k + 1])]
            d = d[pipeline.is_group[d - edges[k - 1]] & pipeline.is_group[edges[k + 1] - d]]
            if not d.size:
                continue
            nearest = np.argsort(np.abs(p - ends[k]), kind="stable")[: max(max_points // len(d), 1)]
            p, d = (axis.ravel() for axis in np.meshgrid(p[nearest], d))
            plans, groups = np.tile(ends[1:-1], (len(p), 1)), np.tile(edges[1:-1], (len(p), 1))
            plans[:, k - 1], groups[:, k - 1] = p, d
            lengths = pipeline.length(plans, groups)
            shorter = np.flatnonzero(lengths < best_length * (1 - SLACK))
            shorter = shorter[pipeline.excess_bytes(plans[shorter], groups[shorter]) <= 0]
            if shorter.size:
                move = shorter[lengths[shorter].argmin()]
                best_length, ends[k], edges[k] = float(lengths[move]), p[move], d[move]
        if best_length >= length_before:
            break
    return ends[1:-1], edges[1:-1]


def whole(pipeline: Pipeline, plan: Cuts) -> Cuts:
    """Move device cuts as little as needed so that no devices share a sample, see ``is_group``.

    Where no stages of such groups fit the memory, they are moved as if it were no limit.

    Args:
        pipeline: the problem.
        plan: cuts and device cuts, (S-1,) each.

    Raises:
        InfeasibleError: no device cuts of so many stages are of whole samples.
    """
    cuts, device_cuts = (np.asarray(x, dtype=np.int64) for x in plan)
    edges = np.concatenate([[0], device_cuts, [pipeline.cluster.devices]])
    if pipeline.is_group[np.diff(edges)].all():
        return cuts, device_cuts
    stages, devices = len(cuts) + 1, pipeline.cluster.devices
    ends = np.concatenate([[0], cuts, [len(pipeline.profile)]])
    sizes = np.flatnonzero(pipeline.is_group)
    for limit in (pipeline.memory_limit, np.inf):
        away = np.full(devices + 1, np.inf)  # sum of distances, by the devices dealt out
        away[0] = 0.0
        chosen = np.zeros((stages, devices + 1), dtype=np.int64)
        for s in range(stages):
            first, end = np.full_like(sizes, ends[s]), np.full_like(sizes, ends[s + 1])
            needed = pipeline.memory_of(first, end, sizes, np.full_like(sizes, stages - s))
            after = np.full(devices + 1, np.inf)
            for size in sizes[needed <= limit].tolist():
                distance = np.abs(np.arange(size, devices + 1) - edges[s + 1])
                moved = away[: devices + 1 - size] + distance
                nearer = np.flatnonzero(moved < after[size:])
                after[size + nearer], chosen[s, size + nearer] = moved[nearer], size
            away = after
        if np.isfinite(away[devices]):
            bounds = [devices]
            for s in range(stages - 1, 0, -1):
                bounds.insert(0, int(bounds[0] - chosen[s, bounds[0]]))
            return cuts, np.array(bounds[:-1], dtype=np.int64)
    check_split(pipeline.with_stages(stages))
    raise AssertionError("unreachable")


def cuts_of(plan: PipelinePlan) -> Cuts:
    """(S-1,) int64 cuts and device cuts of a plan."""
    return np.array(plan.cuts, dtype=np.int64), np.array(plan.device_cuts, dtype=np.int64)


def usable(pipeline: Pipeline, stages: int, incumbent: Answer | None) -> Cuts | None:
    """The plan of ``incumbent`` if it has ``stages`` stages, is legal and fits the memory."""
    if incumbent is None or len(incumbent.plan.cuts) != stages - 1:
        return None
    cuts, device_cuts = cuts_of(incumbent.plan)
    ends = np.concatenate([[0], cuts, [len(pipeline.profile)]])
    edges = np.concatenate([[0], device_cuts, [pipeline.cluster.devices]])
    legal = (np.diff(ends) > 0).all() and (np.diff(edges) > 0).all()
    legal = legal and pipeline.is_group[np.diff(edges)].all()
    legal = legal and (np.diff(pipeline.variable_sum[ends]) > 0).all()
    return (cuts, device_cuts) if legal and pipeline.excess_bytes(cuts, device_cuts) <= 0 else None
