"""Proven optima of the closed-form pipeline length, over a pruned space or over all plans.

Both planners run the label search of ``parenvs.agents.exact.label_search``. A problem without a
plan that fits the memory ends in an ``InfeasibleError`` that says by how many bytes the best plan
misses.
"""

from __future__ import annotations

import time

import numpy as np

from parenvs.agents.answer import PipelineAnswer
from parenvs.agents.exact.bounds import SLACK
from parenvs.agents.exact.label_search import LabelSearch, Targets
from parenvs.agents.exact.least_memory import least_excess, least_excess_pruned, plan_within
from parenvs.errors import InfeasibleError
from parenvs.pipeline.cuts import Cuts, CutSpace
from parenvs.pipeline.points import coarse_pivots, distinct_pivots
from parenvs.pipeline.problem import Pipeline, check_stages

_COARSE = (24, 96, 320)  # points of the ever finer chains that give the incumbent
_COARSE_SECONDS = (2.0, 5.0, 10.0)
_MANY = 200  # pivots from which the better bounds repay their cost
_GRID = 200_000  # plans of one step of the local search


def exact_pruned(space: CutSpace) -> PipelineAnswer:
    """The shortest plan that ``space`` admits and that fits the memory, with proof.

    Raises:
        InfeasibleError: no plan of the space fits; says how many bytes the best one lacks.
    """
    begin = time.perf_counter()
    search = LabelSearch(space.pipeline, space.stages, pruned_targets(space))
    search.run()
    if search.best is None:
        raise _infeasible(space.pipeline, space.stages, least_excess_pruned(space).excess_bytes)
    return _answer(space.pipeline, search.best, "exact-pruned", search.evaluations, begin)


def pruned_targets(space: CutSpace) -> Targets:
    """Where suffixes may start so that exactly the plans of ``CutSpace.legal`` are built."""
    groups = {
        (k, int(e)): space.pivots[space.allowed[space.stages - 1 - k] & (space.devices == e)]
        for k in range(1, space.stages)
        for e in np.unique(space.devices)
    }
    nothing = np.zeros(0, dtype=np.int64)
    return lambda k, e: groups.get((k, e), nothing)


def exact_full(
    pipeline: Pipeline,
    incumbent: PipelineAnswer | None = None,
    time_limit: float | None = None,
) -> PipelineAnswer:
    """The shortest plan over all pivots and all device cuts that fits the memory.

    Args:
        pipeline: the problem.
        incumbent: a plan to start from; one that breaks the memory is ignored.
        time_limit: seconds after which the best plan found is returned without proof
            (``status="feasible"``, with a valid ``bound``); the time it takes to find a first plan
            that fits is not limited.

    Raises:
        InfeasibleError: more stages than variables or devices, or no plan fits the memory; says
            how many bytes the best one lacks.
    """
    begin = time.perf_counter()
    deadline = np.inf if time_limit is None else begin + time_limit
    check_stages(pipeline)
    stages = pipeline.stages
    pivots = distinct_pivots(pipeline)
    best = usable(pipeline, stages, incumbent)
    evaluations = 0
    for points, seconds in zip(_COARSE, _COARSE_SECONDS, strict=True):
        if points >= len(pivots):
            break
        some = coarse_pivots(pipeline, pivots, points)
        until = min(deadline, time.perf_counter() + seconds)
        search = _search(pipeline, stages, some, best, until)
        evaluations += search.evaluations
        best = search.best if search.best is not None else best
        if best is not None:
            best = improve(pipeline, best, deadline=deadline)
    if best is None:
        best = plan_within(pipeline, stages, pipeline.memory_limit)
        if best is None:
            raise _infeasible(pipeline, stages, least_excess(pipeline).excess_bytes)
        best = improve(pipeline, best, deadline=deadline)
    search = _search(pipeline, stages, pivots, best, deadline)
    best = search.best if search.best is not None else best
    evaluations += search.evaluations
    proven = search.bound >= search.upper
    bound = None if proven else max(search.bound, pipeline.bubble_free)
    return _answer(pipeline, best, "exact-full", evaluations, begin, bound)


