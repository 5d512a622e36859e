"""The integer program of a problem's core: the strategies that a better plan may take.

The local polytope (M. Wainwright and M. Jordan, 2008) has a share for each strategy and for each
pair of an edge; pairs sum to their ends. Memory limits of times are added where a solution breaks
them. HiGHS solves the program with and without the condition that shares are whole.
"""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from parenvs.tasks.sharding.messages import PART, Arrays, arrays_of, batches, begins, ranges
from parenvs.tasks.sharding.problem import NEVER, Array, Reduced, sums_over_time

# Every number that is computed is less than two to this power.
_BITS = 61
# Largest k of the unit.
_FINEST = 40


class Certificate(NamedTuple):
    """An exact bound of a reduced problem, and how each strategy raises it.

    Attributes:
        whole: bound of the cost without the constant, in units of 2^-k, a Python integer.
        extra: (s,) int64, by how much each strategy raises it if it is taken, in the same units.
    """

    whole: int
    extra: Array
    shift: int

    @property
    def bound(self) -> int:
        """The bound as a whole cost."""
        return -(-self.whole >> self.shift)

    def better(self, cost: int) -> Array:
        """Return the strategies, (s,) bool, that a plan cheaper than ``cost`` can take."""
        gap = ((cost - 1) << self.shift) - self.whole
        return self.extra <= min(max(gap, -1), 2**63 - 1)


def certify(
    reduced: Reduced, model: Arrays, price: Array, messages: Array, kept: Array | None = None
) -> Certificate:
    """Return the exact bound that prices and messages prove.

    Prices and messages may be any; those that are too large for 64 bits count as 0.

    Args:
        reduced: the problem.
        model: its arrays.
        price: (T,) prices of memory; what is below 0 counts as 0.
        messages: what is moved from edges to their ends, as ``Arrays.message`` orders it.
        kept: (s,) bool, strategies that may be taken, at least one of each node (default: all).
    """
    # Any prices from 0 and any messages give a valid bound; a bad one is only weak.
    price = np.where(np.isfinite(price), np.maximum(price, 0.0), 0.0)
    moved = np.where(np.isfinite(messages), messages, 0.0)
    source = model.source
    strategy = ranges(model.offset[source], model.size[source])  # of each entry of messages
    usages = usages_of(model)
    allowed = reduced.costs < NEVER
    allowed = allowed if kept is None else allowed & kept
    node_costs = np.where(allowed, reduced.costs, 0)
    sums = np.append(0.0, price.cumsum())
    largest = _largest(reduced, model, usages, node_costs, sums, moved, strategy)
    # Fixed point with as many binary digits as leave every sum below 2^61.
    shift = min(_BITS - int(np.ceil(np.log2(min(largest, 2.0**200)))) - 1, _FINEST)
    if shift < 0 or sums[-1] > 2.0**_BITS / 4:
        return certify(reduced, model, 0.0 * price, 0.0 * moved, kept)
    # Costs of nodes: messages, and prices in units of their own, as exact products.
    node_costs = node_costs << shift
    whole_messages = np.rint(moved * float(2**shift)).astype(np.int64)
    np.add.at(node_costs, strategy, whole_messages)
    price_shift, whole_price = _fixed_point(price)
    before = np.append(0, whole_price.cumsum())
    rates = np.diff(before[model.term_times], axis=1)[usages.term, 0]
    np.add.at(node_costs, usages.strategy, _scaled(usages.used, rates, price_shift - shift))
    priced = whole_price > 0
    slack_cost = sum(map(mul, whole_price[priced].tolist(), model.slack[priced].tolist()))
    # Rounded up: what the slack costs is taken off the bound.
    if price_shift >= shift:
        slack_cost = -(-slack_cost >> (price_shift - shift))
    else:
        slack_cost <<= shift - price_shift
    node_costs[~allowed] = 2**62
    # The bound is the sum of these minima, those of the edges, less what the slack costs.
    least = np.minimum.reduceat(node_costs, model.offset[:-1])
    extra = node_costs - least[model.node]
    rows, edges = _edges(reduced, model, whole_messages, shift, allowed[strategy])
    np.add.at(extra, strategy, rows)
    return Certificate(sum(least.tolist()) + edges - slack_cost, extra, shift)


