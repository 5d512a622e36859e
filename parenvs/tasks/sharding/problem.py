"""Problems of intra-operator parallelism, and the judge of their plans.

Each node of a program takes one of its strategies. A plan costs what its nodes and edges cost
together; the nodes in use at a time must not use more than a limit. The format and its evaluation
are those of the ASPLOS 2025 contest on intra-operator parallelism (arXiv 2501.10387).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from parenvs.core.plan import Bounded, Price, Report
from parenvs.tasks.sharding.plan import ShardingPlan

FORBIDDEN = 10**18
"""Costs from here on mean that a strategy, or a pair of them, must not be taken."""


@dataclass(frozen=True, eq=False)
class Sharding:
    """An IOPDDL problem of n nodes and m edges; all arrays are int64 and hold whole numbers from 0.

    Attributes:
        name: the problem's name.
        limit: what all nodes together may use at any time; None: any amount.
        intervals: (n, 2) half-open interval of times in which each node uses memory; it may be
            empty.
        offset: (n + 1,) where each node's strategies begin in ``costs`` and ``usages``.
        costs: (s,) cost of each strategy.
        usages: (s,) what each strategy uses at every time of its node's interval.
        ends: (m, 2) nodes a and b of each edge; two nodes may have several edges.
        edge_offset: (m + 1,) where each edge's costs begin in ``edge_costs``.
        edge_costs: (e,) cost of each pair of strategies, row-major: a's strategy times the number
            of b's strategies, plus b's strategy.
        instance: name or path that plans carry (default: the name).
    """

    task: ClassVar[str] = "sharding"
    name: str
    limit: int | None
    intervals: np.ndarray
    offset: np.ndarray
    costs: np.ndarray
    usages: np.ndarray
    ends: np.ndarray
    edge_offset: np.ndarray
    edge_costs: np.ndarray
    instance: str = ""

    def __post_init__(self) -> None:
        """Take the problem's name where no instance is given."""
        if not self.instance:
            object.__setattr__(self, "instance", self.name)

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.offset) - 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Sharding:
        """Itself: nothing in it changes."""
        return self

    def __repr__(self) -> str:
        """Name and sizes, in a line."""
        return f"Sharding({self.name!r}, {len(self):,} nodes, {len(self.ends):,} edges)"

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:...`` over limit and arrays; name and form of the file do not change it."""
        digest = hashlib.sha256(f"iopddl {self.limit}".encode())
        for array in (
            self.intervals, self.offset, self.costs, self.usages, self.ends, self.edge_offset,
            self.edge_costs,
        ):  # fmt: skip
            digest.update(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return f"sha256:{digest.hexdigest()}"

    @cached_property
    def sizes(self) -> np.ndarray:
        """(n,) number of strategies of each node."""
        return np.diff(self.offset)

    @cached_property
    def events(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where memory begins and ends to be used, by time, ends first: (times, nodes, signs).

        Nodes whose interval is empty have none.
        """
        lo, hi = self.intervals.T
        (nonempty,) = np.nonzero(lo < hi)
        times = np.concatenate([lo[nonempty], hi[nonempty]])
        signs = np.repeat(np.array([1, -1]), len(nonempty))
        order = np.lexsort((signs, times))
        return times[order], np.concatenate([nonempty, nonempty])[order], signs[order]

    def cost(self, strategies: np.ndarray) -> int:
        """Return the exact cost of strategies, (n,) int64, one for each node."""
        a, b = self.ends.T
        at = self.edge_offset[:-1] + strategies[a] * self.sizes[b] + strategies[b]
        nodes = self.costs[self.offset[:-1] + strategies]
        return sum(nodes.tolist()) + sum(self.edge_costs[at].tolist())

    def usage(self, strategies: np.ndarray) -> tuple[int, int]:
        """Return the exact peak of what strategies, (n,) int64, use, and the first time of it.

        Both are 0 if nothing is ever used.
        """
        times, nodes, signs = self.events
        used = self.usages[self.offset[:-1] + strategies][nodes]
        changes = [u if s > 0 else -u for u, s in zip(used.tolist(), signs.tolist(), strict=True)]
        totals = list(accumulate(changes))
        peak = max(totals, default=0)
        return (peak, int(times[totals.index(peak)])) if peak > 0 else (0, 0)

    def plan(self, strategies: Sequence[int] | np.ndarray) -> ShardingPlan:
        """The plan that takes these strategies, (n,)."""
        return ShardingPlan(
            self.instance, self.fingerprint, tuple(int(strategy) for strategy in strategies)
        )

    def report(self, plan: ShardingPlan) -> ShardingReport:
        """Judge a plan in exact integers, as the contest's evaluator does.

        A plan of another problem, or with strategies that the nodes do not have, has no cost.
        """
        wrong = []
        if plan.fingerprint != self.fingerprint:
            wrong.append(
                f"the plan is for another problem: its fingerprint is {plan.fingerprint[:80]}, "
                f"that of {self.name} is {self.fingerprint}"
            )
        if len(plan.strategies) != len(self):
            wrong.append(f"{len(plan.strategies)} strategies are given for {len(self)} nodes")
        else:
            given = np.array(plan.strategies, dtype=np.int64)
            (bad,) = np.nonzero((given < 0) | (given >= self.sizes))
            if len(bad):
                node = int(bad[0])
                wrong.append(
                    f"{len(bad)} strategies do not exist, the first that of node {node}, which "
                    f"has 0 to {self.sizes[node] - 1}, not {given[node]}"
                )
        if wrong:
            return ShardingReport(plan, self, tuple(wrong), None, None, 0)
        peak, at = self.usage(given)
        if self.limit is not None and peak > self.limit:
            wrong.append(f"at time {at} the nodes use {peak:,}, and {self.limit:,} are allowed")
        return ShardingReport(plan, self, tuple(wrong), self.cost(given), peak, at)


