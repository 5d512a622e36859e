"""``Construct``: n episodes that decide the nodes of their boards one after the other.

A strategy is legal if it is allowed with all decided neighbors, every neighbor that follows keeps
one that is allowed with it, the limit is kept with all other nodes at their floors, and, on boards
that are not free, the witness can be mended for it (``parenvs.tasks.sharding.board``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from parenvs.core.game import RANGE
from parenvs.errors import InfeasibleError
from parenvs.tasks.sharding.board import Board, Tables, Witness
from parenvs.tasks.sharding.messages import batches, begins, ranges
from parenvs.tasks.sharding.problem import Array, Sharding, ShardingPlan

COLUMNS = {
    "rule": "-2 ln(1 + 20 x) of the excess x of cost and messages over the least legal one, less "
    "10 times the pressure where the limit is exceeded",
    "messages": "ln(1 + x) / 4 of that excess x over the least",
    "ahead": "the same of the least that neighbors that follow cost more with it",
    "both": "the same of its cost and that",
    "pressure": "by how much the limit is exceeded while the node uses memory, as a share of the "
    "headroom, if all that follow take what the messages lead to; 0 if it uses none; from -1 to 4",
    "cost": "ln(1 + x) / 4 of the excess x of its cost with decided neighbors over the least",
    "use": "share of the memory that is free, all others at their least, that it takes",
    "mass": "its memory over time, over that of the strategy that takes most",
}
"""Features of each strategy of the current node -> description.