def _largest(
    reduced: Reduced, model: Arrays, usages: Usages, costs: Array, sums: Array,
    moved: Array, strategy: Array,
) -> float:  # fmt: skip
    """Return a bound of every number that ``certify`` computes, in units of cost."""
    totals = costs.astype(float)
    np.add.at(totals, strategy, np.abs(moved))
    rates = np.diff(sums[model.term_times], axis=1)[usages.term, 0]
    rounding = (len(sums) - 1) * np.finfo(float).eps * sums[-1]  # of the differences of sums
    np.add.at(totals, usages.strategy, (rates + rounding) * usages.used + 1.0)
    pairs = reduced.edge_costs[reduced.edge_costs < NEVER]
    largest = max(float(totals.max(initial=1.0)), float(pairs.max(initial=0)), 1.0)
    return largest + 3 * float(np.abs(moved).max(initial=0.0)) + 2.0


class Usages(NamedTuple):
    """Memory in use, an entry for each strategy of each term; all int64."""

    strategy: Array
    term: Array
    used: Array


def usages_of(model: Arrays) -> Usages:
    """Return the usages of a problem's strategies."""
    node = model.owner
    size, term = model.size[node], np.arange(len(node))
    used = model.usage[ranges(model.term_at, size)]
    return Usages(ranges(model.offset[node], size), np.repeat(term, size), used)


def _fixed_point(price: Array) -> tuple[int, Array]:
    """Return q, and prices, (T,), as whole numbers of 2^-q whose sum fits in 64 bits."""
    total = float(price.sum())
    if not total > 0:
        return 0, np.zeros(len(price), np.int64)
    fine = max(_BITS - 1 - int(np.ceil(np.log2(total + len(price)))), 0)
    fine = min(fine, 2 * _FINEST)
    return fine, np.floor(np.ldexp(price, fine)).astype(np.int64)


def _scaled(used: Array, rates: Array, shift: int) -> Array:
    """Return the exact floors of ``used * rates / 2^shift``, in parts of few Python integers."""
    out = np.zeros(len(used), np.int64)
    (positive,) = np.nonzero((used > 0) & (rates > 0))
    for begin in range(0, len(positive), PART):
        part = positive[begin : begin + PART]
        whole = used[part].astype(object) * rates[part]
        out[part] = whole >> shift if shift >= 0 else whole << -shift
    return out


def _ends_of_pairs(model: Arrays, edges: Array) -> tuple[Array, Array, Array, Array]:
    """Return the heights and widths of directed edges' tables, and the two ends of each pair.

    The ends are entries of messages: of the source's strategy, and of the neighbor's.
    """
    height = model.size[model.source[edges]]
    width = model.size[model.neighbor[edges]]
    widths = np.repeat(width, height)
    first = np.repeat(ranges(model.message[edges], height), widths)
    second = ranges(np.repeat(model.message[model.reverse[edges]], height), widths)
    return height, width, first, second


def _edges(
    reduced: Reduced, model: Arrays, messages: Array, shift: int, allowed: Array
) -> tuple[Array, int]:
    """Return what each strategy adds to the least cost of each of its edges, and the least in sum.

    The first is ordered as messages are.
    """
    (forward,) = np.nonzero(model.source < model.neighbor)  # as edges by nodes, ascending
    order = np.lexsort((reduced.ends[:, 1], reduced.ends[:, 0]))
    degree = int(np.diff(model.start).max(initial=0))
    cap = 2**_BITS // (degree + 1)
    extra, total = np.zeros(len(messages), np.int64), 0
    length = np.diff(reduced.edge_offset)[order]
    for edges in batches(length):
        entry = ranges(reduced.edge_offset[order[edges]], length[edges])
        message = forward[edges]
        height, width, first, second = _ends_of_pairs(model, message)
        cost = reduced.edge_costs[entry]
        residual = (np.where(cost < NEVER, cost, 0) << shift) - messages[first] - messages[second]
        # Forbidden pairs: above every number that is computed, which are less than 2^61.
        residual[(cost >= NEVER) | ~allowed[first] | ~allowed[second]] = 2**62
        of_row = np.minimum.reduceat(residual, begins(np.repeat(width, height)))
        of_edge = np.minimum.reduceat(of_row, begins(height))
        of_column = np.full(len(messages), 2**62)
        np.minimum.at(of_column, second, residual)
        row = ranges(model.message[message], height)
        column = ranges(model.message[model.reverse[message]], width)
        extra[row] = np.minimum(of_row - np.repeat(of_edge, height), cap)
        extra[column] = np.minimum(of_column[column] - np.repeat(of_edge, width), cap)
        total += sum(of_edge.tolist())
    return extra, total


