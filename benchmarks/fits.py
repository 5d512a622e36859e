"""Partition tasks and memory: which problems have a plan that fits, and what the action 1 earns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.framework import Column, Row, columns, main, measurement, percent, table
from parenvs.agents.partition.entries import LIMITED, PartitionProblem
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.heuristics import partition_all, replicate
from parenvs.errors import InfeasibleError
from parenvs.leaderboard.tasks import tasks
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.space import PartitionSpace

OLD = ("operator-partition-paper", "operator-partition-step-time", "data-parallel")
"""Tasks whose plans no memory limits."""


def fits_at_all(problem: Partitioning) -> bool:
    """Whether some plan keeps to 0.9 of the memory of a device."""
    try:
        exact_partition(problem, problem.cluster.memory_limit)
    except InfeasibleError:
        return False
    return True


def case(problem: PartitionProblem) -> Row:
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


COLUMNS: list[Column] = [
    ("problem", "{name}"),
    ("limit", "{limit_bytes:.1f/1e9}"),
    ("replicated", "{plans[replicated][memory_bytes][peak]:.1f/1e9}"),
    ("(s)", "{plans[replicated][step_seconds]:.4g}"),
    ("action 1 (s)", "{plans[ones][step_seconds]:.4g}"),
    ("its peak", "{plans[ones][memory_bytes][peak]:.1f/1e9}"),
    ("fits", lambda row: "yes" if row["plans"]["ones"]["fits"] else "no"),
    ("optimum (s)", "{plans[optimum][step_seconds]:.4g}"),
    ("its peak", "{plans[optimum][memory_bytes][peak]:.1f/1e9}"),
    (
        "action 1 / optimum",
        lambda row: f"{ratio(row):.3f}" if row["plans"]["ones"]["fits"] else "no plan",
    ),
    (
        "limit costs",
        lambda row: percent(row["plans"]["optimum"]["step_seconds"] / row["free_seconds"] - 1),
    ),
]


def ratio(row: Row) -> float:
    """Step time of the action 1 over the optimum's."""
    return row["plans"]["ones"]["step_seconds"] / row["plans"]["optimum"]["step_seconds"]


@measurement(title="Partitions that fit in memory")
def fits() -> Iterator[tuple[str, Row]]:
    for task in OLD:
        problems = tasks().task(task).problems.values()
        fit = sum(fits_at_all(problem.target) for problem in problems)
        yield "shares", {"task": task, "problems": len(problems), "fit": fit}
    limited = tasks().task(LIMITED).problems.values()
    yield "shares", {"task": LIMITED, "problems": len(limited), "fit": len(limited)}
    for problem in limited:
        assert isinstance(problem, PartitionProblem)
        yield "cases", case(problem)


@fits.page
def page(data: dict[str, list[Row]]) -> list[str]:
    cases = data["cases"]
    ratios = [ratio(row) for row in cases if row["plans"]["ones"]["fits"]]
    binding = sum(row["free_peak"] > row["limit_bytes"] for row in cases)
    return [
        "Problems of the leaderboard's partition tasks of which some plan keeps to 0.9 of the "
        "memory of a device, by the exact solver.",
        table(
            ["task", "problems", "with a plan that fits"],
            [list(share.values()) for share in data["shares"]],
        ),
        f"Of {LIMITED}: the proven optimum within memory, and the plan of the constant action 1. "
        f"It does not fit on {len(cases) - len(ratios)} of {len(cases)} problems; on the others it "
        f"takes {min(ratios):.3f} to {max(ratios):.3f} times as long as the optimum. On {binding} "
        "the shortest step without a limit does not fit; the last column says by how much the "
        "limit makes the step longer. Memory in GB, peaks of one device.",
        columns(cases, COLUMNS),
        f"Exact plans took at most {max(row['seconds'] for row in cases):.1f} s.",
    ]


if __name__ == "__main__":
    main(fits)