Costs are in units of what a node costs on average in the greedy plan.
"""
AHEAD = ("rule", "messages", "ahead", "both", "pressure")
"""Columns that look ahead."""
CONTEXTS = {
    "placed": "share of the nodes that are decided",
    "legal": "share of the strategies that are legal",
    "floor": "ln of the start plan's cost over the bound of what is decided, / 4, from -1 to 1",
    "strategies": "log2 of their number / 8",
    "later": "neighbors that follow / 16, at most 1",
    "earlier": "neighbors that are decided / 16, at most 1",
    "spread": "ln(1 + x) / 4 of what the dearest legal strategy costs more than the cheapest",
    "free": "share of the headroom that is free while the node uses memory",
    "nodes": "log2 of the nodes / 12",
}
# Without these columns, messages and costs of later neighbors need not be kept up to date.
_BY_MESSAGES, _BY_NEIGHBORS = {"rule", "messages", "pressure"}, {"ahead", "both"}
# What logarithms of excesses are divided by.
_DEPTH = 4.0
# Factors of the rule's score: of the logarithm, within it, and of the pressure.
_SHARP = 2.0, 20.0, 10.0
# Largest value of the feature ``pressure``.
_FURTHEST = 4.0
_TRIES = 16  # to find a first witness


class Construct:
    """The turns of n episodes at once; a single environment is the case n = 1.

    Episodes may be of any boards and at any nodes: all are played together, as arrays of the
    strategies of their current nodes, one episode after the other (``turns.tables``).

    Attributes:
        turn: (n,) int64, the current node.
        chosen: (n, N) int64, strategies of decided nodes.
        legal: (n, width) bool.
        rows: (n, width, len(columns)) float32.
        contexts: (n, len(CONTEXTS)) float32.
        over: (n,) bool.
        dead: (n,) bool, whether the episode ended because no strategy was legal.
        cost: (n,) float64, cost of the plan of an episode that is complete, else NaN.

    Args:
        columns: what rows hold, of ``COLUMNS``.
        guarded: whether witnesses are kept; without them, episodes can reach dead ends.
    """

    def __init__(
        self, count: int, width: int, columns: Sequence[str] = (), guarded: bool = True
    ) -> None:
        self.width, self.columns, self.guarded = width, tuple(columns), guarded
        self.by_messages = not _BY_MESSAGES.isdisjoint(columns)
        self.by_neighbors = not _BY_NEIGHBORS.isdisjoint(columns)
        self.boards: list[Any] = [None] * count
        self.witness: list[Witness | None] = [None] * count
        self.tables = Tables(count, self.by_messages)
        # Where the nodes and strategies of each episode's board begin in ``tables``.
        self.first_node, self.first_strategy, self.length = np.zeros((3, count), np.int64)
        self.unit, self.reference = np.ones((2, count))
        self.is_free, self.is_exact = np.zeros((2, count), bool)
        self.turn = np.zeros(count, np.int64)
        self.costs = np.zeros((count, 0))  # of strategies with decided neighbors
        self.remaining = np.zeros((count, 0), np.int64)  # headroom that is left
        # The same if all nodes that follow take what the messages lead to.
        self.remaining_wanted = np.zeros((count, 0), np.int64)
        self.chosen = np.zeros((count, 0), np.int64)
        self.floor = np.zeros(count)  # lower bound of the cost, from decided nodes and least costs
        self.legal = np.zeros((count, width), bool)
        self.rows = np.zeros((count, width, len(self.columns)), np.float32)
        self.contexts = np.zeros((count, len(CONTEXTS)), np.float32)
        self.over, self.dead = np.zeros((2, count), bool)
        self.cost = np.full(count, np.nan)

    def put(self, row: int, board: Board) -> None:
        """Give an episode a board, before it starts."""
        self.boards[row], added = board, [row]
        if self.tables.is_full:
            self.tables.clear()
            added = [k for k, kept in enumerate(self.boards) if kept is not None]
        for k in added:
            self.first_node[k], self.first_strategy[k] = self.tables.starts(self.boards[k])
        self.length[row], self.unit[row] = len(board), board.unit
        self.reference[row] = max(board.reference, 1)
        self.is_free[row], self.is_exact[row] = board.is_free, board.is_exact
        times = len(board.headroom)
        self.costs = _widened(self.costs, len(board.costs))
        self.chosen = _widened(self.chosen, len(board))
        self.remaining = _widened(self.remaining, times)
        if self.by_messages:
            self.remaining_wanted = _widened(self.remaining_wanted, times)

    def start(self, rows: Array) -> None:
        """Start episodes, (k,) int64, with nothing decided."""
        self.turn[rows] = 0
        for row in rows.tolist():
            board = self.boards[row]
            self.costs[row, : len(board.costs)] = board.costs
            self.remaining[row, : len(board.headroom)] = board.headroom
            if self.by_messages:
                self.remaining_wanted[row, : len(board.headroom)] = board.remaining_of(board.wanted)
            needs_witness = self.guarded and not board.is_free
            self.witness[row] = Witness(board) if needs_witness else None
            self.floor[row] = board.floor
        # Costs of plans are known at the end alone.
        self.over[rows] = self.dead[rows] = False
        self.cost[rows] = np.nan
        self._look(rows)

    def play(self, rows: Array, actions: Array) -> None:
        """Decide the current node of episodes that are not over, by legal actions; both (k,)."""
        self.chosen[rows, self.turn[rows]] = actions
        self._update_costs(rows, actions)
        self._update_memory(rows, actions)
        for row, strategy in zip(rows.tolist(), actions.tolist(), strict=True):
            witness = self.witness[row]
            if witness is not None:
                witness.take(int(self.turn[row]), strategy)
        self.turn[rows] += 1
        complete = self.turn[rows] == self.length[rows]
        ended = rows[complete]
        # When all is decided, the bound is the cost.
        self.cost[ended], self.over[ended] = self.floor[ended], True
        for row in ended[~self.is_exact[ended]].tolist():
            board = self.boards[row]
            self.cost[row] = board.reduced.cost(self.chosen[row, : len(board)])
        self._look(rows[~complete])

    def plan(self, row: int) -> ShardingPlan:
        """Return the plan of an episode; nodes that are not decided take their leanest strategy."""
        # The witness completes a partial plan legally; free boards need only lean strategies.
        board = self.boards[row]
        witness = self.witness[row]
        chosen = (board.lean if witness is None else witness.chosen).copy()
        turn = int(self.turn[row])
        chosen[:turn] = self.chosen[row, :turn]
        return board.problem.plan(board.liftable.lift(chosen))

    # Turns

    def _update_costs(self, rows: Array, chosen: Array) -> None:
        """Add the choices to the costs of neighbors that follow, and to the lower bounds."""
        tables, node = self.tables, self.first_node[rows] + self.turn[rows]
        costs, base = self.costs.reshape(-1), rows * self.costs.shape[1]
        begin, size = base + tables.offset[node], tables.size[node]
        least = np.minimum.reduceat(costs[ranges(begin, size)], begins(size))
        # The bound rises by what the choice costs above the least of its node ...
        increase = costs[begin + chosen] - least
        later = tables.later[node]
        edge, episode = ranges(tables.edge[node], later), np.repeat(np.arange(len(rows)), later)
        if len(edge):
            width = tables.width[edge]
            # An episode's edges lead to different neighbors, so no index repeats.
            into = ranges(base[episode] + tables.other[edge], width)
            before, parts = costs[into], begins(width)
            pairs = ranges(tables.pair[edge] + chosen[episode] * width, width)
            after = before + tables.pairs[pairs]
            costs[into] = after
            # ... and by what it adds to the least of the neighbors that follow.
            change = np.minimum.reduceat(after, parts) - np.minimum.reduceat(before, parts)
            increase += np.bincount(episode, change, minlength=len(rows))
        self.floor[rows] += increase

    def _update_memory(self, rows: Array, chosen: Array) -> None:
        tables, node = self.tables, self.first_node[rows] + self.turn[rows]
        for k, interval in self._intervals(node):
            used = tables.amounts[tables.amount[interval] + chosen[k]]
            begin, length = tables.begin[interval], tables.length[interval]
            times = ranges(rows[k] * self.remaining.shape[1] + begin, length)
            self.remaining.reshape(-1)[times] -= np.repeat(used, length)
            if self.by_messages:
                wanted = tables.amounts[tables.amount[interval] + tables.wanted[node[k]]]
                times = ranges(rows[k] * self.remaining_wanted.shape[1] + begin, length)
                self.remaining_wanted.reshape(-1)[times] -= np.repeat(used - wanted, length)

    def _intervals(self, node: Array) -> Iterator[tuple[Array, Array]]:
        """Yield positions in ``node``, (k,), and the next interval of each, first ones first."""
        count, first = self.tables.intervals[node], self.tables.interval[node]
        for number in range(int(count.max(initial=0))):
            (positions,) = (count > number).nonzero()
            yield positions, first[positions] + number

    def _look(self, rows: Array) -> None:
        if not len(rows):
            return
        current = _CurrentNodes(self, rows)
        for index, row in enumerate(rows.tolist()):
            witness, begin = self.witness[row], current.parts[index]
            if witness is not None:
                legal = current.legal[begin : begin + current.size[index]]
                witness.look(int(self.turn[row]), self.costs[row], legal)
        dead = rows[~np.logical_or.reduceat(current.legal, current.parts)]
        self.dead[dead] = self.over[dead] = True
        # Nodes have different numbers of strategies: what a smaller one leaves is cleared.
        self.rows[rows], self.legal[rows] = 0.0, False
        position = ranges(rows * self.width, current.size)
        self.legal.reshape(-1)[position] = current.legal
        if self.columns:
            features = current.columns()
            features[~current.legal] = 0.0
            self.rows.reshape(-1, len(self.columns))[position] = features
        self.contexts[rows] = current.contexts()


def _widened(array: Array, width: int) -> Array:
    missing = width - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing))) if missing > 0 else array


class _CurrentNodes:
    """The current nodes of k episodes, and their m strategies one node after the other.

    Attributes:
        size: (k,) number of each node's strategies.
        parts: (k,) where they begin.
        episode: (m,) episode of each strategy, from 0 to k - 1.
        costs: (m,) costs with decided neighbors.
        ahead: (m,) least that neighbors which follow cost more; empty where nobody needs it.
        legal: (m,) bool.
        regret: (m,) the feature ``cost``.
    """

    def __init__(self, turns: Construct, rows: Array) -> None:
        tables = turns.tables
        self.turns, self.rows, self.tables = turns, rows, tables
        self.node = turns.first_node[rows] + turns.turn[rows]
        self.size = tables.size[self.node]
        self.parts, self.base = begins(self.size), rows * turns.costs.shape[1]
        self.episode = np.repeat(np.arange(len(rows)), self.size)
        offset = tables.offset[self.node]
        self.strategies = ranges(turns.first_strategy[rows] + offset, self.size)
        self.costs = turns.costs.reshape(-1)[ranges(self.base + offset, self.size)]
        self.ahead = np.zeros(0)
        self.unit = turns.unit[rows][self.episode]
        self.legal = np.isfinite(self.costs)
        if turns.by_neighbors or not turns.is_free[rows].all():
            self.ahead = self._ahead()
            self.legal &= np.isfinite(self.ahead)
        self._apply_memory()
        self.regret = self._regret(self.costs)

    def _ahead(self) -> Array:
        """Return the least that neighbors which follow cost more with each strategy, (m,)."""
        tables, costs = self.tables, self.turns.costs.reshape(-1)
        later = tables.later[self.node]
        all_edges = ranges(tables.edge[self.node], later)
        all_nodes = np.repeat(np.arange(len(later)), later)
        ahead = np.zeros(len(self.costs))
        for part in batches(self.size[all_nodes] * tables.width[all_edges]):
            edge, node = all_edges[part], all_nodes[part]
            width, size = tables.width[edge], self.size[node]
            begin = self.base[node] + tables.other[edge]
            widths = np.repeat(width, size)
            neighbor_costs = costs[ranges(np.repeat(begin, size), widths)]
            pairs = tables.pairs[ranges(tables.pair[edge], size * width)]
            # min_t [c(t) + pair(s, t)]: the least that a neighbor costs beside each strategy s.
            least = np.minimum.reduceat(neighbor_costs + pairs, begins(widths))
            before = np.minimum.reduceat(costs[ranges(begin, width)], begins(width))
            strategy = ranges(self.parts[node], size)
            ahead += np.bincount(strategy, least - np.repeat(before, size), minlength=len(ahead))
        return ahead

    def _apply_memory(self) -> None:
        """Set ``largest_share`` and ``free``, and forbid strategies that exceed the limit."""
        tables = self.tables
        self.largest_share, self.free = np.zeros(len(self.costs)), np.ones(len(self.rows))
        for k, interval, free, strategy, amounts in self._spans(self.turns.remaining):
            available = np.repeat(free, self.size[k])
            # All other nodes at their least: necessary everywhere, sufficient on free boards.
            self.legal[strategy] &= amounts <= available
            share = amounts / np.maximum(available, 1)
            self.largest_share[strategy] = np.maximum(self.largest_share[strategy], share)
            # The tightest interval decides.
            free_share = free / np.maximum(tables.whole[interval], 1)
            self.free[k] = np.minimum(self.free[k], free_share)

    def _spans(self, remaining: Array) -> Iterator[tuple[Array, ...]]:
        """Yield intervals of the nodes: episodes, intervals, free memory, strategies, amounts."""
        tables = self.tables
        for k, interval in self.turns._intervals(self.node):
            length, size = tables.length[interval], self.size[k]
            times = ranges(self.rows[k] * remaining.shape[1] + tables.begin[interval], length)
            free = np.minimum.reduceat(remaining.reshape(-1)[times], begins(length))
            strategy = ranges(self.parts[k], size)
            amounts = tables.amounts[ranges(tables.amount[interval], size)]
            yield k, interval, free, strategy, amounts

    def columns(self) -> Array:
        """Return the action features that the episodes show, (m, their number)."""
        turns = self.turns
        values = {
            "cost": self.regret,
            "use": np.minimum(self.largest_share, 1.0),
            "mass": self.tables.mass[self.strategies],
        }
        if turns.by_messages:
            estimate = self.costs + self.tables.messages[self.strategies]
            pressure = self.pressures()
            outside, inside, weight = _SHARP
            least = self._least(np.where(self.legal, estimate, np.inf))
            with np.errstate(invalid="ignore"):
                excess = np.where(self.legal, estimate - least, 0.0) / self.unit
            values["rule"] = -outside * np.log1p(inside * excess)
            values["rule"] -= weight * np.maximum(pressure, 0.0)
            values |= {"messages": self._regret(estimate), "pressure": pressure}
        if turns.by_neighbors:
            values["ahead"] = self._regret(self.ahead)
            values["both"] = self._regret(self.costs + self.ahead)
        return np.stack([values[name] for name in turns.columns], axis=1)

    def _least(self, values: Array) -> Array:
        return np.minimum.reduceat(values, self.parts)[self.episode]

    def _regret(self, values: Array) -> Array:
        """Return ln(1 + x) / 4 of the excess x of values over the least of their node, in units."""
        least = self._least(values)
        with np.errstate(invalid="ignore"):
            excess = np.where(np.isfinite(values), values - least, np.inf)
        return np.minimum(np.log1p(excess / self.unit) / _DEPTH, RANGE)

    def pressures(self) -> Array:
        """Return what strategies exceed the limit by if all others get what they want."""
        tables = self.tables
        slack = np.full(len(self.costs), np.iinfo(np.int64).max)
        for k, interval, free, strategy, amounts in self._spans(self.turns.remaining_wanted):
            # What the node itself wants is given back before each of its strategies is tried.
            free = free + tables.amounts[tables.amount[interval] + tables.wanted[self.node[k]]]
            left = np.repeat(free, self.size[k]) - amounts
            slack[strategy] = np.minimum(slack[strategy], left)
        headroom = np.maximum(tables.headroom[self.node], 1)[self.episode]
        uses_memory = (tables.intervals[self.node] > 0)[self.episode]
        return np.where(uses_memory, np.clip(-slack / headroom, -1.0, _FURTHEST), 0.0)

    def contexts(self) -> Array:
        turns, rows, tables, size = self.turns, self.rows, self.tables, self.size
        length = turns.length[rows]
        floor = np.log(turns.reference[rows] / np.maximum(turns.floor[rows], 1.0)) / _DEPTH
        return np.stack(
            [
                turns.turn[rows] / length,
                np.add.reduceat(self.legal, self.parts, dtype=np.int64) / size,
                np.clip(floor, -1.0, 1.0),
                np.log2(size) / 8,
                np.minimum(tables.later[self.node] / 16, 1.0),
                np.minimum(tables.earlier[self.node] / 16, 1.0),
                np.maximum.reduceat(np.where(self.legal, self.regret, 0.0), self.parts),
                np.clip(self.free, 0.0, 1.0),
                np.log2(length) / 12,
            ],
            axis=1,
        )


def board_of(problem: Sharding, reduction: bool = True) -> Board:
    """Return the board of a problem, completed; arguments as of ``Board.of``.

    Raises:
        InfeasibleError: no plan is legal, none was found, or there is nothing to decide.
    """
    return completed(Board.of(problem, reduction))


def completed(board: Board) -> Board:
    """Return a board with a witness, and with the greedy plan, whose cost is the reference.

    The greedy plan takes the legal strategy of the least cost with decided neighbors and, at
    best, with those that follow.

    Raises:
        InfeasibleError: no legal plan was found.
    """
    board = replace(board, witness=board.lean if board.is_free else _first_witness(board))
    episode = Construct(1, int(board.sizes.max()), ("both",))
    episode.put(0, board)
    greedy = _played(episode, "both")
    return replace(board, greedy=greedy, reference=board.reduced.cost(greedy))


def _played(
    episode: Construct, column: str, noise: float = 0.0, rng: np.random.Generator | None = None
) -> Array:
    """Play a single episode by the least value of a column, with noise; return its choices, (n,).

    The first of several equal ones is taken.
    """
    row = np.zeros(1, np.int64)
    episode.start(row)
    while not episode.over[0]:
        score = episode.rows[0, :, episode.columns.index(column)].astype(float)
        if rng is not None:
            score += noise * rng.random(len(score))
        episode.play(row, np.where(episode.legal, score, np.inf).argmin(axis=1))
    return episode.chosen[0, : episode.length[0]].copy()


def _first_witness(board: Board) -> Array:
    episode = Construct(1, int(board.sizes.max()), ("mass",), guarded=False)
    episode.put(0, board)
    rng = np.random.default_rng(0)
    for attempt in range(_TRIES):
        chosen = _played(episode, "mass", 0.1 * attempt / _TRIES, rng if attempt else None)
        if not episode.dead[0]:
            return chosen
    raise InfeasibleError(
        f"{board.instance}: no legal plan was found in {_TRIES} attempts; there may be none"
    )


LARGEST = 16
"""Most nodes of a block."""
LARGEST_TABLE = 1 << 12
"""Most numbers of a table of joint costs in a block of two nodes and more."""
_REFUSED = 12  # nodes in a row that do not join, after which none is tried
# Prices of all the memory that is free, in units of what could be gained without the limit.
_PRICES = np.array([0.1, 1.0, 10.0])


class Block:
    """The block of a node.

    Attributes:
        nodes: its nodes, the one that it is of first.
        order: (node, neighbors in the block that are left when it is eliminated), as positions
            in ``nodes``.
        around: nodes whose strategies decide what the block can gain: it and its neighbors.
    """

    def __init__(self, board: Board, root: int) -> None:
        self.board = board
        self.nodes = [root]
        self.order: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        # Breadth first, so that a block is what lies around its root.
        seen, waiting, refused = {root}, deque([root]), 0
        while waiting and len(self.nodes) < LARGEST and refused < _REFUSED:
            node = waiting.popleft()
            if node != root:
                order = self._elimination([*self.nodes, node])
                if order is None:
                    refused += 1
                    continue
                self.nodes.append(node)
                self.order, refused = order, 0
            for other in board.neighbors[node]:
                if other.node not in seen:
                    seen.add(other.node)
                    waiting.append(other.node)
        near = {other.node for node in self.nodes for other in board.neighbors[node]}
        self.around = np.array(sorted({*self.nodes, *near}), np.int64)

    def _elimination(self, nodes: list[int]) -> list[tuple[int, tuple[int, ...]]] | None:
        """Return an order of elimination, least tables first; None if a table is too large."""
        index = {node: position for position, node in enumerate(nodes)}
        beside = [
            {index[other.node] for other in self.board.neighbors[node] if other.node in index}
            for node in nodes
        ]
        size = np.log2(self.board.sizes[nodes]).tolist()

        def log_size(position: int) -> float:
            return size[position] + sum(size[neighbor] for neighbor in beside[position])

        table = list(map(log_size, range(len(nodes))))
        # Greedy elimination: the node whose joint table is smallest goes first.
        remaining, order, max_log_size = set(index.values()), [], np.log2(LARGEST_TABLE) + 1e-9
        while remaining:
            position = min(remaining, key=table.__getitem__)
            if table[position] > max_log_size:
                return None
            others = beside[position]
            order.append((position, tuple(sorted(others))))
            remaining.discard(position)
            for neighbor in others:
                beside[neighbor] = (beside[neighbor] | others) - {neighbor, position}
                table[neighbor] = log_size(neighbor)
        return order

    @cached_property
    def tables(self) -> list[tuple[tuple[int, int], Array]]:
        """Positions of two neighbors in the block, and the costs of their pairs."""
        index = {node: position for position, node in enumerate(self.nodes)}
        return [
            ((index[other.node], position), other.table)
            for position, node in enumerate(self.nodes)
            for other in self.board.neighbors[node]
            if index.get(other.node, position) < position
        ]

    def solve(self, chosen: Array, remaining: Array) -> Array | None:
        """Find better strategies for the block's nodes.

        Args:
            chosen: (n,) strategies of the plan.
            remaining: (T + 1,) what the plan leaves of the headroom.

        Returns:
            Strategies of ``nodes`` with which the plan is legal and costs less; None if none are
            found.
        """
        board, nodes = self.board, self.nodes
        free = remaining.copy()
        for node in nodes:
            board.spend(free, node, int(chosen[node]), 1)
        shares = [self._share(node, free) for node in nodes]
        node_costs = [
            np.where(share > 1.0, np.inf, board.costs_of(node, chosen, nodes))
            for node, share in zip(nodes, shares, strict=True)
        ]
        cost = self._cost(node_costs, chosen[nodes])
        # Without a price the optimum of the block ignores memory: a bound on what it can gain.
        best, lowest = self._best(node_costs, shares, np.zeros(1))
        if not lowest[0] < cost:
            return None
        if self._fits(best[0], free):
            return best[0]
        # Prices in units of the possible gain trade cost for memory at every scale.
        strategies, costs = self._best(node_costs, shares, _PRICES * (cost - lowest[0]))
        for candidate in np.argsort(costs, kind="stable").tolist():
            if costs[candidate] < cost and self._fits(strategies[candidate], free):
                return strategies[candidate]
        return None

    def _share(self, node: int, free: Array) -> Array:
        """Return the largest share of what is free that each strategy takes, (k,)."""
        usage = self.board.usage[node]
        if usage is None:
            return np.zeros(int(self.board.sizes[node]))
        least = usage.least(free)[:, None]
        share = usage.amount / np.maximum(least, 1)
        return np.where(usage.amount > least, np.inf, share).max(axis=0)

    def _best(
        self, node_costs: list[Array], shares: list[Array], prices: Array
    ) -> tuple[Array, Array]:
        """Return the best strategies, (p, m), at each of p prices of memory, and their costs."""
        total = [
            costs + np.where(prices[:, None] > 0, prices[:, None] * np.minimum(share, 1.0), 0.0)
            for costs, share in zip(node_costs, shares, strict=True)
        ]
        factors: list[tuple[tuple[int, ...], Array]]
        factors = [((position,), costs) for position, costs in enumerate(total)]
        factors += [(scope, table[None]) for scope, table in self.tables]
        back = []
        for position, others in self.order:
            scope = (*others, position)
            # Bucket elimination (Dechter 1999): join the tables of a node, then minimize it out.
            joined = np.asarray(
                sum(_spread(factor, scope) for factor in factors if position in factor[0])
            )
            factors = [factor for factor in factors if position not in factor[0]]
            factors.append((others, joined.min(axis=-1)))
            back.append((position, others, joined.argmin(axis=-1)))
        strategies = np.zeros((len(prices), len(node_costs)), np.int64)
        rows = np.arange(len(prices))
        # Back substitution in reverse order of elimination.
        for position, others, best in reversed(back):
            strategies[:, position] = best[(rows, *(strategies[:, factor] for factor in others))]
        return strategies, np.array([self._cost(node_costs, taken) for taken in strategies])

    def _cost(self, node_costs: list[Array], taken: Array) -> float:
        """Return what strategies of the block, (m,), cost within it and with its neighbors."""
        total = sum(float(costs[s]) for costs, s in zip(node_costs, taken.tolist(), strict=True))
        return total + sum(float(table[taken[a], taken[b]]) for (a, b), table in self.tables)

    def _fits(self, taken: Array, free: Array) -> bool:
        remaining = free.copy()
        for node, strategy in zip(self.nodes, taken.tolist(), strict=True):
            self.board.spend(remaining, node, strategy, -1)
        return bool(remaining.min() >= 0)


def _spread(factor: tuple[tuple[int, ...], Array], scope: tuple[int, ...]) -> Array:
    """Return the table of a factor with the axes of a scope that holds its own, prices first."""
    places, table = factor
    axes = [0, *(1 + places.index(position) for position in scope if position in places)]
    index = (slice(None), *(slice(None) if position in places else None for position in scope))
    return table.transpose(axes)[index]


class Blocks:
    """The block of each of n nodes of a board, and which nodes the blocks hold, as arrays.

    Attributes:
        blocks: block of each node.
        size: (n,) share of the most nodes that a block has.
        degree: (n,) the feature ``degree``.
        least: (n,) least cost of each node and its edges, memory apart.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.blocks = [Block(board, root) for root in range(len(board))]
        self._inside, self._begin = _concatenated([np.array(block.nodes) for block in self.blocks])
        self._around, self._begin_around = _concatenated([block.around for block in self.blocks])
        self.size = np.array([len(block.nodes) / LARGEST for block in self.blocks])
        self.degree = np.minimum([np.log2(1 + len(x)) / 12 for x in board.neighbors], 1.0)
        self.least = np.minimum.reduceat(board.costs, board.offset[:-1])
        for node, others in enumerate(board.neighbors):
            self.least[node] += sum(float(other.table.min()) for other in others)

    def sums(self, values: Array) -> Array:
        """Return the sum of values, (n,), over each block, (n,)."""
        return np.add.reduceat(values[self._inside], self._begin)

    def touched(self, nodes: list[int]) -> Array:
        """Return the blocks, (n,) bool, that hold one of some nodes or a neighbor of one."""
        changed = np.zeros(len(self.board), bool)
        changed[nodes] = True
        return np.logical_or.reduceat(changed[self._around], self._begin_around)

    def free(self, remaining: Array) -> Array:
        """Return the least share of the headroom that is free while each node uses memory, (n,)."""
        share = remaining[:-1] / np.maximum(self.board.headroom[:-1], 1)
        free = np.ones(len(self.board))
        for node, usage in enumerate(self.board.usage):
            if usage is not None:
                free[node] = share[usage.first : usage.last].min()
        return np.clip(free, 0.0, 1.0)


