"""Small problems of every task, and the best of all their plans by trying each.

``fault(task, number)`` says what the exact planner claims of one that is not so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import product
from typing import Any

import elastic_toys
import numpy as np
import partition_toys
from brute_force import all_plans, best_of, random_pipeline
from drawn_hybrids import best_of_free_stages, drawn_problem
from drawn_intra_op import draw, optimum
from drawn_orders import drawn, every_order, longest_path

from parenvs.agents.planners import request_class, solve
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.elastic.run import replay
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
    problem = drawn_problem(np.random.default_rng([number, 3]))
    return problem, best_of_free_stages(problem, Constraints())


def _order(number: int) -> tuple[Any, float]:
    problem = drawn(np.random.default_rng(number))
    orders = every_order(problem.micro_batches)
    return problem, min(longest_path(problem, order) for order in orders)


def _sharding(number: int) -> tuple[Any, float]:
    problem = draw(number, edges=11, most=4, forbidden=0.1, slack=0.45)
    best = optimum(problem)
    return problem, np.inf if best is None else best


def _elastic(number: int) -> tuple[Any, float]:
    problem = elastic_toys.problem(("calm", "bulk", "day")[number % 3], 4)
    course = problem.drawn(0)
    fitting = [np.flatnonzero(problem.fits(int(n))).tolist() for n in course.nodes]
    return problem, min(replay(problem, course, row).cost for row in product(*fitting))


DRAWN: dict[str, tuple[Callable[[int], tuple[Any, float]], dict[str, str]]] = {
    "pipeline": (_pipeline, {"agent": "exact-full"}),
    "partition": (_partition, {}),
    "hybrid": (_hybrid, {"agent": "exact-hybrid"}),
    "order": (_order, {}),
    "sharding": (_sharding, {}),
    "elastic": (_elastic, {}),
}
"""Task -> what draws a problem by number, with the best figure of its plans; its planner.

The figure is the cost, or where planners prove upper bounds, of partitions, the return.
"""


def fault(task: str, number: int) -> str:
    """Return what is wrong with the exact planner's answer to a drawn problem; empty if nothing.

    A worse plan is not called proven, no bound is on the wrong side of the best plan, none is
    better than it, and a problem is called infeasible only if it is.
    """
    make, options = DRAWN[task]
    problem, best = make(number)
    limit = LIMITS[number % len(LIMITS)]
    takes = "time_limit" in {field.name for field in fields(request_class(task))}
    try:
        answer = solve(problem, **options, **({"time_limit": limit} if takes and limit else {}))
    except TimeLimitError:
        return "" if limit and takes else "its time is up, and it had no limit"
    except InfeasibleError as error:
        return "" if best == np.inf else f"called infeasible: {error}"
    report = answer.report
    if not report.legal:
        return f"an illegal plan: {report.reasons}"
    upper = report.bound_words[0] == "upper"
    sign = -1.0 if upper else 1.0
    own, bound = answer.value if upper else answer.cost, answer.bound
    slack = 0 if isinstance(own, int) else ROUNDING * abs(best)
    where = f"{own!r}, the best is {best!r}, the bound {bound!r}, limit {limit}"
    if sign * own < sign * best - slack:
        return f"a plan that is better than all plans: {where}"
    if answer.proven and not answer.among and sign * own > sign * best + slack:
        return f"a worse plan is called proven: {where}"
    if bound is not None and not answer.among and sign * bound > sign * best + slack:
        return f"a bound beyond the best plan: {where}"
    return ""