# Times that are added at once.
_TIMES = 24
# Shares that are off a whole number by less are taken for it.
_WHOLE = 1e-6


def core_size(reduced: Reduced, kept: Array) -> int:
    """Return the number of pairs of kept strategies, (s,) bool, over all edges."""
    # Pairs of kept strategies are the columns of the program, and its size.
    counts = np.add.reduceat(kept, reduced.offset[:-1])
    return int(counts[reduced.ends].prod(axis=1).sum())


def restricted(reduced: Reduced, kept: Array) -> Reduced:
    """Return the problem of the kept strategies, (s,) bool, at least one of each node."""
    node = np.repeat(np.arange(len(reduced)), np.diff(reduced.offset))
    a, b = reduced.ends.T
    sizes = np.diff(reduced.offset)
    height, width = sizes[a], sizes[b]
    of_a = np.repeat(ranges(reduced.offset[a], height), np.repeat(width, height))
    of_b = ranges(np.repeat(reduced.offset[b], height), np.repeat(width, height))
    pairs = kept[of_a] & kept[of_b]
    counts = np.bincount(node[kept], minlength=len(reduced))
    usage = kept[ranges(reduced.offset[reduced.term_node], sizes[reduced.term_node])]

    def offset(lengths: Array) -> Array:
        return np.append(0, lengths.cumsum())

    return replace(
        reduced,
        offset=offset(counts),
        costs=reduced.costs[kept],
        edge_offset=offset(counts[a] * counts[b]),
        edge_costs=reduced.edge_costs[pairs],
        term_offset=offset(counts[reduced.term_node]),
        usages=reduced.usages[usage],
        values=reduced.values[kept],
    )


class Relaxation(NamedTuple):
    """A solution of the program without whole numbers.

    Attributes:
        share: (s,) share of each strategy; None if the program is infeasible.
        price: (T,) prices of memory.
        messages: dual values of the ends of edges.
    """

    share: Array | None
    price: Array
    messages: Array