blocks_of = lru_cache(maxsize=1024)(Blocks)
"""Returns the blocks of a board, which are computed once."""


def _concatenated(parts: list[Array]) -> tuple[Array, Array]:
    return np.concatenate(parts), begins(np.array([len(part) for part in parts]))


BLOCK_COLUMNS = {
    "rule": "30 times what the nodes of the block save one by one within the limit, in sum, over "
    "the plan's cost",
    "single": "ln(1 + x) / 4 of what the node alone saves within the limit",
    "block": "the same of the sum over the block",
    "unlimited": "the same of that sum without the limit",
    "excess": "the same of what the block's nodes cost with their neighbors beyond their least",
    "size": "nodes of the block / 16",
    "degree": "log2(1 + neighbors of the node) / 12",
    "since": "turns since the block was solved over those of an episode; 1: never",
    "changed": "1 if its nodes or their neighbors have changed since",
    "gained": "ln(1 + x) / 4 of what it gained then",
    "free": "least share of the headroom that is free while the node uses memory",
}
"""Features of the block of each node -> description.

Costs are in units of what a node costs on average in the greedy plan.
"""
BLOCK_AHEAD = ("rule", "single", "block", "unlimited", "excess")
"""Columns that look ahead."""
BLOCK_CONTEXTS = {
    "played": "share of the turns that are over",
    "legal": "share of the blocks that are legal",
    "saved": "ln of the start plan's cost over the plan's, / 4, at most 1",
    "last": "ln(1 + x) / 4 of what the last block gained",
    "fullest": "least share of the headroom that is free at a time",
    "nodes": "log2 of the nodes / 12",
}
"""Features of the state -> description."""
MOVES = 64
"""Most moves of an episode."""
# Factor of the rule's score, and what logarithms of amounts are divided by.
_BLOCK_SHARP = 30.0


