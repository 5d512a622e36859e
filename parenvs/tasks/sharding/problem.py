"""Problems of intra-operator parallelism, and the judge of their plans.

Each node of a program takes one of its strategies. A plan costs what its nodes and edges cost
together; the nodes in use at a time must not use more than a limit. The format and its evaluation
are those of the ASPLOS 2025 contest on intra-operator parallelism (arXiv 2501.10387).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any, ClassVar

import numpy as np

from parenvs.compiled import Array
from parenvs.core.plan import Bounded, Plan, Report
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.fields import Integer, Text, settle


@dataclass(frozen=True)
class ShardingPlan(Plan):
    """A strategy for each node. It names no cluster: the problem's costs hold the devices.

    Attributes:
        fingerprint: ``sha256:...`` of the problem's arrays.
        strategies: index of the strategy of each node, in the order of the nodes.
    """

    instance: Text
    fingerprint: Text
    strategies: tuple[Integer, ...]

    task: ClassVar[str] = "sharding"


FORBIDDEN = 10**18
"""Costs from here on mean that a strategy, or a pair of them, must not be taken."""


def flattened(rows: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Return the numbers of k rows one after the other, and where each begins, (k + 1,); int64."""
    offset = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return np.fromiter(chain.from_iterable(rows), np.int64, int(offset[-1])), offset


@dataclass(frozen=True, eq=False)
class Sharding:
    """An IOPDDL problem of n nodes and m edges; all arrays are int64 and hold whole numbers from 0.

    Attributes:
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
    intervals: Array
    offset: Array
    costs: Array
    usages: Array
    ends: Array
    edge_offset: Array
    edge_costs: Array
    instance: str = ""

    @classmethod
    def of_lists(
        cls, name: str, limit: int | None, intervals: Any, costs: Sequence[Sequence[int]],
        usages: Sequence[Sequence[int]], ends: Any, edge_costs: Sequence[Sequence[int]],
        instance: str = "",
    ) -> Sharding:  # fmt: skip
        """Make a problem of lists for each node and edge; arguments as in its file."""
        node_costs, offset = flattened(costs)
        pair_costs, edge_offset = flattened(edge_costs)
        intervals, ends = (np.array(x, np.int64).reshape(-1, 2) for x in (intervals, ends))
        return cls(
            name, limit, intervals, offset, node_costs, flattened(usages)[0], ends, edge_offset,
            pair_costs, instance,
        )  # fmt: skip

    def __post_init__(self) -> None:
        """Take the problem's name where no instance is given."""
        settle(self, "instance")
        if not self.instance:
            object.__setattr__(self, "instance", self.name)

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.offset) - 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Sharding:
        """Return the problem itself: it is immutable."""
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
            digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        return f"sha256:{digest.hexdigest()}"

    @cached_property
    def sizes(self) -> Array:
        """(n,) number of strategies of each node."""
        return np.diff(self.offset)

    @cached_property
    def events(self) -> tuple[Array, Array, Array]:
        """Where memory begins and ends to be used, by time, ends first: (times, nodes, signs).

        Nodes whose interval is empty have none.
        """
        lo, hi = self.intervals.T
        (nonempty,) = np.nonzero(lo < hi)
        times = np.concatenate([lo[nonempty], hi[nonempty]])
        signs = np.repeat(np.array([1, -1]), len(nonempty))
        # Ends before beginnings: intervals are half-open, so neighbors in time do not add.
        order = np.lexsort((signs, times))
        return times[order], np.concatenate([nonempty, nonempty])[order], signs[order]

    def cost(self, strategies: Array) -> int:
        """Return the exact cost of strategies, (n,) int64, one for each node."""
        return _exact_cost(self, strategies)

    def usage(self, strategies: Array) -> tuple[int, int]:
        """Return the exact peak memory of strategies, (n,) int64, and its first time; 0 if none."""
        times, nodes, signs = self.events
        used = self.usages[self.offset[:-1] + strategies][nodes]
        changes = [u if s > 0 else -u for u, s in zip(used.tolist(), signs.tolist(), strict=True)]
        totals = list(accumulate(changes))
        peak = max(totals, default=0)
        return (peak, int(times[totals.index(peak)])) if peak > 0 else (0, 0)

    def plan(self, strategies: Sequence[int] | Array) -> ShardingPlan:
        """The plan that takes these strategies, (n,)."""
        return ShardingPlan(self.instance, self.fingerprint, tuple(map(int, strategies)))

    def report(self, plan: ShardingPlan) -> ShardingReport:
        """Judge a plan in exact integers, as the contest's evaluator does.

        A plan of another problem, or with strategies that the nodes do not have, has no cost.
        """
        reasons = []
        if plan.fingerprint != self.fingerprint:
            reasons.append(
                f"the plan is for another problem: its fingerprint is {plan.fingerprint[:80]}, "
                f"that of {self.name} is {self.fingerprint}"
            )
        if len(plan.strategies) != len(self):
            reasons.append(f"{len(plan.strategies)} strategies are given for {len(self)} nodes")
        else:
            given = np.array(plan.strategies, np.int64)
            (invalid,) = np.nonzero((given < 0) | (given >= self.sizes))
            if len(invalid):
                node = int(invalid[0])
                reasons.append(
                    f"{len(invalid)} strategies do not exist, the first that of node {node}, which "
                    f"has 0 to {self.sizes[node] - 1}, not {given[node]}"
                )
        if reasons:
            return ShardingReport(plan, self, tuple(reasons), None, None, 0)
        peak, time = self.usage(given)
        if self.limit is not None and peak > self.limit:
            reasons.append(f"at time {time} the nodes use {peak:,}, and {self.limit:,} are allowed")
        return ShardingReport(plan, self, tuple(reasons), self.cost(given), peak, time)


