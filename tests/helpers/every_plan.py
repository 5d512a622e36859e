"""Small problems of every task, and the best of all their plans by trying each.

``outcome(task, planner, number)`` says what a planner makes of one, and what it claims that is not
so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from itertools import product
from typing import Any

import elastic_toys
import numpy as np
import partition_toys
import pytest
from brute_force import all_plans, best_of, random_pipeline
from drawn_hybrids import (
    best_of_free_stages,
    best_of_orders,
    best_of_uniform,
    drawn_hetero,
    drawn_problem,
)
from drawn_intra_op import draw, optimum

import parenvs
from parenvs.agents.learning.options import TRAINED
from parenvs.core.registry import TASKS
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.elastic.problem import replay
from parenvs.tasks.hybrid.space import Constraints

LIMITS = (None, 1e-3, 0.01, 0.1)
"""Seconds that planners get which take a limit, by turns."""
ROUNDING = 1e-9
"""Share by which sums of floats may differ; whole numbers may not."""


def _pipeline(number: int) -> tuple[Any, float]:
    pipeline, stages = random_pipeline(np.random.default_rng([number, 7]))
    return pipeline.with_stages(stages), best_of(pipeline, all_plans(pipeline, stages)).length


def _partition(number: int) -> tuple[Any, float]:
    problem = partition_toys.random_problem(number, most=10)
    scope = "inputs" if number % 4 > 1 and len(problem.decidable("inputs")) else "variables"
    problem = partition_toys.asked(problem, scope, ("paper", "step_time")[number % 2])
    choices = partition_toys.independent_sets(problem, problem.full_scope)
    return problem, float(problem.value(choices).max())


def _hybrid(number: int) -> tuple[Any, float]:
    """Among the plans that ``exact`` names: uniform ones, and 1F1B plans of free stages."""
    problem, best = _drawn(_free_stages, number)
    return problem, min(best, best_of_uniform(problem, uneven=True))


def _free_stages(number: int) -> tuple[Any, float]:
    problem = drawn_problem(np.random.default_rng([number, 3]))
    return problem, best_of_free_stages(problem, Constraints())


def _uniform(number: int) -> tuple[Any, float]:
    problem = _drawn(_free_stages, number)[0]
    return problem, best_of_uniform(problem, uneven=False)


def _no_best(number: int) -> tuple[Any, float]:
    """Of plans that are too many to be tried: whatever is found may be."""
    return _drawn(_free_stages, number)[0], -np.inf


def _servers(number: int) -> tuple[Any, float]:
    problem = drawn_hetero(np.random.default_rng([number, 5]), most=3)
    return problem, best_of_orders(problem)


def _sharding(number: int) -> tuple[Any, float]:
    problem = draw(number, edges=11, most=4, forbidden=0.1, slack=0.45)
    best = optimum(problem)
    return problem, np.inf if best is None else best


def _elastic(number: int) -> tuple[Any, float]:
    problem = elastic_toys.problem(("calm", "bulk", "day")[number % 3], 4)
    course = problem.drawn(0)
    fitting = [np.flatnonzero(problem.fits(int(n))).tolist() for n in course.nodes]
    return problem, min(replay(problem, course, row).cost for row in product(*fitting))


DRAWN: dict[str, Callable[[int], tuple[Any, float]]] = {
    "pipeline": _pipeline,
    "partition": _partition,
    "hybrid": _hybrid,
    "sharding": _sharding,
    "elastic": _elastic,
}
"""Task -> what draws a problem by number, with the best figure of its plans.

The figure is the cost, or where planners prove upper bounds, of partitions, the return.
"""
OTHERS = {
    **{("hybrid", name): _servers for name in ("subset-dp", "swap-search")},
    **{("hybrid", name): _no_best for name in ("search", "learned")},
    ("hybrid", "uniform"): _uniform,
}
"""Task, planner -> what draws its problems, if not all of its task, or among other plans."""
TRIED = ("exact", "uniform", "subset-dp")
"""Planners whose proofs among some plans are compared: the best is that of these plans."""
WHOLE = ("exact", "uniform", "subset-dp")
"""Planners that say of all plans that are tried that none fits."""
STEPS = 100
"""Of planners that draw plans."""


def planners(task: str) -> list[str]:
    """Every planner of a task that need not be trained."""
    return [name for name in TASKS[task].request_class().planners if name not in TRAINED]


@lru_cache(maxsize=512)
def _drawn(make: Callable[[int], tuple[Any, float]], number: int) -> tuple[Any, float]:
    return make(number)


def outcome(task: str, planner: str, number: int) -> str:
    """Return what a planner makes of a drawn problem, or ``"WRONG: ..."``.

    A worse plan is not called proven, no bound is on the wrong side of the best plan, no plan is
    better than it or costs what the judge does not say, and a problem is called infeasible only if
    it is. What is proven among some plans is compared with the best of these, or not at all.
    """
    problem, best = _drawn(OTHERS.get((task, planner), DRAWN[task]), number)
    known = {field.name for field in fields(TASKS[task].request_class())}
    limits: dict[str, Any] = {"time_limit": LIMITS[number % len(LIMITS)]}
    if "rounds" in known and number % 8 > 4:  # what ends by no clock
        limits = {"rounds": number % 4}
    given = {name: x for name, x in limits.items() if x is not None and name in known}
    if (task, planner) == ("hybrid", "exact"):  # no framework runs drawn models
        given["constraints"] = {"framework": "free"}
    try:
        answer = parenvs.plan(problem, agent=planner, steps=STEPS, **given)
    except TimeLimitError:
        return "no plan in time" if given else "WRONG: its time is up, and it had no limit"
    except InfeasibleError as error:
        if planner in WHOLE and best != np.inf:
            return f"WRONG: called infeasible: {error}"
        return "no plan"
    report = answer.report
    upper = report.bound_words[0] == "upper"
    sign = -1.0 if upper else 1.0
    own, bound = answer.value if upper else answer.cost, answer.bound
    largest = max(abs(x) for x in (own, best, 0.0) if x is not None and np.isfinite(x))
    slack = 0 if isinstance(own, int) else ROUNDING * largest
    is_compared = not answer.among or planner in TRIED
    where = f"{own!r}, the best is {best!r}, the bound {bound!r}, given {given}"
    if bound is not None and is_compared and sign * bound > sign * best + slack:
        return f"WRONG: a bound beyond the best plan: {where}"
    if not report.legal:
        is_claimed = answer.proven or planner in WHOLE
        return f"WRONG: an illegal plan: {report.reasons}" if is_claimed else "illegal plan"
    if sign * own < sign * best - slack:
        return f"WRONG: a plan that is better than all plans: {where}"
    if answer.proven and is_compared and sign * own > sign * best + slack:
        return f"WRONG: a worse plan is called proven: {where}"
    if answer.cost != pytest.approx(report.cost, rel=0 if isinstance(own, int) else ROUNDING):
        return f"WRONG: a cost that is not the judge's {report.cost!r}: {where}"
    return "plan" if not answer.proven else "proven among some" if answer.among else "proven"
