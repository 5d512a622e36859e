"""The label search over free stages against every plan of 1,000 small drawn problems."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.framework import Row, main, measurement, percent, table
from drawn_hybrids import best_of_free_stages, drawn_problem
from parenvs.agents.hybrid import exact_hybrid
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.space import Constraints

EVERY = 2
"""Layers and stages up to which all counts of recomputed layers are tried together."""


def one(seed: int) -> Row:
    """Plan and enumerate one drawn problem."""
    problem = drawn_problem(np.random.default_rng(seed))
    begin = time.process_time()
    best = best_of_free_stages(problem, Constraints())
    middle = time.process_time()
    try:
        answer = exact_hybrid(problem)
        found, legal = answer.cost, answer.report.legal
        stages = answer.plan.stages
    except InfeasibleError:
        found, legal, stages = np.inf, True, ()
    end = time.process_time()
    small = len(problem.model) <= EVERY and problem.cluster.devices <= EVERY
    free = best_of_free_stages(problem, Constraints(), every_count=True) if small else None
    return {
        "seed": seed,
        "equal": found == best or abs(found - best) <= 1e-9 * best,
        "legal": legal,
        "feasible": bool(np.isfinite(best)),
        "stages": len(stages),
        "recomputed": any(stage.recompute for stage in stages),
        "different": len({stage.devices // stage.tp for stage in stages}) > 1,
        "every_count": None if free is None or not np.isfinite(free) else found / free - 1,
        "brute_seconds": middle - begin,
        "search_seconds": end - middle,
    }


@measurement(title="Hybrid planners against all plans")
def hybrid_labels(cases: int = 1000) -> Iterator[Row]:
    for seed in range(cases):
        yield one(seed)


@hybrid_labels.page
def page(rows: list[Row]) -> list[str]:
    gains = [row["every_count"] for row in rows if row["every_count"] is not None]
    feasible = [row for row in rows if row["feasible"]]
    lines = [
        ["problems", len(rows)],
        ["answers equal to the best of all plans", sum(row["equal"] for row in rows)],
        ["of them without a plan that fits", len(rows) - len(feasible)],
        ["best plans of two stages or more", sum(row["stages"] > 1 for row in feasible)],
        ["best plans that recompute", sum(row["recomputed"] for row in feasible)],
        ["best plans whose dp differs by stage", sum(row["different"] for row in feasible)],
        [f"problems of {EVERY} layers on {EVERY} devices: all counts recomputed", len(gains)],
        ["of them with a better plan that recomputes more than it must",
         sum(gain > 1e-9 for gain in gains)],
        ["the most that such a plan gains", percent(max(gains, default=0.0))],
        ["seconds of the searches together", f"{sum(r['search_seconds'] for r in rows):.0f}"],
        ["seconds of the enumerations", f"{sum(r['brute_seconds'] for r in rows):.0f}"],
    ]  # fmt: skip
    return [table(["", ""], lines)]


if __name__ == "__main__":
    main(hybrid_labels)
