"""Partition plans against XLA's own partitioner, Shardy: exact ones, random ones, illegal ones.

Needs the extra ``jax``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import INSTANCES, parser, progress, publish, table
from benchmarks.shardy import small_models
from parenvs import from_jax, verify
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import choose_cluster
from parenvs.shardy.verify import Verification
from parenvs.tasks.partition.load import load_partitioning
from parenvs.tasks.partition.plan import RULE_SETS, PartitionPlan
from parenvs.tasks.partition.problem import Partitioning

DEVICES = 8
KINDS = {  # scope, reward
    "exact, paper's reward": ("variables", "paper"),
    "exact, step time": ("variables", "step_time"),
    "exact batch, paper's reward": ("inputs", "paper"),
    "exact batch, step time": ("inputs", "step_time"),
}
KEPT = 0.8
"""Share of the classes that a random plan tries to partition."""


@dataclass(frozen=True)
class Row:
    """Plans of one kind, with Shardy's verdicts on them."""

    instance: str
    rules: str
    kind: str
    found: Sequence[Verification]
    seconds: float

    @property
    def agreed(self) -> int:
        """Number of plans with which Shardy agrees."""
        return sum(x.agrees for x in self.found)

    def cells(self) -> list[str]:
        """The cells of the table's row."""
        found = self.found
        meshes = sorted({x.mesh for x in found})
        predicted, all_reduces = (
            sum(getattr(x, key) for x in found) for key in ("predicted_all_reduces", "all_reduces")
        )
        legal = [self.instance, self.rules, self.kind, ", ".join(map(str, meshes))]
        numbers = [
            sum(x.decided for x in found),
            sum(x.compared for x in found),
            sum(len(x.disagreements) for x in found),
            sum(len(x.not_compared) for x in found),
            sum(len(x.reshards) for x in found),
            f"{self.agreed} of {len(found)}",
            f"{predicted:,} / {all_reduces:,}" if found[0].legal else "",
            f"{self.seconds / len(found):.2f}",
        ]
        return [*legal, *(f"{x:,}" if isinstance(x, int) else x for x in numbers)]


def exact_rows(instance: str, rules: str) -> list[Row]:
    """A row for each exact plan of a shipped graph."""
    rows = []
    for kind, (scope, reward) in KINDS.items():
        cluster = choose_cluster(devices=DEVICES)
        problem = load_partitioning(instance, cluster, rules, scope=scope, reward=reward)
        plan = exact_partition(problem).plan
        rows.append(verified(problem, kind, [plan], None))
    return rows


def random_rows(name: str, model: Any, rules: str, count: int) -> list[Row]:
    """Random plans of a small model: legal ones, and the same with a class that conflicts."""
    import jax

    from parenvs.datasets.models import train_step

    function, args = train_step(model)
    lowered = jax.jit(function, keep_unused=True).lower(*args)
    graph = from_jax(function, *args, name=name)
    problem = Partitioning.build(graph, choose_cluster(devices=DEVICES), rules, reward="step_time")
    rows = []
    for kind, conflict in (("random, legal", False), ("random, a conflict added", True)):
        plans = random_plans(problem, count, conflict)
        if plans:
            rows.append(verified(problem, kind, plans, lowered))
    return rows


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


def verified(problem: Partitioning, kind: str, plans: Sequence[PartitionPlan], source: Any) -> Row:
    """Verify plans by Shardy; returns the verdicts."""
    begin = time.perf_counter()
    found = [verify(problem.graph, plan, source) for plan in plans]
    row = Row(problem.graph.name, problem.rules, kind, found, time.perf_counter() - begin)
    progress(f"{row.cells()}")
    return row


def unexpected(found: Verification) -> bool:
    """Whether Shardy refuses a legal plan, or accepts an illegal one that it compared in full."""
    return not found.agrees if found.legal else found.agrees and not found.not_compared


def counted(found: Verification) -> dict[str, Any]:
    """A verification as JSON types, with numbers in place of long lists."""
    numbers = {key: len(getattr(found, key)) for key in ("disagreements", "reshards")}
    return found.to_json() | numbers


def main() -> int:
    """Print and write a row for each kind of plan; the exit status is 1 if one is unexpected."""
    options = parser(__doc__)
    options.add_argument("--plans", type=int, default=20, help="random plans of each kind")
    chosen = options.parse_args()
    rows = [row for x in INSTANCES for rules in RULE_SETS for row in exact_rows(x, rules)]
    small = {name: make() for name, make in small_models().items()}
    for name, model in small.items():
        for rules in RULE_SETS:
            rows += random_rows(name, model, rules, chosen.plans)
    odd = [x.text() for row in rows for x in row.found if unexpected(x)]
    legal = [x for row in rows for x in row.found if x.legal]
    same = sum(x.all_reduces == x.predicted_all_reduces for x in legal)
    header = ["graph", "rules", "plan", "mesh", "told", "inputs compared", "differ"]
    header += ["classes left out", "reshards", "agrees", "all-reduces, predicted / Shardy's"]
    header += ["seconds a plan"]
    sections = [
        f"Training steps; plans for {DEVICES} devices. Shardy is told one dimension of each "
        "partitioned class (`told`) and propagates it; every input with a dimension larger than 1 "
        "is compared. `mesh`: size of the mesh axis, which has to divide the dimensions; "
        "`classes left out`: those that it does not divide. A legal plan should agree, a plan with "
        "a conflict should not, unless one of the classes is left out. Numbers of rows with "
        "several plans are sums.",
        table(header, [row.cells() for row in rows], left=3),
        f"Legal plans with as many all-reduces as predicted: {same:,} of {len(legal):,}. "
        "Inputs compared, that the plan and Shardy partition alike, in legal plans: "
        f"{sum(x.compared - len(x.disagreements) for x in legal):,} of "
        f"{sum(x.compared for x in legal):,}. Not as expected: "
        + ("none." if not odd else f"{len(odd)}."),
        *odd[:5],
    ]
    data = [
        {"graph": x.instance, "rules": x.rules, "plan": x.kind, "seconds": x.seconds}
        | {"plans": [counted(one) for one in x.found]}
        for x in rows
    ]
    publish("verify", sections, {"rows": data, "odd": odd}, chosen.out)
    return 1 if odd else 0


if __name__ == "__main__":
    sys.exit(main())