@dataclass(frozen=True)
class ShardingReport(Report):
    """The evaluation of a plan of strategies.

    Attributes:
        reasons: a text for every constraint that the plan breaks; empty if it is legal.
        cost: cost of all nodes and edges, exact; None if the strategies are none of the problem's.
        peak: largest memory in use at a time, exact; None likewise.
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


NEVER = 2**60
"""Forbidden costs within a reduced problem; two of them can be added in int64."""


def as_floats(costs: Array) -> Array:
    """Return costs of a reduced problem as float64, infinite where they are ``NEVER``."""
    return np.where(costs >= NEVER, np.inf, costs.astype(float))


@dataclass(frozen=True, eq=False)
class Reduced:
    """A reduced problem of n nodes, m edges, u usage terms and T times.

    A plan costs ``constant`` and what its nodes and edges cost; at each time the terms whose
    interval holds it use at most ``slack``.

    Attributes:
        problem: the original problem; None if it is not kept, and ``lift`` is impossible.
        nodes: (n,) numbers of the remaining nodes in the problem, ascending.
        offset: (n + 1,) where each node's costs begin.
        costs: (s,) cost of each strategy.
        ends: (m, 2) nodes of each edge, the smaller first; every pair once.
        edge_offset: (m + 1,) where each edge's costs begin.
        edge_costs: (e,) cost of each pair, row-major; ``NEVER`` if it is forbidden.
        term_node: (u,) node of each term.
        term_times: (u, 2) half-open interval of times.
        term_offset: (u + 1,) where each term's usages begin.
        usages: usage of each strategy of the term's node, of which the least is 0.
        slack: (T,) what the terms may use at each time.
        values: (s,) the problem's number of each strategy.
        steps: (node, neighbors, table of its strategy by theirs) of each removed node, the last
            removed first.
    """

    problem: Sharding | None
    nodes: Array
    offset: Array
    costs: Array
    ends: Array
    edge_offset: Array
    edge_costs: Array
    term_node: Array
    term_times: Array
    term_offset: Array
    usages: Array
    slack: Array
    constant: int
    values: Array
    steps: tuple[tuple[int, tuple[int, ...], Array], ...]

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    def lift(self, chosen: Array) -> Array:
        """Return the strategies of all nodes of the problem for a choice, (n,)."""
        assert self.problem is not None
        strategies = np.full(len(self.problem), -1, np.int64)
        strategies[self.nodes] = self.values[self.offset[:-1] + chosen]
        # The last node to go depends on nodes that were still there, so it is lifted first.
        for node, neighbors, table in self.steps:
            strategies[node] = table[tuple(strategies[x] for x in neighbors)]
        return strategies

    def cost(self, chosen: Array) -> int:
        """Return the cost of a choice, (n,); ``NEVER`` or more if it takes something forbidden."""
        return self.constant + _exact_cost(self, chosen)

    def profile(self, chosen: Array) -> Array:
        """Return what the terms of a choice, (n,), use at each time, (T,)."""
        used = self.usages[self.term_offset[:-1] + chosen[self.term_node]]
        return sums_over_time(self.term_times, used, len(self.slack))

    def legal(self, chosen: Array) -> bool:
        """Whether a choice, (n,), takes nothing forbidden and keeps the limit."""
        return self.cost(chosen) < NEVER and bool((self.profile(chosen) <= self.slack).all())


def pair_entries(problem: Sharding | Reduced, chosen: Array) -> Array:
    """Return where a choice's cost of each edge stands in ``edge_costs``, (m,)."""
    a, b = problem.ends.T
    return problem.edge_offset[:-1] + chosen[a] * np.diff(problem.offset)[b] + chosen[b]


