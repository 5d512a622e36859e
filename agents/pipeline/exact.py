"""Proven optima of the pipeline's closed form: over all plans, over points, over candidates.

All run the label search of ``parenvs.agents.pipeline.labels``. ``exact_full`` first finds an
incumbent by ``parenvs.agents.pipeline.search``. For a problem without a plan that fits the memory,
an ``InfeasibleError`` says how many bytes the best plan lacks.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from parenvs.agents.pipeline import bounds, labels
from parenvs.agents.pipeline import search as searches
from parenvs.agents.pipeline.bounds import lower_bound
from parenvs.agents.pipeline.heuristics import answer_of, even_plan, few_points
from parenvs.agents.pipeline.labels import LabelSearch
from parenvs.compiled import Array
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.problem import Pipeline, check_split, check_stages
from parenvs.tasks.pipeline.profile import RangeTable
from parenvs.tasks.pipeline.spaces import (
    UNITS,
    Cuts,
    CutSpace,
    PointSpace,
    cuts_of,
    distinct_pivots,
)

AMONG = "128 points and 64 units"
"""The plans over which proofs of ``exact_points`` hold, in words."""
_FEW_POINTS = 16  # over which ``exact_points`` searches first
FEW = 24
"""Most pivots of chains on which a search over all of them needs no good plan to start from."""
# Of the time limit: when the search for an incumbent ends.
_SHARE = 0.5
# Of the time that is left to a search: what its bound may take at the end.
_BOUND = 0.5
# Bytes; plans that differ by less count as equal.
_TOLERANCE = 0.5


def prepare() -> None:
    """Compile what all searches run, or load it: before their clocks start."""
    labels.prepare()
    searches.prepare()


def exact_candidates(space: CutSpace) -> Answer:
    """The shortest plan that ``space`` admits and that fits the memory, with proof.

    Raises:
        InfeasibleError: no plan of the space fits.
    """
    labels.prepare()
    pipeline = space.pipeline
    # Each candidate has its device cut, so suffixes start only where both agree.
    groups = {
        (k, int(e)): space.pivots[space.allowed[space.stages - 1 - k] & (space.devices == e)]
        for k in range(1, space.stages)
        for e in np.unique(space.devices)
    }
    devices = np.concatenate([[0], np.unique(space.devices), [pipeline.cluster.devices]])
    search = LabelSearch(
        pipeline, lambda k, e: groups.get((k, e), space.pivots[:0]), devices=devices
    )
    search.run()
    if search.best is None:
        check_split(pipeline)
        within_memory(pipeline)
        raise InfeasibleError(
            f"{pipeline.words} with {pipeline.stages} stages: no plan of the candidates fits the "
            "memory by whole samples; give candidates='all', another agent or --fractions"
        )
    answer = proven_answer(pipeline, search.best, search.evaluations)
    return replace(answer, among="pruned candidates")


def exact_points(space: PointSpace, time_limit: float | None = None) -> Answer:
    """The shortest plan over the points and units of ``space``, with proof.

    The search over all points starts from the best plan over few of them.

    Args:
        space: the problem; a ``PointSpace`` always has a plan that fits the memory.
        time_limit: seconds after which the best plan found is returned without proof, with a valid
            ``bound``.
    """
    labels.prepare()
    pipeline = space.pipeline
    deadline = np.inf if time_limit is None else time.perf_counter() + time_limit
    # A good plan over few points lets the search over all of them drop most labels.
    best, evaluations = space.plan(*even_plan(space)), 0
    for pivots in (space.pivots[few_points(space, _FEW_POINTS)], space.pivots[1:-1]):
        upper = _length(pipeline, best)
        search = LabelSearch(pipeline, pivots, upper, deadline, devices=space.devices)
        proven = search.run()
        best = search.best if search.best is not None else best
        evaluations += search.evaluations
    bound = None if proven else max(pipeline.bubble_free, search.bound)
    return replace(proven_answer(pipeline, best, evaluations, bound), among=AMONG)


def exact_full(
    pipeline: Pipeline, incumbent: Answer | None = None, time_limit: float | None = None
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
    prepare()
    bounds.prepare()
    begin = time.perf_counter()
    deadline = np.inf if time_limit is None else begin + time_limit
    check_stages(pipeline)
    check_split(pipeline)
    stages = pipeline.stages
    if stages == 1:
        return one_stage(pipeline)
    pivots = distinct_pivots(pipeline)
    best: Cuts | None = None
    evaluations = 0
    if incumbent is not None and pipeline.report(incumbent.plan).legal:
        best = cuts_of(incumbent.plan)
    if is_large(pipeline, pivots):
        stop = np.inf if time_limit is None else begin + _SHARE * time_limit
        best = near_best(pipeline, deadline=stop, start=best)
    elif best is None:
        best = within_memory(pipeline)
    if np.isfinite(deadline):  # of what is left, a part is the bound's
        deadline -= _BOUND * max(deadline - time.perf_counter(), 0.0)
    search = LabelSearch(pipeline, pivots, _length(pipeline, best), deadline)
    search.run()
    best = search.best if search.best is not None else best
    evaluations += search.evaluations
    bound = None
    if search.bound < search.upper:
        stop = np.inf if time_limit is None else begin + time_limit
        bound = max(search.bound, lower_bound(pipeline, _length(pipeline, best), stop))
    return proven_answer(pipeline, best, evaluations, bound)


def is_large(pipeline: Pipeline, pivots: Array) -> bool:
    """Whether a search over all pivots and devices is slow without a good plan to start from."""
    return len(pivots) > FEW or pipeline.cluster.devices > UNITS


def by_search(pipeline: Pipeline, time_limit: float | None = None, seed: int = 0) -> Answer:
    """The shortest plan that a search finds, with ``bounds.lower_bound``.

    Args:
        pipeline: the problem.
        time_limit: seconds that the search takes (default: until changes gain nothing); the time
            it takes to find a first plan that fits is not limited.
        seed: of the changes.

    Raises:
        InfeasibleError: see ``exact_full``.
    """
    searches.prepare()
    bounds.prepare()
    begin = time.perf_counter()
    check_stages(pipeline, fewest=2)
    check_split(pipeline)
    limit, patience = (np.inf, searches.PATIENCE) if time_limit is None else (time_limit, np.inf)
    best = near_best(pipeline, seed, begin + (1 - _BOUND) * limit, patience)
    bound = lower_bound(pipeline, _length(pipeline, best), begin + limit)
    return proven_answer(pipeline, best, 0, bound)


def near_best(
    pipeline: Pipeline,
    seed: int = 0,
    deadline: float = np.inf,
    patience: float = searches.PATIENCE,
    start: Cuts | None = None,
) -> Cuts:
    """``search.search``, also where the memory leaves few plans; see there.

    Raises:
        InfeasibleError: no plan fits the memory; says how many bytes the best one lacks.
    """
    budget = {"seed": seed, "deadline": deadline}
    best = searches.search(pipeline, start, patience, **budget)
    if best is None:
        best = searches.search(pipeline, within_memory(pipeline), patience, **budget)
    assert best is not None
    return best


def within_memory(pipeline: Pipeline) -> Cuts:
    """A plan that fits the memory.

    Raises:
        InfeasibleError: there is none; says how many bytes the best one lacks.
    """
    plan = plan_within(pipeline, pipeline.memory_limit)
    if plan is None:
        _, excess = leanest_plan(pipeline)
        raise infeasible(pipeline, excess)
    return plan


def one_stage(pipeline: Pipeline) -> Answer:
    """The only plan of one stage: all pivots on all devices.

    Raises:
        InfeasibleError: it does not fit the memory; says how many bytes it lacks.
    """
    check_split(pipeline)
    no_cuts = np.zeros(0, np.int64)
    excess = float(pipeline.excess_bytes(no_cuts, no_cuts))
    if excess > 0:
        raise infeasible(pipeline, excess)
    return proven_answer(pipeline, (no_cuts, no_cuts), 1)


def _length(pipeline: Pipeline, plan: Cuts | None) -> float:
    return np.inf if plan is None else float(pipeline.length(*plan))


def proven_answer(
    pipeline: Pipeline, plan: Cuts, evaluations: int, bound: float | None = None
) -> Answer:
    """Return a plan as an answer; without ``bound`` the plan counts as proven."""
    answer = answer_of(pipeline, plan, evaluations)
    lower = answer.cost if bound is None else min(bound, answer.cost)
    return replace(answer, proven=bound is None, bound=lower)


def infeasible(pipeline: Pipeline, excess: float) -> InfeasibleError:
    """The error for a problem whose best plan exceeds the memory by ``excess`` bytes."""
    stages = f"{pipeline.stages} stage{'s' if pipeline.stages > 1 else ''}"
    return InfeasibleError(
        f"{pipeline.words} with {stages}: no plan fits the memory; the best one needs "
        f"{excess:,.0f} bytes more than the {pipeline.memory_limit:,.0f} allowed on its fullest "
        "stage"
    )


def leanest_plan(pipeline: Pipeline) -> tuple[Cuts, float]:
    """The plan whose fullest stage needs the least memory, and the bytes that it lacks.

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
    # Doubling finds a memory that is enough, bisection the least one.
    probe, best = max(low, 1.0), None
    while best is None:
        best = plan_within(pipeline, probe)
        low, probe = (low, probe) if best else (probe, 2 * probe)
    high = float(pipeline.stage_memory(*best).max())
    while high - low > _TOLERANCE:
        plan = plan_within(pipeline, (low + high) / 2)
        if plan is None:
            low = (low + high) / 2
        else:
            best, high = plan, float(pipeline.stage_memory(*plan).max())
    return best, high - pipeline.memory_limit


