"""Makes the references of the shipped hybrid sets: the best plan known and a bound for each.

    python -m parenvs.agents.hybrid.references            # what is missing or outdated
    python -m parenvs.agents.hybrid.references --again hybrid-test/gpt-001 ...    # keeps the better
    python -m parenvs.agents.hybrid.references --check    # judge all, change nothing

The plan is the shortest of ``exact``, the optimum among uniform plans and 1F1B plans of free
stages, of a local search from the best uniform plans, and of others from the best so far, until one
finds none shorter. Where a local search wins, its plan is of no class of which an optimum is
proven, and ``among`` is empty. ``bound`` holds for every plan, see ``Hybrid.kernel_bound_seconds``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from parenvs.agents.hybrid.local_search import EVALUATIONS, local_search
from parenvs.agents.hybrid.solve import exact
from parenvs.agents.references import SAME, ReferenceFile, run
from parenvs.core.plan import Answer
from parenvs.datasets.hybrid.named import find_hybrid
from parenvs.datasets.hybrid.sets import SETS
from parenvs.datasets.references import HYBRID, Row
from parenvs.errors import NO_PLAN, InfeasibleError
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.hybrid.space import Constraints, UniformSpace

LIMITS = Constraints(context=1, shard=0)
"""Of ``exact``: tokens of a sample are not shared, and states by all replicas."""
SECONDS = 120.0
"""Wall seconds of each exact search; local searches end by the plans that they judge."""
SEARCHES = 7
"""Local searches at most; all but the first end when one of them finds nothing better."""
FIRST = {"hybrid-outside": 12}
"""Set -> problems that references are made of by default, the first ones; all of others."""


def decisions(problem: Hybrid, plan: HybridPlan) -> dict[str, Any]:
    """Return what a plan decides, without the fields that every plan of its problem has."""
    return {key: value for key, value in plan.to_json().items() if key not in _head(problem)}


def plan_of_row(problem: Hybrid, row: Row) -> HybridPlan:
    """Return the plan of a reference.

    Raises:
        PlanError: the row holds none.
    """
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


def _names() -> Iterator[str]:
    for name in SETS:
        first = FIRST.get(name)
        yield from (problem.instance for problem in problem_sets()[name][:first])


def row_of(
    problem: Hybrid, plan: HybridPlan, length: float, bound: float, among: str, method: str
) -> Row:
    """Return a reference as an object of JSON types.

    Args:
        problem: the problem.
        plan: the best plan known.
        length: its seconds.
        bound: seconds that no plan takes less than.
        among: the plans of which it is the proven optimum, in words; empty if of none.
        method: how it was found, in words.
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

    Args:
        problem: the problem.
        seconds: wall seconds of the exact search.
        evaluations: plans that the first local search judges; each other one judges half as many.

    Raises:
        InfeasibleError: no plan fits.
    """
    best: Answer | None = None
    with suppress(*NO_PLAN):  # plans that share the tokens of a sample may still fit
        best = exact(problem, LIMITS, time_limit=seconds)
    with suppress(*NO_PLAN):  # no uniform plan may fit
        space = UniformSpace.build(problem, Constraints(uneven=True))
        for seed in range(SEARCHES):
            count = evaluations if seed == 0 else evaluations // 2
            starts = () if best is None or seed == 0 else (best.plan,)
            searched = local_search(
                problem, seed=seed, evaluations=count, space=space, starts=starts
            )
            if best is None or searched.cost < best.cost * (1 - SAME):
                best = replace(searched, method=f"local search, {count:,} plans, seed {seed}")
            elif seed > 0:
                break
    if best is None:
        raise InfeasibleError(f"{problem.instance}: no plan was found that fits")
    return best


def _make(problem: Hybrid) -> Row:
    answer = best_known(problem, SECONDS)
    among = answer.among if answer.proven else ""
    bound = min(problem.kernel_bound_seconds, answer.cost)
    return row_of(problem, answer.plan, answer.cost, bound, among, answer.method)


HYBRID_REFERENCES = ReferenceFile(
    HYBRID, "python -m parenvs.agents.hybrid.references", _names, find_hybrid, _make, hybrid_fault
)
"""References of all shipped hybrid sets."""

if __name__ == "__main__":
    run(HYBRID_REFERENCES)
