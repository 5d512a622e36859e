"""Makes a smaller problem of an IOPDDL problem, whose best plans are the best plans of the first.

Rules, repeated until none changes anything; each leaves the optimum as it is:

1. Arc consistency: a strategy is dropped if a neighbour has nothing left to go with it.
2. Substitution: strategy s is dropped if some r uses no more in every interval and costs no more
   whatever the neighbours take: ``c_r - c_s + sum over edges max_b (M[r, b] - M[s, b]) <= 0``
   (dead-end elimination, Goldstein 1994).
3. Parallel edges are summed; an edge that is a sum of its ends' costs becomes those.
4. A node whose strategy follows from a neighbour's is contracted into it.
5. A node that uses no memory and has at most two neighbours is minimised out, if that adds no more
   costs than it takes away.
6. Times at which the limit cannot be exceeded are left out; a strategy that exceeds it alone, with
   the least of all others, is dropped.

Forbidden costs stay forbidden; a problem whose every plan takes one has no plan here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.sharding.problem import FORBIDDEN, Sharding
from parenvs.tasks.sharding.reduced import NEVER, Reduced

_MAX_PAIRS = 2**22
"""Entries that are compared at once."""
_MAX_GROWTH = 2**20
"""A contraction is left out if it adds more costs of edges."""

Term = dict[tuple[int, int], np.ndarray]
"""(first time, end) -> (k,) usages of a node's strategies."""


def reduce(problem: Sharding, stopped: Callable[[], bool] = lambda: False) -> Reduced:
    """Reduce a problem.

    Args:
        problem: the problem.
        stopped: asked now and then whether to go on with what is reduced so far.

    Raises:
        InfeasibleError: no plan keeps the limit without taking what is forbidden.
        ParenvsError: the costs are too large for sums in 64 bits.
    """
    return _Reduction(problem, stopped).run()


