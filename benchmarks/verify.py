"""Partition plans against XLA's own partitioner, Shardy: exact ones, random ones, illegal ones.

Needs the extra ``jax``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.framework import INSTANCES, Column, Row, columns, main, measurement, spent
from benchmarks.shardy import small_models
from parenvs import from_jax, verify
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import choose_cluster
from parenvs.shardy.verify import Verification
from parenvs.tasks.partition.classes import RULE_SETS
from parenvs.tasks.partition.problem import Partitioning, PartitionPlan, load_partitioning

DEVICES = 8
KINDS = {  # scope, reward
    "exact, paper's reward": ("variables", "paper"),
    "exact, step time": ("variables", "step_time"),
    "exact batch, paper's reward": ("inputs", "paper"),
    "exact batch, step time": ("inputs", "step_time"),
}
KEPT = 0.8
"""Share of the classes that a random plan tries to partition."""


@measurement(
    title="Plans verified by Shardy",
    wrong=lambda data: data.get("odd"),
    about={"plans": "random plans of each kind"},
)
def verify_(plans: int = 20) -> Iterator[tuple[str, Row | str]]:
    for instance in INSTANCES:
        for rules in RULE_SETS:
            yield from exact_rows(instance, rules)
    for name, make in small_models().items():
        for rules in RULE_SETS:
            yield from random_rows(name, make(), rules, plans)


def exact_rows(instance: str, rules: str) -> Iterator[tuple[str, Row | str]]:
    """Exact plans of a shipped graph."""
    for kind, (scope, reward) in KINDS.items():
        cluster = choose_cluster(devices=DEVICES)
        problem = load_partitioning(instance, cluster, rules, scope=scope, reward=reward)
        plan = exact_partition(problem).plan
        yield from verified(problem, kind, [plan], None)


def random_rows(name: str, model: Any, rules: str, count: int) -> Iterator[tuple[str, Row | str]]:
    """Random plans of a small model: legal ones, and the same with a class that conflicts."""
    import jax

    from parenvs.datasets.models import train_step

    function, args = train_step(model)
    lowered = jax.jit(function, keep_unused=True).lower(*args)
    graph = from_jax(function, *args, parts=False, name=name)
    problem = Partitioning.build(graph, choose_cluster(devices=DEVICES), rules, reward="step_time")
    for kind, conflict in (("random, legal", False), ("random, a conflict added", True)):
        plans = random_plans(problem, count, conflict)
        if plans:
            yield from verified(problem, kind, plans, lowered)


def random_plans(problem: Partitioning, count: int, conflict: bool) -> list[PartitionPlan]:
    """Draw legal plans, or plans with one more class that conflicts with theirs."""
    rng = np.random.default_rng(0)
    plans: list[PartitionPlan] = []
    for _ in range(10 * count):
        chosen = independent(problem, rng)
        if conflict:
            rivals = [x for one in np.flatnonzero(chosen) for x in problem.classes.rivals(one)]
            rivals = np.intersect1d(rivals, problem.decidable("all"))
            chosen[rng.choice(rivals, size=min(len(rivals), 1))] = True
        plan = problem.plan(chosen)
        # A plan names one dimension per input, so the added class cannot always be expressed.
        if len(plans) < count and problem.report(plan).legal != conflict:
            plans.append(plan)
    return plans


def independent(problem: Partitioning, rng: np.random.Generator) -> np.ndarray:
    """(C,) bool: classes taken in random order, of those that conflict with none before."""
    chosen = np.zeros(len(problem.classes), dtype=bool)
    for one in rng.permutation(problem.decidable("all")):
        if rng.random() < KEPT and not chosen[problem.classes.rivals(one)].any():
            chosen[one] = True
    return chosen


def verified(
    problem: Partitioning, kind: str, plans: Sequence[PartitionPlan], source: Any
) -> Iterator[tuple[str, Row | str]]:
    """Verify plans by Shardy, and say what is not as expected."""
    row: Row = {"graph": problem.graph.name, "rules": problem.rules, "plan": kind}
    with spent(row, clock=time.perf_counter):
        found = [verify(problem.graph, plan, source) for plan in plans]
    yield "rows", {**row, "plans": [counted(one) for one in found]}
    for one in found:
        if unexpected(one):
            yield "odd", one.text()


def unexpected(found: Verification) -> bool:
    """Whether Shardy refuses a legal plan, or accepts an illegal one that it compared in full."""
    return not found.agrees if found.legal else found.agrees and not found.not_compared


def counted(found: Verification) -> Row:
    """A verification as JSON types, with numbers in place of long lists."""
    numbers = {key: len(getattr(found, key)) for key in ("disagreements", "reshards")}
    return found.to_json() | numbers


def total(key: str) -> Any:
    """A column: the sum of a figure over a row's plans."""
    return lambda row: f"{sum(plan[key] for plan in row['plans']):,}"


def all_reduces(row: Row) -> str:
    pair = (total("predicted_all_reduces")(row), total("all_reduces")(row))
    return " / ".join(pair) if row["plans"][0]["legal"] else ""


COLUMNS: list[Column] = [
    ("graph", "{graph}"),
    ("rules", "{rules}"),
    ("plan", "{plan}"),
    ("mesh", lambda row: ", ".join(map(str, sorted({plan["mesh"] for plan in row["plans"]})))),
    ("told", total("decided")),
    ("inputs compared", total("compared")),
    ("differ", total("disagreements")),
    ("classes left out", lambda row: f"{sum(len(x['not_compared']) for x in row['plans']):,}"),
    ("reshards", total("reshards")),
    ("agrees", lambda row: f"{sum(x['agrees'] for x in row['plans'])} of {len(row['plans'])}"),
    ("all-reduces, predicted / Shardy's", all_reduces),
    ("seconds a plan", lambda row: f"{row['seconds'] / len(row['plans']):.2f}"),
]


@verify_.page
def page(data: dict[str, Any]) -> list[str]:
    odd = data.get("odd", [])
    legal = [plan for row in data["rows"] for plan in row["plans"] if plan["legal"]]
    same = sum(x["all_reduces"] == x["predicted_all_reduces"] for x in legal)
    return [
        f"Training steps; plans for {DEVICES} devices. Shardy is told one dimension of each "
        "partitioned class (`told`) and propagates it; every input with a dimension larger than 1 "
        "is compared. `mesh`: size of the mesh axis, which has to divide the dimensions; "
        "`classes left out`: those that it does not divide. A legal plan should agree, a plan with "
        "a conflict should not, unless one of the classes is left out. Numbers of rows with "
        "several plans are sums.",
        columns(data["rows"], COLUMNS, left=3),
        f"Legal plans with as many all-reduces as predicted: {same:,} of {len(legal):,}. "
        "Inputs compared, that the plan and Shardy partition alike, in legal plans: "
        f"{sum(x['compared'] - x['disagreements'] for x in legal):,} of "
        f"{sum(x['compared'] for x in legal):,}. Not as expected: "
        + ("none." if not odd else f"{len(odd)}."),
        *odd[:5],
    ]


if __name__ == "__main__":
    main(verify_)
