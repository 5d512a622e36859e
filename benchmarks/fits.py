"""Partition tasks and memory: which problems have a plan that fits, and what the action 1 earns."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.common import parser, percent, progress, publish, table
from parenvs.agents.partition.entries import LIMITED, PartitionProblem
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.heuristics import partition_all, replicate
from parenvs.errors import InfeasibleError
from parenvs.leaderboard.tasks import tasks
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.space import PartitionSpace

OLD = ("operator-partition-paper", "operator-partition-step-time", "data-parallel")
"""Tasks whose plans no memory limits."""

Row = list[object]


def fits_at_all(problem: Partitioning) -> bool:
    """Whether some plan keeps to 0.9 of the memory of a device."""
    try:
        exact_partition(problem, problem.cluster.memory_limit)
    except InfeasibleError:
        return False
    return True


def case(problem: PartitionProblem) -> dict[str, Any]:
    """Optimum, constant action 1 and the optimum without a limit, of one problem."""
    target = problem.partitioning
    space = PartitionSpace.of(target)
    best, free = exact_partition(target), exact_partition(target, float("inf"))
    plans = {"optimum": best, "ones": partition_all(space), "replicated": replicate(space)}
    reports = {name: answer.report for name, answer in plans.items()}
    if not reports["optimum"].legal or not best.proven:
        raise AssertionError(f"{problem.name}: {reports['optimum'].reasons}")
    if not np.isclose(problem.cost(reports["optimum"]), problem.reference.cost):
        raise AssertionError(f"{problem.name}: the reference is of another plan")
    return {
        "name": problem.name,
        "place": problem.place,
        "limit_bytes": target.memory_limit,
        "seconds": best.seconds,
        "free_seconds": float(target.step_seconds(free.report.chosen)),
        "free_peak": target.footprint.memory(free.report.chosen).peak,
        "plans": {name: report.to_json() for name, report in reports.items()},
    }


def row_of(raw: dict[str, Any]) -> Row:
    """A row of the table."""
    plans = raw["plans"]
    peak = {name: f"{plan['memory_bytes']['peak'] / 1e9:.1f}" for name, plan in plans.items()}
    best, ones = (plans[name]["step_seconds"] for name in ("optimum", "ones"))
    fits = plans["ones"]["fits"]
    return [
        raw["name"],
        f"{raw['limit_bytes'] / 1e9:.1f}",
        peak["replicated"],
        f"{plans['replicated']['step_seconds']:.4g}",
        f"{ones:.4g}",
        peak["ones"],
        "yes" if fits else "no",
        f"{best:.4g}",
        peak["optimum"],
        f"{ones / best:.3f}" if fits else "no plan",
        percent(best / raw["free_seconds"] - 1),
    ]


def main() -> None:
    """Solve, judge, print and write."""
    chosen = parser(__doc__).parse_args()
    shares = []
    for task in OLD:
        problems = tasks().task(task).problems.values()
        progress(f"{task}: which problems have a plan that fits")
        fit = sum(fits_at_all(problem.target) for problem in problems)
        shares.append({"task": task, "problems": len(problems), "fit": fit})
    cases = []
    for problem in tasks().task(LIMITED).problems.values():
        progress(problem.name)
        assert isinstance(problem, PartitionProblem)
        cases.append(case(problem))
    shares.append({"task": LIMITED, "problems": len(cases), "fit": len(cases)})
    over = [raw for raw in cases if not raw["plans"]["ones"]["fits"]]
    ratios = [
        raw["plans"]["ones"]["step_seconds"] / raw["plans"]["optimum"]["step_seconds"]
        for raw in cases
        if raw["plans"]["ones"]["fits"]
    ]
    binding = sum(raw["free_peak"] > raw["limit_bytes"] for raw in cases)
    sections = [
        "Problems of the leaderboard's partition tasks of which some plan keeps to 0.9 of the "
        "memory of a device, by the exact solver.",
        table(["task", "problems", "with a plan that fits"], [list(x.values()) for x in shares]),
        f"Of {LIMITED}: the proven optimum within memory, and the plan of the constant action 1. "
        f"It does not fit on {len(over)} of {len(cases)} problems; on the others it takes "
        f"{min(ratios):.3f} to {max(ratios):.3f} times as long as the optimum. On {binding} the "
        "shortest step without a limit does not fit; the last column says by how much the limit "
        "makes the step longer. Memory in GB, peaks of one device.",
        table(
            [
                "problem", "limit", "replicated", "(s)", "action 1 (s)", "its peak", "fits",
                "optimum (s)", "its peak", "action 1 / optimum", "limit costs",
            ],
            map(row_of, cases),
        ),
        f"Exact plans took at most {max(raw['seconds'] for raw in cases):.1f} s.",
    ]  # fmt: skip
    publish("fits", sections, {"shares": shares, "cases": cases}, chosen.out)


if __name__ == "__main__":
    main()