def price(report: ShardingReport) -> Price:
    """Return that there is no price: costs of the format have no unit; a hook of the task."""
    return Price(notes=("costs of nodes and edges have no unit",))


@dataclass(frozen=True)
class ShardingReport(Report):
    """What the judge says of a plan of strategies.

    Attributes:
        plan: the plan.
        problem: what it was judged on.
        reasons: every rule that it breaks, in words; empty if it is legal.
        cost: cost of all nodes and edges, exact; None if the strategies are none of the problem's.
        peak: most that is used at a time, exact; None likewise.
        peak_at: first time of the peak.
        bound: proven lower bound of the cost of all legal plans, exact, or None.
    """

    task: ClassVar[str] = "sharding"
    plan: ShardingPlan
    problem: Sharding
    reasons: tuple[str, ...]
    cost: int | None
    peak: int | None
    peak_at: int
    bound: int | None = None

    @property
    def forbidden(self) -> bool:
        """Whether the plan takes what the format marks as forbidden; it is legal nevertheless."""
        return self.cost is not None and self.cost >= FORBIDDEN

    def gap(self, answer: Bounded) -> float | None:
        """Share by which the cost exceeds a bound; None without cost or bound."""
        if self.cost is None or answer.bound is None:
            return None
        return (self.cost - answer.bound) / max(abs(answer.bound), 1)

    def certified(self, answer: Bounded) -> ShardingReport:
        """Return the report with the bound that a planner proved."""
        bound = None if answer.bound is None else math.ceil(answer.bound)  # costs are whole
        return replace(self, bound=bound)

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object of JSON types."""
        return {
            "task": self.plan.task,
            "instance": self.problem.name,
            "fingerprint": self.problem.fingerprint,
            "legal": self.legal,
            "reasons": list(self.reasons),
            "cost": self.cost,
            "peak": self.peak,
            "peak_at": self.peak_at,
            "limit": self.problem.limit,
            "forbidden": self.forbidden,
            **({} if self.bound is None else {"bound": self.bound, "gap": self.gap(self)}),
        }

    def __str__(self) -> str:
        """Return the report as lines of text."""
        head = f"{self.problem.name}: {len(self.problem):,} nodes"
        lines = [f"{head}, {len(self.problem.ends):,} edges"]
        lines += [f"illegal: {reason}" for reason in self.reasons]
        if self.cost is not None:
            lines.append(f"cost {self.cost:,}" + (", forbidden pairs" if self.forbidden else ""))
        if self.bound is not None:
            excess = self.gap(self)
            gap = "" if excess is None else f", {100 * excess:.4f} % below the cost"
            lines.append(f"proven lower bound {self.bound:,}{gap}")
        if self.peak is not None:
            limit = self.problem.limit
            share = "" if not limit else f" of {limit:,} ({100 * self.peak / limit:.2f} %)"
            lines.append(f"peak {self.peak:,}{share} at time {self.peak_at}")
        return "\n".join(lines)