def improve(
    pipeline: Pipeline,
    plan: Cuts,
    rounds: int = 8,
    deadline: float = np.inf,
    pivots: np.ndarray | None = None,
    devices: np.ndarray | None = None,
) -> Cuts:
    """Local search: move one pivot and its device cut at a time while the plan gets shorter.

    ``pivots`` and ``devices``, ascending, are where cuts may move to; anywhere if left out.
    """
    cuts, device_cuts = plan
    if pivots is None:
        pivots = np.arange(len(pipeline.profile))
    if devices is None:
        devices = np.arange(pipeline.cluster.devices)
    best = float(pipeline.length(cuts, device_cuts))
    variables = pipeline.variable_sum
    ends = np.concatenate([[0], cuts, [len(pipeline.profile)]])
    edges = np.concatenate([[0], device_cuts, [pipeline.cluster.devices]])
    for _ in range(rounds):
        before = best
        for k in range(1, len(ends) - 1):
            if time.perf_counter() > deadline:
                break
            p = pivots[(pivots > ends[k - 1]) & (pivots < ends[k + 1])]
            p = p[(variables[p] > variables[ends[k - 1]]) & (variables[ends[k + 1]] > variables[p])]
            d = devices[(devices > edges[k - 1]) & (devices < edges[k + 1])]
            near = np.argsort(np.abs(p - ends[k]), kind="stable")[: max(_GRID // len(d), 1)]
            p, d = (x.ravel() for x in np.meshgrid(p[near], d))
            plans, groups = np.tile(ends[1:-1], (len(p), 1)), np.tile(edges[1:-1], (len(p), 1))
            plans[:, k - 1], groups[:, k - 1] = p, d
            length = pipeline.length(plans, groups)
            better = np.flatnonzero(length < best * (1 - SLACK))
            better = better[pipeline.excess_bytes(plans[better], groups[better]) <= 0]
            if better.size:
                i = better[length[better].argmin()]
                best, ends[k], edges[k] = float(length[i]), p[i], d[i]
        if best >= before:
            break
    return ends[1:-1], edges[1:-1]


def usable(pipeline: Pipeline, stages: int, incumbent: PipelineAnswer | None) -> Cuts | None:
    """The incumbent's plan if it is legal and fits the memory."""
    if incumbent is None or len(incumbent.cuts) != stages - 1:
        return None
    cuts, device_cuts = np.asarray(incumbent.cuts), np.asarray(incumbent.device_cuts)
    ends = np.concatenate([[0], cuts, [len(pipeline.profile)]])
    edges = np.concatenate([[0], device_cuts, [pipeline.cluster.devices]])
    legal = (np.diff(ends) > 0).all() and (np.diff(edges) > 0).all()
    legal = legal and (np.diff(pipeline.variable_sum[ends]) > 0).all()
    return (cuts, device_cuts) if legal and pipeline.excess_bytes(cuts, device_cuts) <= 0 else None


def _search(
    pipeline: Pipeline,
    stages: int,
    pivots: np.ndarray,
    best: Cuts | None,
    deadline: float,
) -> LabelSearch:
    upper = np.inf if best is None else float(pipeline.length(*best))
    many = pivots if len(pivots) >= _MANY else None
    search = LabelSearch(pipeline, stages, lambda k, e: pivots, upper, deadline, many)
    search.run()
    return search


def _answer(
    pipeline: Pipeline,
    plan: Cuts,
    method: str,
    evaluations: int,
    begin: float,
    bound: float | None = None,
) -> PipelineAnswer:
    """The plan as an answer; without a bound it is proven."""
    cuts, device_cuts = (np.asarray(x, dtype=np.int64) for x in plan)
    length = float(pipeline.length(cuts, device_cuts))
    return PipelineAnswer(
        pipeline,
        cuts,
        device_cuts,
        length,
        method=method,
        proven=bound is None,
        bound=length if bound is None else min(bound, length),
        evaluations=evaluations,
        seconds=time.perf_counter() - begin,
    )


def _infeasible(pipeline: Pipeline, stages: int, excess: float) -> InfeasibleError:
    return InfeasibleError(
        f"{pipeline.profile.name} on {pipeline.cluster} with {stages} stages: no plan fits the "
        f"memory; the best one needs {excess:,.0f} bytes more than the "
        f"{pipeline.memory_limit:,.0f} allowed on its fullest stage"
    )