class Improve:
    """The moves of n episodes at once; a single environment is the case n = 1.

    Attributes and arguments are as of ``Construct``. Rows and actions are of nodes, whose blocks
    they stand for; ``cost`` is that of the plan as it is now.
    """

    def __init__(self, count: int, width: int, columns: Sequence[str] = ()) -> None:
        self.width, self.looks = width, not set(BLOCK_AHEAD).isdisjoint(columns)
        self._columns = [list(BLOCK_COLUMNS).index(name) for name in columns]
        self.boards: list[Board] = [None] * count  # type: ignore[list-item]
        self.legal = np.zeros((count, width), bool)
        self.rows = np.zeros((count, width, len(columns)), np.float32)
        self.contexts = np.zeros((count, len(BLOCK_CONTEXTS)), np.float32)
        self.over = np.zeros(count, bool)
        self.cost = np.full(count, np.nan)
        self._states: list[_ImproveEpisode] = [None] * count  # type: ignore[list-item]

    def put(self, row: int, board: Board) -> None:
        """Give an episode a board, before it starts."""
        self.boards[row] = board

    def start(self, rows: Array) -> None:
        """Start episodes, (k,) int64, with the greedy plans of their boards."""
        self.over[rows] = False
        for row in rows.tolist():
            self._states[row] = _ImproveEpisode(self.boards[row])
            self._look(row)

    def play(self, rows: Array, actions: Array) -> None:
        """Solve legal blocks of episodes that are not over; see ``Construct.play``."""
        for row, action in zip(rows.tolist(), actions.tolist(), strict=True):
            self._states[row].move(action)
            self._look(row)
            self.over[row] = self._states[row].turn == MOVES or not self.legal[row].any()

    def plan(self, row: int) -> ShardingPlan:
        """Return the plan of an episode as it is now."""
        board = self.boards[row]
        return board.problem.plan(board.liftable.lift(self._states[row].chosen))

    def _look(self, row: int) -> None:
        state = self._states[row]
        rows = state.rows(self.looks)[:, self._columns]
        rows[~state.is_legal] = 0.0
        self.rows[row], self.legal[row] = 0.0, False
        self.rows[row, : len(rows)], self.legal[row, : len(rows)] = rows, state.is_legal
        self.contexts[row], self.cost[row] = state.contexts(), state.cost