class CoreProgram:
    """The program of a core, kept in memory and solved again and again.

    Args:
        price: (T,) prices of memory; the program begins with the times of the largest ones.
        stopped: returns whether to end early.
    """

    def __init__(
        self, reduced: Reduced, price: Array, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        import highspy

        self.reduced, self.model, self.stopped = reduced, arrays_of(reduced), stopped
        self.status, self.kinds = highspy.HighsModelStatus, highspy.HighsVarType
        with _silence():
            self.solver: Any = highspy.Highs()
            options = {"output_flag": False, "threads": 1, "mip_rel_gap": 1e-9}
            for name, value in options.items():
                self.solver.setOptionValue(name, value)
        self.solver.passModel(self._matrix())
        self.times: list[int] = []
        slack = self.model.slack
        # Rows are scaled by the slack, so a limit is 1; without slack nothing may be used.
        self.top = np.where(slack > 0, 1.0, 0.0)  # shares of the slack that may be used
        self.solver.cbMipInterrupt += self._interrupt
        self.solver.cbSimplexInterrupt += self._interrupt
        # Times with a price bind at the optimum of the Lagrangian, so they are added first.
        first = [int(t) for t in np.argsort(-price, kind="stable")[:_TIMES] if price[t] > 0]
        self._add_times(list(range(len(slack))) if len(slack) <= 4 * _TIMES else first)

    def _matrix(self) -> Any:
        """Return the linear program: equations of nodes, then of the ends of edges."""
        import highspy
        from scipy.sparse import coo_matrix

        m, count = self.model, len(self.reduced)
        strategies, source, node = len(m.costs), m.source, m.node
        strategy = ranges(m.offset[source], m.size[source])  # of each message
        (p,) = np.nonzero(source < m.neighbor)
        height, width, first, second = _ends_of_pairs(m, p)
        pair = ranges(m.table[p], height * width)
        possible = np.isfinite(m.pair[pair])
        pair, first, second = pair[possible], first[possible], second[possible]
        self.ends = strategy[first], strategy[second]  # strategies of each pair
        column = strategies + np.arange(len(pair))
        ends = count + np.arange(len(strategy))
        rows = np.concatenate([node, ends, count + first, count + second])
        columns = np.concatenate([np.arange(strategies), strategy, column, column])
        entries = np.ones(len(rows))
        # Share of a strategy = sum of its pairs' shares, on each edge.
        entries[strategies : strategies + len(strategy)] = -1.0
        # Costs are those above the least of each node, in units that are neither large nor small.
        least = np.minimum.reduceat(m.costs, m.offset[:-1])
        costs = np.concatenate([m.costs - least[node], m.pair[pair]])
        positive = costs[costs > 0]
        self.scale = max(float(np.median(positive)) if len(positive) else 1.0, 1.0)
        right = np.zeros(count + len(strategy))
        right[:count] = 1.0
        matrix = coo_matrix((entries, (rows, columns)), shape=(len(right), len(costs))).tocsr()
        linear = highspy.HighsLp()
        linear.num_row_, linear.num_col_ = matrix.shape
        linear.col_cost_ = costs / self.scale
        linear.col_lower_, linear.col_upper_ = np.zeros(len(costs)), np.ones(len(costs))
        linear.row_lower_ = linear.row_upper_ = right
        linear.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        linear.a_matrix_.start_, linear.a_matrix_.index_ = matrix.indptr, matrix.indices
        linear.a_matrix_.value_ = matrix.data
        self.rows = len(right)
        return linear

    def _add_times(self, times: list[int]) -> None:
        """Add what the strategies use at some times, as shares of the slack there."""
        m, owner = self.model, self.model.owner
        for t in times:
            used = np.zeros(len(m.costs))
            (terms,) = np.nonzero((m.term_times[:, 0] <= t) & (t < m.term_times[:, 1]))
            for term, node in zip(terms.tolist(), owner[terms].tolist(), strict=True):
                begin, end = m.offset[node], m.offset[node + 1]
                used[begin:end] += m.usage[m.term_at[term] : m.term_at[term] + end - begin]
            used /= max(int(m.slack[t]), 1)
            (columns,) = np.nonzero(used)
            self.solver.addRow(
                -np.inf, self.top[t], len(columns), columns.astype(np.int32), used[columns]
            )
        self.times += times

    def _broken(self, used: Array) -> Array:
        """The times, most broken first, at which (T,) exceeds the slack."""
        excess = (used - self.model.slack) / np.maximum(self.model.slack, 1)
        worst = np.argsort(-excess, kind="stable")[:_TIMES]
        return worst[excess[worst] > 0]

    def _interrupt(self, event: Any) -> None:
        event.data_in.user_interrupt = self.stopped()

    def _run(self, seconds: float) -> Any:
        limit = self.solver.getRunTime() + max(seconds, 0.0)
        self.solver.setOptionValue("time_limit", limit if np.isfinite(limit) else 1e9)
        self.solver.run()
        return self.solver.getModelStatus()

    def solve(
        self,
        seconds: float,
        offer: Callable[[Array], object],
        start: Array | None = None,
        nodes: int | None = None,
    ) -> None:
        """Search for the best legal plan of the core by HiGHS, whose tolerances prove nothing.

        Args:
            seconds: time limit.
            offer: called with every legal plan, (n,), that is found.
            start: (n,) a legal plan of the core to begin with.
            nodes: limit of nodes of HiGHS's tree.
        """
        reduced, end = self.reduced, time.monotonic() + seconds
        strategies, offset = len(reduced.costs), reduced.offset
        columns = np.arange(strategies, dtype=np.int32)
        self.solver.changeColsIntegrality(
            strategies, columns, np.full(strategies, self.kinds.kInteger)
        )
        self.solver.setOptionValue("mip_max_nodes", 2**31 - 1 if nodes is None else nodes)

        def plan(values: Any) -> Array | None:
            (taken,) = np.nonzero(np.asarray(values[:strategies]) > 0.5)
            node = np.searchsorted(offset, taken, side="right") - 1
            if len(taken) != len(reduced) or (node != np.arange(len(reduced))).any():
                return None
            return taken - offset[:-1]

        def improved(event: Any) -> None:
            chosen = plan(event.data_out.mip_solution)
            if chosen is not None and reduced.legal(chosen):
                offer(chosen)

        self.solver.cbMipImprovingSolution += improved
        try:
            while (left := end - time.monotonic()) > 0 and not self.stopped():
                if start is not None:
                    self._begin_with(start)
                if self._run(left) != self.status.kOptimal:
                    return
                chosen = plan(self.solver.getSolution().col_value)
                if chosen is None:
                    return
                used = reduced.profile(chosen)
                broken = self._broken(used).tolist()
                if not broken:
                    offer(chosen)
                    return
                # Cutting planes: times that the plan breaks become rows, and the program is
                # solved again.
                known = [t for t in broken if t in self.times]
                self._add_times([t for t in broken if t not in self.times])
                for t in known:
                    # HiGHS's tolerances let it exceed a row by a little.
                    excess = int(used[t] - self.model.slack[t])
                    self.top[t] -= 2 * excess / max(int(self.model.slack[t]), 1)
                    row = self.rows + self.times.index(t)
                    self.solver.changeRowBounds(row, -np.inf, self.top[t])
        finally:
            self.solver.cbMipImprovingSolution -= improved
            self.solver.changeColsIntegrality(
                strategies, columns, np.full(strategies, self.kinds.kContinuous)
            )

    def _begin_with(self, chosen: Array) -> None:
        import highspy

        taken = np.zeros(len(self.reduced.costs))
        taken[self.reduced.offset[:-1] + chosen] = 1.0
        solution = highspy.HighsSolution()
        pairs = taken[self.ends[0]] * taken[self.ends[1]]
        solution.col_value = [*taken.tolist(), *pairs.tolist()]
        self.solver.setSolution(solution)

    def relax(self, kept: Array, seconds: float) -> Relaxation | None:
        """Solve the program without whole numbers, over some of its strategies, (s,) bool.

        Returns:
            None if time is up.
        """
        count, end = len(kept), time.monotonic() + seconds
        columns = np.arange(count, dtype=np.int32)
        self.solver.changeColsBounds(count, columns, np.zeros(count), kept.astype(float))
        try:
            while True:
                status = self._run(end - time.monotonic())
                if status in (self.status.kTimeLimit, self.status.kInterrupt):
                    return None
                if status != self.status.kOptimal:
                    # A ray of dual values proves that the program is infeasible.
                    _, has_ray, ray = self.solver.getDualRay()
                    if status != self.status.kInfeasible or not has_ray:
                        ray = np.zeros(self.rows + len(self.times))
                    return self._relaxation(None, np.asarray(ray))
                solution = self.solver.getSolution()
                share = np.asarray(solution.col_value[:count])
                broken = self._broken(shared_profile(self.reduced, share) * (1 - 1e-9)).tolist()
                fresh = [t for t in broken if t not in self.times]
                if not fresh:
                    return self._relaxation(share, np.asarray(solution.row_dual) * self.scale)
                self._add_times(fresh)
        finally:
            self.solver.changeColsBounds(count, columns, np.zeros(count), np.ones(count))

    def _relaxation(self, share: Array | None, dual: Array) -> Relaxation:
        """Read prices and messages off the dual values of the rows."""
        price = np.zeros(len(self.model.slack))
        used = -dual[self.rows :] / np.maximum(self.model.slack[self.times], 1)
        price[self.times] = np.maximum(used, 0.0)
        return Relaxation(share, price, dual[len(self.reduced) : self.rows])


class Tree:
    """Branch and bound of a core by linear programs, each with an exact certificate.

    Args:
        cost: cost to undercut, without the constant.

    Attributes:
        cost: the same, or the cost of a cheaper plan that was found.
        bound: exact lower bound of the plans that undercut ``cost``; ``cost`` if there is none.
        chosen: (n,) the cheapest plan found, or None.
    """

    def __init__(self, program: CoreProgram, cost: int) -> None:
        self.program, self.cost = program, cost
        self.chosen: Array | None = None
        reduced = program.reduced
        kept = reduced.costs < NEVER
        self.node = program.model.node
        self.usage = usages_of(program.model)
        zeros = np.zeros(len(program.model.slack)), np.zeros(int(program.model.message[-1]))
        self.trivial = Relaxation(None, *zeros)
        root = self._certify(self.trivial, kept)
        # (bound, tie-breaker, kept strategies) of each open branch; newest first among equals.
        self.open: list[tuple[int, int, Array]] = [(root.bound, 0, kept)]
        self.branches = 1

    @property
    def bound(self) -> int:
        """See the class."""
        return min(self.cost, self.open[0][0]) if self.open else self.cost

    @property
    def over(self) -> bool:
        """Whether every branch is closed."""
        return self.bound >= self.cost

    def run(self, seconds: float, nodes: int) -> None:
        """Branch until everything is closed, or for some seconds or nodes."""
        end = time.monotonic() + seconds
        for _ in range(nodes):
            if self.over or time.monotonic() >= end or self.program.stopped():
                return
            entry = heapq.heappop(self.open)
            if not self._branch(*entry, end - time.monotonic()):
                heapq.heappush(self.open, entry)
                return

    def _branch(self, bound: int, _: int, kept: Array, seconds: float) -> bool:
        """Bound a branch and split it; return whether the time sufficed."""
        relaxed = self.program.relax(kept, seconds)
        if relaxed is None:
            return False
        certificate = self._certify(relaxed, kept)
        bound = max(bound, certificate.bound)
        kept = kept & certificate.better(self.cost)
        counts = np.bincount(self.node[kept], minlength=self.node[-1] + 1)
        if bound >= self.cost or (counts == 0).any():
            return True
        share = self._shares(relaxed, kept)
        chosen = self._plan(share)
        self._offer(chosen)
        if (counts == 1).all():
            return True  # the plan was offered
        offset = self.program.reduced.offset
        # Branch where the relaxation is least decided, weighted by cost.
        largest = share[offset[:-1] + chosen]
        indecision = np.where(largest > 1 - _WHOLE, 0.0, (1 - largest) * self.program.scale)
        indecision += self._spread(relaxed.price, share)
        node = int(np.where(counts > 1, indecision, -1.0).argmax())
        if largest[node] > 1 - _WHOLE:  # whole: what is left is rounding
            node = int(counts.argmax())
        fixed = kept.copy()
        fixed[offset[node] : offset[node + 1]] = False
        excluded = kept.copy()
        strategy = offset[node] + chosen[node]
        fixed[strategy], excluded[strategy] = True, False
        for branch in (fixed, excluded):
            heapq.heappush(self.open, (bound, -self.branches, branch))
            self.branches += 1
        return True

    def _certify(self, relaxed: Relaxation, kept: Array) -> Certificate:
        """Return the exact bound of dual values; a ray is followed as far as needed."""
        program = self.program
        problem = program.reduced, program.model
        if relaxed.share is not None or relaxed is self.trivial:
            return certify(*problem, relaxed.price, relaxed.messages, kept)
        best = certify(*problem, self.trivial.price, self.trivial.messages, kept)
        length = max(abs(float(best.bound)), program.scale)
        # A ray of the dual proves infeasibility at any length; the exact bound needs enough.
        for _ in range(8):
            more = certify(*problem, length * relaxed.price, length * relaxed.messages, kept)
            best = max(best, more, key=lambda certificate: certificate.bound)
            if best.bound >= self.cost:
                break
            length *= 10
        return best

    def _shares(self, relaxed: Relaxation, kept: Array) -> Array:
        # A trace of each kept strategy, so that no node's sum is 0.
        share = np.where(kept, 1e-12, 0.0)
        if relaxed.share is not None:
            share += np.maximum(relaxed.share, 0.0) * kept
        share /= np.add.reduceat(share, self.program.reduced.offset[:-1])[self.node]
        return share

    def _spread(self, price: Array, share: Array) -> Array:
        """Return the mean deviation of the priced memory of each node's shares, (n,).

        A relaxed solution averages strategies of much and of little memory where no plan can.
        """
        model, first = self.program.model, self.program.reduced.offset[:-1]
        sums = np.append(0.0, price.cumsum())
        rates = np.diff(sums[model.term_times], axis=1)[self.usage.term, 0]
        price_of = np.bincount(self.usage.strategy, rates * self.usage.used, minlength=len(share))
        mean = np.add.reduceat(share * price_of, first)
        return np.add.reduceat(share * np.abs(price_of - mean[self.node]), first)

    def _plan(self, share: Array) -> Array:
        reduced = self.program.reduced
        order = np.lexsort((-np.arange(len(share)), share, self.node))
        return order[reduced.offset[1:] - 1] - reduced.offset[:-1]

    def _offer(self, chosen: Array) -> None:
        reduced = self.program.reduced
        if reduced.cost(chosen) - reduced.constant < self.cost and reduced.legal(chosen):
            self.chosen, self.cost = chosen, reduced.cost(chosen) - reduced.constant


def shared_profile(reduced: Reduced, share: Array) -> Array:
    """Return what shares, (s,), of strategies use at each time, (T,)."""
    size = np.diff(reduced.offset)[reduced.term_node]
    usages = reduced.usages * share[ranges(reduced.offset[reduced.term_node], size)]
    used = np.add.reduceat(usages, reduced.term_offset[:-1]) if len(usages) else np.zeros(0)
    return sums_over_time(reduced.term_times, used, len(reduced.slack))


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the solver's banner, which its library writes by itself, from the standard output."""
    try:
        before = os.dup(1)
    except OSError:  # it is closed
        yield
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    # The library writes to the file descriptor, past ``sys.stdout``.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(nothing)