def _exact_cost(problem: Sharding | Reduced, chosen: Array) -> int:
    # Python integers, as sums may exceed 64 bits.
    nodes = problem.costs[problem.offset[:-1] + chosen]
    edges = problem.edge_costs[pair_entries(problem, chosen)]
    return sum(nodes.tolist()) + sum(edges.tolist())


def sums_over_time(times: Array, amounts: Array, count: int) -> Array:
    """Return the sum at each of so many times, (count,), of amounts, (u,), in intervals, (u, 2)."""
    change = np.zeros(count + 1, amounts.dtype)
    np.add.at(change, times[:, 0], amounts)
    np.add.at(change, times[:, 1], -amounts)
    return np.cumsum(change)[:-1]


def largest_sum(values: Array, offset: Array, forbidden: float) -> float:
    """Return the sum over all parts of the largest value that is not forbidden."""
    if len(offset) < 2:
        return 0.0
    allowed = np.where(values >= forbidden, 0, values).astype(float)
    return float(np.maximum.reduceat(allowed, offset[:-1]).sum())


# Entries that are compared at once.
_MAX_PAIRS = 2**22
# A contraction is left out if it adds more costs of edges.
_MAX_GROWTH = 2**20

Term = dict[tuple[int, int], Array]
"""(first time, end) -> (k,) usages of a node's strategies."""


def reduce(problem: Sharding, stopped: Callable[[], bool] = lambda: False) -> Reduced:
    """Reduce a problem.

    Args:
        problem: the problem.
        stopped: returns whether to end early, with what is reduced so far.

    Raises:
        InfeasibleError: no plan keeps the limit without taking what is forbidden.
        ParenvsError: the costs are too large for sums in 64 bits.
    """
    return _Reduction(problem, stopped).run()


def _add_term(terms: Term, times: tuple[int, int], used: Array) -> None:
    terms[times] = terms[times] + used if times in terms else used