def plan_within(pipeline: Pipeline, limit: float) -> Cuts | None:
    """A plan with no stage above ``limit`` bytes, or None if there is none; exact.

    A dynamic program over suffixes: ``needed_devices[p]`` is the least number of devices on which
    k stages hold the pivots from p on; more devices never hurt. A stage from p on over ``group``
    devices may end at any pivot up to its reach.
    """
    if not pipeline.fractions:
        return _plan_of_whole_samples(pipeline, limit)
    n, devices, stages = len(pipeline.profile), pipeline.cluster.devices, pipeline.stages
    variables = pipeline.variable_sum
    weights = formulas.weight_bytes(pipeline.parameter_sum, pipeline.copies)
    weights_limit = limit * (1 + 1e-12)
    # More than there are where k stages cannot do it.
    needed_devices = np.full(n + 1, devices + 1)
    needed_devices[n] = 0
    choices: list[Array] = []
    for k in range(1, stages + 1):
        # Whatever the cuts, the stages before p and those behind hold all parameters once.
        legal = weights[-1] - weights[:-1] <= k * weights_limit
        legal &= weights[:-1] <= (stages - k) * weights_limit
        p = np.flatnonzero(legal) if k < stages else np.zeros(1, np.int64)
        first_end = np.searchsorted(variables, variables[p], side="right")  # with a variable
        fewest = np.full(len(p), devices + 1)
        end_of, group_of = choice = np.zeros((2, 1, n + 1), np.int64)
        devices_behind = RangeTable(needed_devices)
        furthest = _reach(pipeline, p, devices - stages + 1, k, limit)
        rows = np.flatnonzero(first_end <= furthest)  # for which more devices may be of use
        for group in range(1, devices - stages + 2):
            if not rows.size:
                break
            reach = _reach(pipeline, p[rows], group, k, limit)
            legal = first_end[rows] <= reach
            row, last = rows[legal], reach[legal]
            end = devices_behind.index(first_end[row], last + 1)
            total = needed_devices[end] + group
            better = total < fewest[row]
            improved = row[better]
            fewest[improved] = total[better]
            end_of[0, p[improved]], group_of[0, p[improved]] = end[better], group
            rows = rows[(reach < furthest[rows]) & (group + 1 < fewest[rows])]
        needed_devices = np.full(n + 1, devices + 1)
        needed_devices[p] = fewest
        # The choice does not depend on the devices that are left.
        choices.append(np.broadcast_to(choice, (2, devices + 1, n + 1)))
        if needed_devices.min() > devices:
            return None
    return _traced_plan(choices) if needed_devices[0] <= devices else None


