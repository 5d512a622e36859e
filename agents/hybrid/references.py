"""The best plans known of problems with equal servers, and those of the shipped references."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from parenvs.agents.hybrid.exact import exact
from parenvs.agents.hybrid.search import EVALUATIONS, local_search
from parenvs.core.plan import Answer
from parenvs.datasets.references import SAME, Row
from parenvs.errors import NO_PLAN, InfeasibleError
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, UniformSpace

LIMITS = Constraints(context=1, shard=0)
"""Of ``exact``: tokens of a sample are not shared, and states by all replicas."""
SEARCHES = 7
"""Local searches at most; all but the first end when one of them finds nothing better."""
HETERO_FIRST = 3
"""Problems of each test set of unequal servers whose references are made by default."""
MAX_EXACT = 16
"""Servers up to which the subset program runs."""
HEAD = ("schema", "task", "instance", "fingerprint", "cluster", "stack", "precision", "batch")
"""Fields of a plan file that a problem settles; references leave them out."""


def plan_of_row(problem: Hybrid, row: Row) -> HybridPlan:
    """Return the plan of a reference (``PlanError``: the row holds none)."""
    content = problem.plan(()).to_json()
    head = {name: content[name] for name in HEAD}
    return HybridPlan.from_json({**head, **row["plan"]}, problem.instance)


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