class _Reduction:
    def __init__(self, problem: Sharding, stopped: Callable[[], bool]) -> None:
        self.problem, self.stopped = problem, stopped
        self.check_sums()
        offset = problem.offset.tolist()
        spans = list(pairwise(offset))
        costs = np.where(problem.costs >= FORBIDDEN, NEVER, problem.costs)
        self.cost = [costs[begin:end].copy() for begin, end in spans]
        self.kept = [np.arange(end - begin) for begin, end in spans]
        self.terms: list[Term] = [
            {(lo, hi): problem.usages[begin:end]} if lo < hi else {}
            for (lo, hi), (begin, end) in zip(problem.intervals.tolist(), spans, strict=True)
        ]
        self.edges: list[dict[int, Array]] = [{} for _ in spans]
        self.alive = np.ones(len(spans), bool)
        self.steps: list[tuple[int, tuple[int, ...], Array]] = []
        self.constant = 0
        self.slack = np.zeros(0, np.int64)
        self.dirty: set[int] = set(range(len(spans)))
        self.changed: set[tuple[int, int]] = set()
        self.add_edges()

    def check_sums(self) -> None:
        problem = self.problem
        costs = largest_sum(problem.costs, problem.offset, FORBIDDEN)
        costs += largest_sum(problem.edge_costs, problem.edge_offset, FORBIDDEN)
        usages = largest_sum(problem.usages, problem.offset, np.inf)
        for name, value in (("costs", costs), ("usages", usages)):
            if value >= FORBIDDEN:
                raise ParenvsError(
                    f"{problem.name}: its {name} can sum to {value:.3g}, and the solver counts to "
                    "10^18; divide them all by the same number"
                )

    def add_edges(self) -> None:
        """Take the problem's edges; loops become costs of their node."""
        problem = self.problem
        table = np.where(problem.edge_costs >= FORBIDDEN, NEVER, problem.edge_costs)
        offset, sizes = problem.edge_offset.tolist(), problem.sizes.tolist()
        for edge, (a, b) in enumerate(problem.ends.tolist()):
            costs = table[offset[edge] : offset[edge + 1]].reshape(sizes[a], sizes[b])
            if a == b:
                self.cost[a] = np.minimum(self.cost[a] + costs.diagonal(), NEVER)
            else:
                self.add_edge(a, b, costs)

    def add_edge(self, a: int, b: int, costs: Array) -> None:
        if b in self.edges[a]:
            costs = np.minimum(self.edges[a][b] + costs, NEVER)
        self.set_edge(a, b, costs)

    def set_edge(self, a: int, b: int, costs: Array) -> None:
        self.edges[a][b] = costs
        self.edges[b][a] = costs.T
        self.changed.add((a, b) if a < b else (b, a))

    def drop_edge(self, a: int, b: int) -> None:
        del self.edges[a][b], self.edges[b][a]
        self.changed.discard((a, b) if a < b else (b, a))
        # Nodes with fewer neighbors may be minimized out now.
        self.dirty |= {a, b}

    # Rounds

    def run(self) -> Reduced:
        self.slots()
        while self.binding_times() and not self.stopped():
            self.settle()
        return self.reduced()

    def settle(self) -> None:
        while (self.dirty or self.changed) and not self.stopped():
            while self.changed:
                self.simplify_edge(*self.changed.pop())
            nodes, self.dirty = sorted(self.dirty), set()
            for node in nodes:
                if self.alive[node]:
                    self.simplify_node(node)
                    if self.stopped():
                        return

    def keep(self, node: int, mask: Array) -> None:
        """Keep the strategies of a node where ``mask``, (k,) bool, says so."""
        if not mask.any():
            raise InfeasibleError(
                f"{self.problem.name}: node {node} has no strategy left; every plan exceeds the "
                "limit or takes what is forbidden"
            )
        self.cost[node] = self.cost[node][mask]
        self.kept[node] = self.kept[node][mask]
        self.terms[node] = {times: used[mask] for times, used in self.terms[node].items()}
        for other in list(self.edges[node]):
            self.set_edge(node, other, self.edges[node][other][mask])
            self.dirty.add(other)
        self.dirty.add(node)

    # Edges

    def simplify_edge(self, a: int, b: int) -> None:
        """Drop what has no counterpart; remove or contract an edge that decides nothing."""
        costs = self.edges[a][b]
        allowed = costs < NEVER
        if allowed.all():
            first, top = costs[:, :1], costs[:1]
            # costs[i, j] = f(i) + g(j): the edge decides nothing and moves to its ends.
            if (costs == first + (top - costs[0, 0])).all():
                self.cost[a] = np.where(self.cost[a] < NEVER, self.cost[a] + first[:, 0], NEVER)
                self.cost[b] = np.where(
                    self.cost[b] < NEVER, self.cost[b] + (top[0] - costs[0, 0]), NEVER
                )
                self.drop_edge(a, b)
            return
        of_a, of_b = allowed.sum(1), allowed.sum(0)
        if not of_a.all():
            self.keep(a, of_a > 0)
        elif not of_b.all():
            self.keep(b, of_b > 0)
        else:
            # A node that the other one determines is contracted into it.
            contractions = []
            if (of_a == 1).all() and self.growth(b, a) <= _MAX_GROWTH:
                contractions.append((b, a, allowed.argmax(1)))
            if (of_b == 1).all() and self.growth(a, b) <= _MAX_GROWTH:
                contractions.append((a, b, allowed.argmax(0)))
            if contractions:  # the node with fewer edges and terms to move goes
                self.contract(*min(contractions, key=lambda way: self.load(way[0])))

    def load(self, node: int) -> int:
        return len(self.edges[node]) + len(self.terms[node])

    def growth(self, node: int, into: int) -> int:
        """Return how many costs of edges the contraction of ``node`` into another adds."""
        others = sum(len(self.cost[other]) for other in self.edges[node] if other != into)
        return (len(self.cost[into]) - len(self.cost[node])) * others

    def contract(self, node: int, into: int, image: Array) -> None:
        """Contract a node whose strategy is ``image``, (k of ``into``,), of another's."""
        pair = self.edges[into][node][np.arange(len(image)), image]
        costs = np.minimum(self.cost[node][image] + pair, NEVER)
        self.cost[into] = np.minimum(self.cost[into] + costs, NEVER)
        for times, used in self.terms[node].items():
            _add_term(self.terms[into], times, used[image])
        table = np.zeros(int(self.problem.sizes[into]), np.int32)
        # In the problem's own numbers, so that later steps do not matter.
        table[self.kept[into]] = self.kept[node][image]
        self.drop_edge(node, into)
        for other, costs in list(self.edges[node].items()):
            self.drop_edge(node, other)
            self.add_edge(into, other, costs[image])
        self.remove(node, (into,), table)

    def remove(self, node: int, neighbors: tuple[int, ...], table: Array) -> None:
        """Remove a node without edges; ``table`` tells its strategy by those of neighbors."""
        self.steps.append((node, neighbors, table))
        self.alive[node] = False
        self.terms[node] = {}
        self.dirty.discard(node)

    # Nodes

    def simplify_node(self, node: int) -> None:
        allowed = self.cost[node] < NEVER
        if not allowed.all():
            self.keep(node, allowed)
        self.terms[node] = {
            times: used for times, used in self.terms[node].items() if len(used) > 1 or used[0]
        }
        if not self.terms[node] and self.minimize(node):
            return
        if len(self.cost[node]) > 1:
            mask = self.undominated(node)
            if not mask.all():
                self.keep(node, mask)
        elif self.edges[node]:  # one strategy: its edges are costs of the neighbors
            for other in list(self.edges[node]):
                pair = self.edges[other][node][:, 0]
                self.cost[other] = np.minimum(self.cost[other] + pair, NEVER)
                self.drop_edge(node, other)

    def minimize(self, node: int) -> bool:
        """Minimize out a node without memory and with at most two neighbors, if possible."""
        others = sorted(self.edges[node])
        whole = [int(self.problem.sizes[other]) for other in others]
        # More neighbors would need joint tables of three and more nodes.
        if len(others) > 2:
            return False
        total = self.cost[node]
        if len(others) == 2:
            a, b = others
            pairs, count = len(self.cost[a]) * len(self.cost[b]), len(total)
            # The new edge may hold no more costs than the two that go.
            grown = pairs if b not in self.edges[a] else 0
            if grown > (len(self.cost[a]) + len(self.cost[b])) * count:
                return False
            if max(pairs * count, whole[0] * whole[1]) > _MAX_PAIRS:
                return False
        for other in reversed(others):
            costs = self.edges[other][node]
            costs = costs.reshape(len(costs), *[1] * (total.ndim - 1), -1)
            total = costs + np.minimum(total, NEVER)
        table = np.zeros(whole, np.int32)
        table[np.ix_(*(self.kept[other] for other in others))] = self.kept[node][total.argmin(-1)]
        minimum = np.minimum(total.min(-1), NEVER)
        for other in others:
            self.drop_edge(node, other)
        if not others:
            self.constant += int(minimum)
        elif len(others) == 1:
            self.cost[others[0]] = np.minimum(self.cost[others[0]] + minimum, NEVER)
        else:
            self.add_edge(others[0], others[1], minimum)
        self.remove(node, tuple(others), table)
        return True

    def undominated(self, node: int) -> Array:
        """Return the strategies to keep, (k,) bool: those that no other one dominates."""
        cost, count = self.cost[node], len(self.cost[node])
        tables = []
        for table in self.edges[node].values():
            # The least that a strategy costs on an edge belongs to its node.
            minimum = table.min(1)
            if minimum.any():
                if (minimum >= NEVER).any():  # arc consistency comes first
                    return minimum < NEVER
                cost = cost + minimum
                table = np.where(table < NEVER, table - minimum[:, None], NEVER)
            tables.append(table)
        # Goldstein 1994: r replaces s if c_r - c_s + sum_e max_b (M[r, b] - M[s, b]) <= 0.
        better = cost[:, None] <= cost  # [r, s]: r may replace s
        np.fill_diagonal(better, False)
        for used in self.terms[node].values():
            better &= used[:, None] <= used
        r, s = np.nonzero(better)
        excess = cost[r] - cost[s]  # and what r costs more at most, over the edges
        for table in tables:
            if not len(r):
                break
            # One column bounds the maximum from below, and rules out most pairs cheaply.
            more = table[r, table.argmin(1)[s]]
            hopeful = excess + more <= 0
            r, s, excess = r[hopeful], s[hopeful], excess[hopeful]
        for table in tables:
            if not len(r):
                break
            excess += self.largest_excess(table, r, s)
            fit = excess <= 0
            r, s, excess = r[fit], s[fit], excess[fit]
        keep = np.ones(count, bool)
        for winner, loser in zip(r.tolist(), s.tolist(), strict=True):
            # Of two that replace each other one has to stay.
            if keep[winner] and keep[loser]:
                keep[loser] = False
        return keep

    @staticmethod
    def largest_excess(table: Array, r: Array, s: Array) -> Array:
        """Return max_b (M[r, b] - M[s, b]) of each pair (r, s) over the b that s allows."""
        part = max(1, _MAX_PAIRS // table.shape[1])
        parts = []
        for begin in range(0, len(r), part):
            of_r, of_s = table[r[begin : begin + part]], table[s[begin : begin + part]]
            parts.append(np.where(of_s < NEVER, of_r - of_s, -NEVER).max(1))
        return np.concatenate(parts)

    # Times

    def slots(self) -> None:
        """Count time in slots between the times at which some node's interval begins or ends."""
        intervals = [times for terms in self.terms for times in terms]
        borders = np.unique(np.array(intervals or [(0, 0)], np.int64))
        slot = {time: number for number, time in enumerate(borders.tolist())}
        limit = self.problem.limit
        self.slack = np.full(len(borders) - 1, 0 if limit is None else limit, np.int64)
        for node, terms in enumerate(self.terms):
            slots = {(slot[lo], slot[hi]): used for (lo, hi), used in terms.items()}
            self.terms[node] = {} if limit is None else slots

    def binding_times(self) -> bool:
        """Keep the times that can exceed the limit; return whether that changed any node."""
        for node, terms in enumerate(self.terms):
            for times, used in list(terms.items()):
                lowest = int(used.min())
                # What every strategy uses is spent anyway.
                if lowest:
                    self.slack[times[0] : times[1]] -= lowest
                    terms[times] = used - lowest
                if used.max() == lowest:
                    del terms[times]
                    self.dirty.add(node)
        if (self.slack < 0).any():
            raise InfeasibleError(
                f"{self.problem.name}: no plan keeps the limit of {self.problem.limit:,}; the "
                f"least that is used exceeds it by {-int(self.slack.min()):,}"
            )
        listed = [(lo, hi, used.max()) for terms in self.terms for (lo, hi), used in terms.items()]
        rows = np.array(listed, np.int64).reshape(-1, 3)
        intervals, highest = rows[:, :2], rows[:, 2]
        # Where even the largest usages keep the limit, no choice can break it.
        binding = sums_over_time(intervals, highest, len(self.slack)) > self.slack
        self.recode(self.peaks(np.flatnonzero(binding), intervals))
        self.drop_exceeding()
        return bool(self.dirty or self.changed)

    def peaks(self, binding: Array, times: Array) -> Array:
        """Leave out times whose terms are among those of a kept neighbor with no more slack.

        Args:
            binding: times to choose from, ascending.
            times: (u, 2) half-open intervals of the terms.
        """
        slack, size = self.slack, len(self.slack) + 1
        # Number of times up to each one at which a term starts, or ends.
        starts, ends = (np.cumsum(np.bincount(x, minlength=size) > 0) for x in times.T)
        kept: list[int] = []
        for time in binding.tolist():
            # No term of the last kept time has ended since: all that was there then is there now.
            while kept and ends[time] == ends[kept[-1]] and slack[kept[-1]] >= slack[time]:
                kept.pop()
            # No term has started since: all that is there now was there then.
            if not kept or starts[time] > starts[kept[-1]] or slack[time] < slack[kept[-1]]:
                kept.append(time)
        return np.array(kept, np.int64)

    def recode(self, kept: Array) -> None:
        """Keep some times; terms without any are dropped, those with the same ones are summed."""
        # Number of kept times before each one.
        rank = np.cumsum(np.bincount(kept + 1, minlength=len(self.slack) + 1)).tolist()
        self.slack = self.slack[kept]
        for node, terms in enumerate(self.terms):
            fresh: Term = {}
            for (lo, hi), used in terms.items():
                if rank[lo] < rank[hi]:
                    _add_term(fresh, (rank[lo], rank[hi]), used)
            if len(fresh) < len(terms):
                self.dirty.add(node)
            self.terms[node] = fresh

    def drop_exceeding(self) -> None:
        """Drop strategies that exceed the limit with the least of all others."""
        table = [self.slack]
        # A sparse table: minima over any interval from two overlapping powers of two.
        while 2 ** len(table) <= len(self.slack):
            step = 2 ** (len(table) - 1)
            table.append(np.minimum(table[-1][:-step], table[-1][step:]))
        for node, terms in enumerate(self.terms):
            mask = None
            for (lo, hi), used in terms.items():
                level = (hi - lo).bit_length() - 1
                minimum = min(table[level][lo], table[level][hi - 2**level])
                if used.max() > minimum:
                    mask = (used <= minimum) if mask is None else mask & (used <= minimum)
            if mask is not None:
                self.keep(node, mask)

    # The result

    def reduced(self) -> Reduced:
        nodes = np.flatnonzero(self.alive)
        index = {node: i for i, node in enumerate(nodes.tolist())}
        pairs = [
            (index[a], index[b], self.edges[a][b]) for a in index for b in self.edges[a] if a < b
        ]
        terms = [
            (index[node], *times, used)
            for node in index
            for times, used in self.terms[node].items()
        ]

        def concatenated(parts: list[Array]) -> tuple[Array, Array]:
            offset = np.cumsum([0, *(part.size for part in parts)], dtype=np.int64)
            return np.concatenate([*map(np.ravel, parts), offset[:0]]), offset

        costs, offset = concatenated([self.cost[node] for node in index])
        edge_costs, edge_offset = concatenated([costs for *_, costs in pairs])
        usages, term_offset = concatenated([used for *_, used in terms])
        return Reduced(
            problem=self.problem,
            nodes=nodes,
            offset=offset,
            costs=costs,
            ends=np.array([x[:2] for x in pairs], np.int64).reshape(-1, 2),
            edge_offset=edge_offset,
            edge_costs=edge_costs,
            term_node=np.array([x[0] for x in terms], np.int64),
            term_times=np.array([x[1:3] for x in terms], np.int64).reshape(-1, 2),
            term_offset=term_offset,
            usages=usages,
            slack=self.slack,
            constant=self.constant,
            values=concatenated([self.kept[node] for node in index])[0],
            steps=tuple(reversed(self.steps)),
        )