def _plan_of_whole_samples(pipeline: Pipeline, limit: float) -> Cuts | None:
    """``plan_within`` where devices share no sample, so that more of them are not always allowed.

    A dynamic program whose states are the pivots from p on over exactly d devices.
    """
    n, devices, stages = len(pipeline.profile), pipeline.cluster.devices, pipeline.stages
    variables, sizes = pipeline.variable_sum, np.flatnonzero(pipeline.is_group).tolist()
    fits = np.zeros((devices + 1, n + 1), np.bool_)
    fits[0, n] = True
    choices: list[Array] = []
    pivots = np.arange(n + 1)
    for k in range(1, stages + 1):
        p = np.arange(n) if k < stages else np.zeros(1, np.int64)
        first_end = np.minimum(np.searchsorted(variables, variables[p], side="right"), n)
        has_variable = variables[-1] > variables[p]
        # Of each pivot, the next one from which the stages behind fit.
        following = np.where(fits, pivots, n + 1)
        following = np.minimum.accumulate(following[:, ::-1], axis=1)[:, ::-1]
        end_of, group_of = choice = np.zeros((2, devices + 1, n + 1), np.int64)
        for group in sizes:
            reach = _reach(pipeline, p, group, k, limit)
            end = following[: devices + 1 - group, first_end]
            row, column = np.nonzero((end <= reach) & has_variable & (end_of[group:, p] == 0))
            end_of[row + group, p[column]] = end[row, column]
            group_of[row + group, p[column]] = group
        fits = end_of > 0
        choices.append(choice)
    return _traced_plan(choices) if fits[devices, 0] else None


def _traced_plan(choices: list[Array]) -> Cuts:
    """Trace the plan back from the choices of a dynamic program for 1, 2, ... last stages.

    Choices are (2, D+1, n+1): where the first of the stages ends and how many devices it has, by
    the devices left and its first pivot. The last stage takes what is left.
    """
    start = 0
    left = devices = choices[0].shape[1] - 1
    plan = []
    for choice in choices[:0:-1]:
        start, group = choice[:, left, start].tolist()
        left -= group
        plan.append((start, devices - left))
    cuts, device_cuts = np.array(plan).reshape(-1, 2).T
    return cuts, device_cuts


def _reach(pipeline: Pipeline, p: Array, group: int, k: int, limit: float) -> Array:
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