class _Reduction:
    """The problem while it is reduced; nodes that are gone have no strategies."""

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
        self.edges: list[dict[int, np.ndarray]] = [{} for _ in spans]
        self.alive = np.ones(len(spans), dtype=bool)
        self.steps: list[tuple[int, tuple[int, ...], np.ndarray]] = []
        self.constant = 0
        self.slack = np.zeros(0, dtype=np.int64)
        self.dirty: set[int] = set(range(len(spans)))
        self.changed: set[tuple[int, int]] = set()
        self.add_edges()

    def check_sums(self) -> None:
        """Refuse costs and usages whose sums do not fit."""
        problem = self.problem

        def most(values: np.ndarray, offset: np.ndarray) -> float:
            allowed = np.where(values >= FORBIDDEN, 0, values).astype(float)
            return float(np.maximum.reduceat(allowed, offset[:-1]).sum()) if len(offset) > 1 else 0

        total = most(problem.costs, problem.offset) + most(problem.edge_costs, problem.edge_offset)
        used = 0.0
        if len(problem):
            used = float(
                np.maximum.reduceat(problem.usages.astype(float), problem.offset[:-1]).sum()
            )
        for what, value in (("costs", total), ("usages", used)):
            if value >= FORBIDDEN:
                raise ParenvsError(
                    f"{problem.name}: its {what} can sum to {value:.3g}, and the solver counts to "
                    "10^18; divide them all by the same number"
                )

    def add_edges(self) -> None:
        """Take the problem's edges; loops become costs of their node."""
        problem = self.problem
        table = np.where(problem.edge_costs >= FORBIDDEN, NEVER, problem.edge_costs)
        at, sizes = problem.edge_offset.tolist(), problem.sizes.tolist()
        for edge, (a, b) in enumerate(problem.ends.tolist()):
            costs = table[at[edge] : at[edge + 1]].reshape(sizes[a], sizes[b])
            if a == b:
                self.cost[a] = np.minimum(self.cost[a] + costs.diagonal(), NEVER)
            else:
                self.add_edge(a, b, costs)

    def add_edge(self, a: int, b: int, costs: np.ndarray) -> None:
        """Add costs of pairs, (k_a, k_b), to those that a and b have."""
        if b in self.edges[a]:
            costs = np.minimum(self.edges[a][b] + costs, NEVER)
        self.set_edge(a, b, costs)

    def set_edge(self, a: int, b: int, costs: np.ndarray) -> None:
        """Replace the costs of a pair of nodes."""
        self.edges[a][b] = costs
        self.edges[b][a] = costs.T
        self.changed.add((a, b) if a < b else (b, a))

    def drop_edge(self, a: int, b: int) -> None:
        """Remove the edge of a pair of nodes."""
        del self.edges[a][b], self.edges[b][a]
        self.changed.discard((a, b) if a < b else (b, a))
        self.dirty |= {a, b}

    # Rounds

    def run(self) -> Reduced:
        """Apply all rules until nothing changes."""
        self.slots()
        while self.binding_times() and not self.stopped():
            self.settle()
        return self.reduced()

    def settle(self) -> None:
        """Apply the rules on nodes and edges until nothing changes."""
        while (self.dirty or self.changed) and not self.stopped():
            while self.changed:
                self.simplify_edge(*self.changed.pop())
            nodes, self.dirty = sorted(self.dirty), set()
            for node in nodes:
                if self.alive[node]:
                    self.simplify_node(node)
                    if self.stopped():
                        return

    def keep(self, node: int, mask: np.ndarray) -> None:
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
            ways = [(b, a, allowed.argmax(1))] if (of_a == 1).all() else []
            ways += [(a, b, allowed.argmax(0))] if (of_b == 1).all() else []
            ways.sort(key=lambda way: self.load(way[0]))  # the one with less to move goes
            for node, into, image in ways:
                if self.affordable(node, into):
                    self.contract(node, into, image)
                    break

    def load(self, node: int) -> int:
        """Number of edges and terms of a node."""
        return len(self.edges[node]) + len(self.terms[node])

    def affordable(self, node: int, into: int) -> bool:
        """Whether a contraction adds few costs of edges."""
        more = len(self.cost[into]) - len(self.cost[node])
        if more <= 0:
            return True
        return more * sum(len(self.cost[x]) for x in self.edges[node] if x != into) <= _MAX_GROWTH

    def contract(self, node: int, into: int, image: np.ndarray) -> None:
        """Contract a node whose strategy is ``image``, (k of ``into``,), of another's."""
        rows = np.arange(len(image))
        own = self.cost[node][image]
        pair = self.edges[into][node][rows, image]
        self.cost[into] = np.minimum(self.cost[into] + np.minimum(own + pair, NEVER), NEVER)
        for times, used in self.terms[node].items():
            before = self.terms[into].get(times)
            self.terms[into][times] = used[image] if before is None else before + used[image]
        table = np.zeros(int(self.problem.sizes[into]), dtype=np.int64)
        table[self.kept[into]] = self.kept[node][image]
        self.drop_edge(node, into)
        for other, costs in list(self.edges[node].items()):
            self.drop_edge(node, other)
            self.add_edge(into, other, costs[image])
        self.remove(node, (into,), table)

    def remove(self, node: int, neighbours: tuple[int, ...], table: np.ndarray) -> None:
        """Remove a node without edges; ``table`` tells its strategy by those of neighbours."""
        self.steps.append((node, neighbours, table))
        self.alive[node] = False
        self.terms[node] = {}
        self.dirty.discard(node)

    # Nodes

    def simplify_node(self, node: int) -> None:
        """Drop strategies that are forbidden or substituted; minimise a node out."""
        allowed = self.cost[node] < NEVER
        if not allowed.all():
            self.keep(node, allowed)
        self.terms[node] = {
            times: used for times, used in self.terms[node].items() if len(used) > 1 or used[0]
        }
        if not self.terms[node] and self.minimise(node):
            return
        if len(self.cost[node]) > 1:
            mask = self.substituted(node)
            if not mask.all():
                self.keep(node, mask)
        elif self.edges[node]:  # one strategy: its edges are costs of the neighbours
            for other in list(self.edges[node]):
                pair = self.edges[other][node][:, 0]
                self.cost[other] = np.minimum(self.cost[other] + pair, NEVER)
                self.drop_edge(node, other)

    def minimise(self, node: int) -> bool:
        """Minimise out a node without memory and with at most two neighbours; whether it was."""
        others = sorted(self.edges[node])
        own, kept = self.cost[node], self.kept[node]
        sizes = [int(self.problem.sizes[other]) for other in others]
        if len(others) > 2:
            return False
        if not others:
            best = int(own.argmin())
            self.constant += int(own[best])
            self.remove(node, (), kept[best])
            return True
        tables = [self.edges[other][node] for other in others]
        if len(others) == 1:
            total = tables[0] + own
            (a,) = others
            minimum = np.minimum(total.min(1), NEVER)
            table = np.zeros(sizes, dtype=np.int64)
            table[self.kept[a]] = kept[total.argmin(1)]
            self.drop_edge(node, a)
            self.cost[a] = np.minimum(self.cost[a] + minimum, NEVER)
            self.remove(node, (a,), table)
            return True
        a, b = others
        size_a, size_b = len(self.cost[a]), len(self.cost[b])
        grown = size_a * size_b * (b not in self.edges[a])
        if grown > (size_a + size_b) * len(own) or size_a * size_b * len(own) > _MAX_PAIRS:
            return False
        if sizes[0] * sizes[1] > _MAX_PAIRS:
            return False
        total = tables[0][:, None, :] + np.minimum(tables[1] + own, NEVER)[None, :, :]
        table = np.zeros(sizes, dtype=np.int32)
        table[np.ix_(self.kept[a], self.kept[b])] = kept[total.argmin(2)]
        minimum = np.minimum(total.min(2), NEVER)
        self.drop_edge(node, a)
        self.drop_edge(node, b)
        self.add_edge(a, b, minimum)
        self.remove(node, (a, b), table)
        return True

    def substituted(self, node: int) -> np.ndarray:
        """Which strategies to keep, (k,) bool: those that no other one replaces."""
        cost, count = self.cost[node], len(self.cost[node])
        tables = []
        for other in self.edges[node]:
            table = self.edges[node][other]
            minimum = table.min(1)
            if minimum.any():
                if (minimum >= NEVER).any():  # arc consistency comes first
                    return minimum < NEVER
                cost = cost + minimum
                table = np.where(table < NEVER, table - minimum[:, None], NEVER)
            tables.append(table)
        better = cost[:, None] <= cost  # [r, s]: r may replace s
        np.fill_diagonal(better, False)
        for used in self.terms[node].values():
            better &= used[:, None] <= used
        r, s = np.nonzero(better)
        excess = cost[r] - cost[s]  # and what r costs more at most, over the edges
        for table in tables:
            if not len(r):
                return np.ones(count, dtype=bool)
            more = table[r, table.argmin(1)[s]]
            hopeful = excess + more <= 0
            r, s, excess = r[hopeful], s[hopeful], excess[hopeful]
        for table in tables:
            if not len(r):
                return np.ones(count, dtype=bool)
            excess += self.most_more(table, r, s)
            fit = excess <= 0
            r, s, excess = r[fit], s[fit], excess[fit]
        keep = np.ones(count, dtype=bool)
        for one, other in zip(r.tolist(), s.tolist(), strict=True):
            if keep[one] and keep[other]:
                keep[other] = False
        return keep

    @staticmethod
    def most_more(table: np.ndarray, r: np.ndarray, s: np.ndarray) -> np.ndarray:
        """What row r has more than row s at most, of each pair; what s cannot take is no matter."""
        part = max(1, _MAX_PAIRS // table.shape[1])
        parts = []
        for begin in range(0, len(r), part):
            of_r, of_s = table[r[begin : begin + part]], table[s[begin : begin + part]]
            parts.append(np.where(of_s < NEVER, of_r - of_s, -NEVER).max(1))
        return np.concatenate(parts)

    # Times

    def slots(self) -> None:
        """Count time in slots between the times at which some node's interval begins or ends."""
        listed = [times for terms in self.terms for times in terms]
        borders = np.unique(np.array(listed, dtype=np.int64)) if listed else np.zeros(1, np.int64)
        limit = self.problem.limit
        self.slack = np.full(len(borders) - 1, 0 if limit is None else limit, dtype=np.int64)
        for terms in self.terms:
            for (lo, hi), used in list(terms.items()):
                del terms[lo, hi]
                if limit is not None:
                    at = (int(np.searchsorted(borders, lo)), int(np.searchsorted(borders, hi)))
                    terms[at] = used

    def binding_times(self) -> bool:
        """Keep the times that can exceed the limit; whether that changes any node."""
        for node, terms in enumerate(self.terms):
            for times, used in list(terms.items()):
                lowest = int(used.min())
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
        lo, hi, highest = np.array(listed, dtype=np.int64).reshape(-1, 3).T
        change = np.zeros(len(self.slack) + 1, dtype=np.int64)
        np.add.at(change, lo, highest)
        np.add.at(change, hi, -highest)
        binding = np.cumsum(change)[:-1] > self.slack
        starts = np.bincount(lo, minlength=len(change)) > 0
        ends = np.bincount(hi, minlength=len(change)) > 0
        kept = self.peaks(np.flatnonzero(binding), np.cumsum(starts), np.cumsum(ends))
        self.slack = self.slack[kept]
        self.recode(kept)
        self.drop_exceeding()
        return bool(self.dirty or self.changed)

    def peaks(self, times: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Leave out times whose terms are among those of the next kept one, with no more slack.

        Args:
            times: times to choose from, ascending.
            starts: (T + 1,) number of times up to each one at which a term starts.
            ends: (T + 1,) number of times up to each one at which a term ends.
        """
        kept: list[int] = []
        slack = self.slack
        for time in times.tolist():
            covered = False
            while kept:
                last = kept[-1]
                ended, started = ends[time] > ends[last], starts[time] > starts[last]
                if not started and slack[time] >= slack[last]:
                    covered = True  # all that is there now was there then
                    break
                if not ended and slack[last] >= slack[time]:
                    kept.pop()
                    continue
                break
            if not covered:
                kept.append(time)
        return np.array(kept, dtype=np.int64)

    def recode(self, kept: np.ndarray) -> None:
        """Write the terms in the kept times; terms without any are dropped, equal ones summed."""
        rank = np.zeros(int(self._last_time()) + 2, dtype=np.int64)
        rank[kept + 1] = 1
        np.cumsum(rank, out=rank)  # number of kept times before each one
        at = rank.tolist()
        for node, terms in enumerate(self.terms):
            if not terms:
                continue
            fresh: Term = {}
            for (lo, hi), used in terms.items():
                times = (at[lo], at[hi])
                if times[0] < times[1]:
                    before = fresh.get(times)
                    fresh[times] = used if before is None else before + used
            if len(fresh) < len(terms):
                self.dirty.add(node)
            self.terms[node] = fresh

    def _last_time(self) -> int:
        """Largest end of a term."""
        return max((hi for terms in self.terms for _, hi in terms), default=0)

    def drop_exceeding(self) -> None:
        """Drop strategies that exceed the limit with the least of all others."""
        table = [self.slack]
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
        """The arrays of what is left."""
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

        def flat(parts: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            listed = list(parts)
            offset = np.concatenate([[0], np.cumsum([x.size for x in listed], dtype=np.int64)])
            whole = np.concatenate([x.ravel() for x in listed]) if listed else np.zeros(0)
            return whole.astype(np.int64), offset.astype(np.int64)

        costs, offset = flat(self.cost[node] for node in index)
        edge_costs, edge_offset = flat(costs for *_, costs in pairs)
        usages, term_offset = flat(used for *_, used in terms)
        return Reduced(
            problem=self.problem,
            nodes=nodes,
            offset=offset,
            costs=costs,
            ends=np.array([x[:2] for x in pairs], dtype=np.int64).reshape(-1, 2),
            edge_offset=edge_offset,
            edge_costs=edge_costs,
            term_node=np.array([x[0] for x in terms], dtype=np.int64),
            term_times=np.array([x[1:3] for x in terms], dtype=np.int64).reshape(-1, 2),
            term_offset=term_offset,
            usages=usages,
            slack=self.slack,
            constant=self.constant,
            values=flat(self.kept[node] for node in index)[0],
            steps=tuple(reversed(self.steps)),
        )
