"""Proven optima of the closed-form pipeline length, over a pruned space or over all plans.

Both planners run the label search of ``parenvs.agents.pipeline.label_search``. ``exact_full`` first
finds an incumbent by a corridor search (``parenvs.agents.pipeline.corridor``). For a problem
without a plan that fits the memory, both raise an ``InfeasibleError`` that says how many bytes the
best plan lacks.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from parenvs.agents.pipeline import corridor
from parenvs.agents.pipeline.label_search import LabelSearch, Targets
from parenvs.agents.pipeline.least_memory import least_excess, least_excess_pruned, plan_within
from parenvs.agents.pipeline.local_search import usable
from parenvs.agents.pipeline.relaxation import lower_bound
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.problem import Pipeline, check_split, check_stages
from parenvs.tasks.pipeline.spaces import UNITS, Cuts, CutSpace, distinct_pivots, fitting

FEW = 24
"""Most pivots of chains on which a search over all of them needs no good plan to start from."""
BRIEF, BRIEF_SWEEPS, LONGER = corridor.Width(16, 3), 3, 12
"""The corridor of ``begun`` and its sweeps, and the sweeps where no graded plan fits."""
_SHARE = 0.5  # of the time limit: when the corridor search ends
_BOUND = 0.2  # of the time that is left to a search: what its bound may take at the end
_MANY = 200  # fewest pivots for which the bounds of ``Prefixes`` repay their cost


def exact_candidates(space: CutSpace) -> Answer:
    """The shortest plan that ``space`` admits and that fits the memory, with proof.

    Raises:
        InfeasibleError: no plan of the space fits; says how many bytes the best one lacks.
    """
    begin = time.perf_counter()
    search = LabelSearch(space.pipeline, space.stages, pruned_targets(space))
    search.run()
    if search.best is None:
        check_split(space.pipeline)
        raise infeasible(space.pipeline, least_excess_pruned(space).excess_bytes)
    answer = answer_of(space.pipeline, search.best, "exact", search.evaluations, begin)
    return replace(answer, among="pruned candidates")


def pruned_targets(space: CutSpace) -> Targets:
    """Pivots at which suffixes may start so that exactly the plans of ``CutSpace.legal`` arise."""
    groups = {
        (k, int(e)): space.pivots[space.allowed[space.stages - 1 - k] & (space.devices == e)]
        for k in range(1, space.stages)
        for e in np.unique(space.devices)
    }
    nothing = np.zeros(0, dtype=np.int64)
    return lambda k, e: groups.get((k, e), nothing)


def exact_full(
    pipeline: Pipeline,
    incumbent: Answer | None = None,
    time_limit: float | None = None,
) -> Answer:
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
    check_split(pipeline)
    stages = pipeline.stages
    if stages == 1:
        return one_stage(pipeline)
    pivots = distinct_pivots(pipeline)
    best, evaluations = usable(pipeline, stages, incumbent), 0
    if is_large(pipeline, pivots):
        end = np.inf if time_limit is None else begin + _SHARE * time_limit
        best = near_best(pipeline, best, deadline=end)
    elif best is None:
        best = within_memory(pipeline)
    if np.isfinite(deadline):  # of what is left, a part is the bound's
        deadline -= _BOUND * max(deadline - time.perf_counter(), 0.0)
    search = search_pivots(pipeline, pivots, _length(pipeline, best), deadline)
    best = search.best if search.best is not None else best
    evaluations += search.evaluations
    proven, bound = search.bound >= search.upper, None
    if not proven:
        end = np.inf if time_limit is None else begin + time_limit
        bound = max(search.bound, lower_bound(pipeline, _length(pipeline, best), end))
    return answer_of(pipeline, best, "exact", evaluations, begin, bound)


def is_large(pipeline: Pipeline, pivots: np.ndarray) -> bool:
    """Whether a search over all pivots and devices is slow without a good plan to start from."""
    return len(pivots) > FEW or pipeline.cluster.devices > UNITS


def by_corridor(pipeline: Pipeline, time_limit: float | None = None, seed: int = 0) -> Answer:
    """The shortest plan that a corridor search finds, with the bound of ``relaxation``.

    Args:
        pipeline: the problem.
        time_limit: seconds that the search takes (default: until restarts gain nothing); the time
            it takes to find a first plan that fits is not limited.
        seed: of the restarts.

    Raises:
        InfeasibleError: see ``exact_full``.
    """
    begin = time.perf_counter()
    check_stages(pipeline, fewest=2)
    check_split(pipeline)
    patience = corridor.PATIENCE if time_limit is None else np.inf
    limit = np.inf if time_limit is None else time_limit
    best = near_best(pipeline, None, seed, begin + (1 - _BOUND) * limit, patience)
    bound = lower_bound(pipeline, _length(pipeline, best), begin + limit)
    return answer_of(pipeline, best, "search", 0, begin, bound)


def near_best(
    pipeline: Pipeline,
    start: Cuts | None,
    seed: int = 0,
    deadline: float = np.inf,
    patience: float = corridor.PATIENCE,
) -> Cuts:
    """``corridor.search``, also where the memory leaves few plans; see there.

    Raises:
        InfeasibleError: no plan fits the memory; says how many bytes the best one lacks.
    """
    best = corridor.search(pipeline, start, None, seed, deadline, patience)
    if best is None:
        best = within_memory(pipeline)
        best = corridor.Corridor(pipeline).descend(best, deadline=deadline)
    return best


def begun(pipeline: Pipeline) -> Cuts:
    """Return the plan of a brief search, some hundredths of a second, the same on every machine.

    It descends from the shortest graded plan that fits the memory. Where none does, it takes as
    long as it takes to find a plan that fits.

    Raises:
        InfeasibleError: no plan fits the memory; says how many bytes the best one lacks.
    """
    check_stages(pipeline, fewest=2)
    try:
        plan, width, sweeps = fitting(pipeline), BRIEF, BRIEF_SWEEPS
    except InfeasibleError:
        plan, width, sweeps = within_memory(pipeline), corridor.NARROW, LONGER
    return corridor.Corridor(pipeline).descend(plan, width=width, last=sweeps)


def within_memory(pipeline: Pipeline) -> Cuts:
    """A plan that fits the memory.

    Raises:
        InfeasibleError: there is none; says how many bytes the best one lacks.
    """
    plan = plan_within(pipeline, pipeline.stages, pipeline.memory_limit)
    if plan is None:
        raise infeasible(pipeline, least_excess(pipeline).excess_bytes)
    return plan


def one_stage(pipeline: Pipeline) -> Answer:
    """The only plan of one stage: all pivots on all devices.

    Raises:
        InfeasibleError: it does not fit the memory; says how many bytes it lacks.
    """
    begin = time.perf_counter()
    check_split(pipeline)
    nothing = np.zeros(0, dtype=np.int64)
    excess = float(pipeline.excess_bytes(nothing, nothing))
    if excess > 0:
        raise infeasible(pipeline, excess)
    return answer_of(pipeline, (nothing, nothing), "exact", 1, begin)


def search_pivots(
    pipeline: Pipeline, pivots: np.ndarray, upper: float, deadline: float
) -> LabelSearch:
    """A finished search for plans that cut at ``pivots`` only and are shorter than ``upper``.

    Args:
        pipeline: the problem, of two stages or more.
        pivots: where plans may cut, ascending.
        upper: seconds, infinite if no plan is known.
        deadline: the search ends at this ``time.perf_counter()``.
    """
    bound_pivots = pivots if len(pivots) >= _MANY else None
    search = LabelSearch(
        pipeline, pipeline.stages, lambda k, e: pivots, upper, deadline, bound_pivots
    )
    search.run()
    return search


def _length(pipeline: Pipeline, plan: Cuts | None) -> float:
    """Seconds of a step, infinite without a plan."""
    return np.inf if plan is None else float(pipeline.length(*plan))


def answer_of(
    pipeline: Pipeline,
    plan: Cuts,
    method: str,
    evaluations: int,
    begin: float,
    bound: float | None = None,
) -> Answer:
    """The plan as an answer; without ``bound`` the plan counts as proven."""
    cuts, device_cuts = (np.asarray(positions, dtype=np.int64) for positions in plan)
    length = float(pipeline.length(cuts, device_cuts))
    return Answer(
        problem=pipeline,
        plan=pipeline.plan(cuts, device_cuts),
        cost=length,
        method=method,
        proven=bound is None,
        bound=length if bound is None else min(bound, length),
        evaluations=evaluations,
        seconds=time.perf_counter() - begin,
    )


def infeasible(pipeline: Pipeline, excess: float) -> InfeasibleError:
    """The error for a problem whose best plan exceeds the memory by ``excess`` bytes."""
    stages = f"{pipeline.stages} stage{'s' if pipeline.stages > 1 else ''}"
    if excess == np.inf:
        return InfeasibleError(
            f"{pipeline.profile.name} on {pipeline.cluster} with {stages}: no candidates divide "
            f"{pipeline.profile.micro_batch} samples by devices; give candidates='all', another "
            "agent or --fractions"
        )
    return InfeasibleError(
        f"{pipeline.profile.name} on {pipeline.cluster} with {stages}: no plan fits the "
        f"memory; the best one needs {excess:,.0f} bytes more than the "
        f"{pipeline.memory_limit:,.0f} allowed on its fullest stage"
    )