class _ImproveEpisode:
    """The plan of an episode of ``Improve``, and what is known of each node's block.

    Attributes:
        is_legal: (n,) bool, whether solving the block can change the plan.
        solved_at: (n,) turn at which the block was solved last; -1: never.
        changed: (n,) bool, whether a node of the block or near it has changed since then.
        last_gains: (n,) the feature ``gained``.
        last_gain: the feature ``last``.
        costs: costs of each node's strategies, all other nodes as in the plan.
        node_cost: (n,) cost of each node with its neighbors.
        possible_saving: (n,) what changing the node alone could save, memory apart.
    """

    def __init__(self, board: Board) -> None:
        self.board, self.blocks = board, blocks_of(board)
        self.chosen = board.greedy.copy()
        self.cost = board.reference
        self.remaining = board.remaining_of(self.chosen)
        self.is_legal = np.ones(len(board), bool)
        self.solved_at = np.full(len(board), -1)
        self.changed = np.ones(len(board), bool)
        self.last_gains = np.zeros(len(board))
        self.last_gain, self.turn = 0.0, 0
        self.costs: list[Array] = [np.zeros(0)] * len(board)
        self.node_cost = np.zeros(len(board))
        self.possible_saving = np.zeros(len(board))
        self._measure(range(len(board)))

    def move(self, root: int) -> None:
        block = self.blocks.blocks[root]
        strategies = block.solve(self.chosen, self.remaining)
        self.solved_at[root], self.changed[root] = self.turn, False
        self.turn += 1
        before = self.cost
        if strategies is not None:
            moved = np.array(block.nodes)[strategies != self.chosen[block.nodes]].tolist()
            for node, strategy in zip(block.nodes, strategies.tolist(), strict=True):
                self.board.replace(self.remaining, node, int(self.chosen[node]), strategy)
            self.chosen[block.nodes] = strategies
            self.cost = self.board.reduced.cost(self.chosen)
            # A change may let any block gain again.
            self.is_legal[:] = True
            near = {other.node for node in moved for other in self.board.neighbors[node]}
            self._measure(sorted(near.union(moved)))
            self.changed |= self.blocks.touched(moved)
        # Solving the same block again would change nothing.
        self.is_legal[root] = False
        self.last_gain = float(_log_scaled((before - self.cost) / self.board.unit))
        self.last_gains[root] = self.last_gain

    def _measure(self, nodes: range | list[int]) -> None:
        for node in nodes:
            self.costs[node] = costs = self.board.costs_of(node, self.chosen)
            self.node_cost[node] = costs[self.chosen[node]]
            self.possible_saving[node] = self.node_cost[node] - costs.min()

    def singles(self) -> Array:
        """Return what each node alone can save within the limit, (n,)."""
        board, singles = self.board, self.possible_saving.copy()
        for node in np.flatnonzero(singles > 0).tolist():
            usage = board.usage[node]
            if usage is not None:
                free = usage.least(self.remaining) + usage.amount[:, self.chosen[node]]
                fits = (usage.amount <= free[:, None]).all(axis=0)
                # The cheapest strategy that fits takes the place of the cheapest one.
                singles[node] = self.node_cost[node] - self.costs[node][fits].min()
        return singles

    def rows(self, looks: bool) -> Array:
        blocks, unit = self.blocks, self.board.unit
        # Features that look ahead cost time, so they are computed only where shown.
        ahead = np.zeros((len(BLOCK_AHEAD), len(self.board)))
        if looks:
            single = self.singles()
            block = blocks.sums(single)
            amounts = [single, block, blocks.sums(self.possible_saving)]
            amounts.append(blocks.sums(np.maximum(self.node_cost - blocks.least, 0.0)))
            ahead[0] = _BLOCK_SHARP * block / max(self.cost, 1)
            ahead[1:] = _log_scaled(np.stack(amounts) / unit)
        columns = [
            *ahead,
            blocks.size,
            blocks.degree,
            np.where(
                self.solved_at < 0, 1.0, np.minimum((self.turn - self.solved_at) / MOVES, 1.0)
            ),
            self.changed,
            self.last_gains,
            blocks.free(self.remaining),
        ]
        return np.stack(columns, axis=1).astype(np.float32)

    def contexts(self) -> list[float]:
        board = self.board
        saved = np.log(max(board.reference, 1) / max(self.cost, 1)) / _DEPTH
        share = self.remaining[:-1] / np.maximum(board.headroom[:-1], 1)
        fullest = min(max(float(share.min(initial=1.0)), 0.0), 1.0)
        nodes = float(np.log2(len(board)) / 12)
        opened = float(self.is_legal.mean())
        return [self.turn / MOVES, opened, min(float(saved), 1.0), self.last_gain, fullest, nodes]


def _log_scaled(values: Array | float) -> Array:
    return np.log1p(np.maximum(values, 0.0)) / _DEPTH
