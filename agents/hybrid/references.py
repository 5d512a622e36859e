"""References of the shipped sets: the best plan known and a bound for each problem.

``python benchmarks/references.py hybrids`` makes the file.

Equal servers: the plan is the shortest of ``exact`` (the optimum among uniform plans and 1F1B plans
of free stages), of a local search from the best uniform plans, and of others from the best so far,
until one finds none shorter. If a local search wins, no optimum is proven and ``among`` is empty.
``bound`` holds for every plan, see ``Hybrid.kernel_bound_seconds``.

Unequal servers: the plan is the best of swap searches, of speeds rounded down and, with few
servers, of the subset program. ``bound`` is that of speeds rounded up, which holds for every plan
of one server per stage, however much it recomputes; the subset program proves optima ``among``
those that recompute no more than they must.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from parenvs.agents.hybrid.exact import exact
from parenvs.agents.hybrid.orders import AMONG, Orders, swap_search
from parenvs.agents.hybrid.search import EVALUATIONS, local_search
from parenvs.agents.hybrid.subset_dp import lower_bound, rounded_down, subset_search
from parenvs.core.plan import Answer
from parenvs.datasets.hybrid.problems import SETS, TIERS, problem_sets
from parenvs.datasets.references import SAME, Row
from parenvs.errors import NO_PLAN, InfeasibleError
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, UniformSpace

LIMITS = Constraints(context=1, shard=0)
"""Of ``exact``: tokens of a sample are not shared, and states by all replicas."""
SECONDS = 120.0
"""Wall seconds of each exact search. Other searches end by counts of plans or of sets of servers,
so that a reference has the same bound on every machine."""
SEARCHES = 7
"""Local searches at most; all but the first end when one of them finds nothing better."""
HETERO_FIRST = 3
"""Problems of each test set of unequal servers whose references are made by default."""
FIRST = {
    **dict.fromkeys(SETS, None),
    "hybrid-outside": 12,
    **dict.fromkeys([f"{tier}-test" for tier in TIERS], HETERO_FIRST),
}
"""Set -> problems that references are made of by default, the first ones; None: all."""


def decisions(problem: Hybrid, plan: HybridPlan) -> dict[str, Any]:
    """Return what a plan decides, without the fields that every plan of its problem has."""
    return {key: value for key, value in plan.to_json().items() if key not in _head(problem)}


def plan_of_row(problem: Hybrid, row: Row) -> HybridPlan:
    """Return the plan of a reference (``PlanError``: the row holds none)."""
    return HybridPlan.from_json({**_head(problem), **row["plan"]}, problem.instance)


def hybrid_fault(problem: Hybrid, row: Row) -> str:
    """Return what is wrong with a reference in words, or an empty text."""
    if row["fingerprint"] != problem.model.fingerprint:
        return "is of another model"
    report = problem.report(plan_of_row(problem, row))
    if not report.legal or abs(report.length_seconds / row["length"] - 1) > SAME:
        return f"its plan takes {report.length_seconds} s, not {row['length']}"
    least = problem.kernel_bound_seconds
    if not least * (1 - SAME) <= row["bound"] <= row["length"] * (1 + SAME):
        return f"its bound {row['bound']} s is not between {least} s and the length"
    return ""


def _head(problem: Hybrid) -> dict[str, Any]:
    """Return the fields of a plan file that a problem settles."""
    content = problem.plan(()).to_json()
    names = ("schema", "task", "instance", "fingerprint", "cluster", "stack", "precision", "batch")
    return {name: content[name] for name in names}


def hybrid_names() -> Iterator[str]:
    """Yield the names of the problems whose references are made by default."""
    for name, first in FIRST.items():
        yield from (problem.instance for problem in problem_sets()[name][:first])


def row_of(
    problem: Hybrid, plan: HybridPlan, length: float, bound: float, among: str, method: str
) -> Row:
    """Return a reference as an object of JSON types.

    ``bound``: seconds that no plan takes less than; ``among``: the plans of which it is the proven
    optimum, in words, empty if of none; ``method``: how it was found, in words.
    """
    return {
        "fingerprint": problem.model.fingerprint,
        "length": length,
        "value": problem.bound_seconds / length,
        "bound": bound,
        "among": among,
        "method": method,
        "plan": decisions(problem, plan),
    }


def best_known(problem: Hybrid, seconds: float, evaluations: int = EVALUATIONS) -> Answer:
    """Return the best plan of ``exact``, of a local search, and of others from the best so far.

    The exact search has ``seconds``. The first local search judges ``evaluations`` plans, each
    other one half as many.

    Raises:
        InfeasibleError: no plan fits.
    """
    best: Answer | None = None
    with suppress(*NO_PLAN):  # plans that share the tokens of a sample may still fit
        best = exact(problem, LIMITS, time_limit=seconds, simulate=False)
    with suppress(*NO_PLAN):  # no uniform plan may fit
        space = UniformSpace.build(problem, Constraints(uneven=True, expert_tp=0))
        for seed in range(SEARCHES):
            count = evaluations if seed == 0 else evaluations // 2
            # The first search is independent of the exact one; others go on from the best plan.
            starts = () if best is None or seed == 0 else (best.plan,)
            options: dict[str, Any] = {"seed": seed, "evaluations": count}
            searched = local_search(problem, space=space, starts=starts, **options)
            if best is None or searched.cost < best.cost * (1 - SAME):
                best = replace(searched, method=f"local search, {count:,} plans, seed {seed}")
            elif seed > 0:
                break
    if best is None:
        raise InfeasibleError(f"{problem.instance}: no plan was found that fits")
    return best


def hybrid_row(problem: Hybrid) -> Row:
    """Compute the reference of a problem."""
    if problem.cluster.speeds:
        return hetero_row(problem)
    answer = best_known(problem, SECONDS)
    among = answer.among if answer.proven else ""
    bound = min(problem.kernel_bound_seconds, answer.cost)
    return row_of(problem, answer.plan, answer.cost, bound, among, answer.method)


SWAPS, SEEDS = 800, (0, 1)
"""Plans that each swap search judges, and the seeds of the searches."""
MAX_EXACT = 16
"""Servers up to which the subset program runs."""
STATES = 8_000
"""Sets of servers by type, at most, of more than 32 servers; 20,000 of fewer."""


def hetero_row(problem: Hybrid) -> Row:
    """Compute the reference of a hetero problem."""
    servers = problem.cluster.servers
    # Time grows with sets and servers: fewer sets keep large clusters within minutes.
    states = STATES if servers > 32 else 20_000
    orders = Orders(problem)
    orders.start()
    method = "sorted servers"
    for seed in SEEDS:
        answer = swap_search(problem, np.random.default_rng(seed), None, SWAPS)
        if answer.cost < orders.length and orders.setting is not None:
            orders.keep(answer.plan, orders.setting, answer.cost)
            method = f"swap search, {SWAPS} plans, seed {seed}"
    before = orders.length
    rounded_down(orders, states=states)
    method = method if orders.length == before else "speeds rounded down"
    before, among = orders.length, ""
    bound = lower_bound(orders, states=states)[0]
    method = method if orders.length == before else "speeds rounded up"
    if servers <= MAX_EXACT and bound < orders.length:
        before = orders.length
        exact = subset_search(problem, time_limit=SECONDS, orders=orders)
        among = AMONG if exact.proven else ""
        method = method if orders.length == before else "subset program"
        bound = min(bound, exact.cost)
    assert orders.best is not None
    return row_of(problem, orders.best, orders.length, bound, among, method)
