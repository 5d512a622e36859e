"""``Construct``: n episodes that decide the nodes of their boards one after the other.

A strategy is legal if it is allowed with all decided neighbours, every neighbour that follows keeps
one that is allowed with it, the limit is kept with all other nodes at their floors, and, on boards
that are not free, the witness can be mended for it (``parenvs.tasks.sharding.turns.witness``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from parenvs.core.rows import RANGE, Timed
from parenvs.errors import InfeasibleError
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.turns.advice import wanted_of
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.tables import Tables, begins, ranges
from parenvs.tasks.sharding.turns.witness import Witness

COLUMNS = {
    "rule": "-2 ln(1 + 20 x) of the excess x of cost and messages over the least legal one, less "
    "10 times the pressure where the limit is exceeded",
    "messages": "ln(1 + x) / 4 of that excess x over the least",
    "ahead": "the same of the least that neighbours that follow cost more with it",
    "both": "the same of its cost and that",
    "pressure": "by how much the limit is exceeded while the node uses memory, as a share of the "
    "headroom, if all that follow take what the messages lead to; 0 if it uses none; from -1 to 4",
    "cost": "ln(1 + x) / 4 of the excess x of its cost with decided neighbours over the least",
    "use": "share of the memory that is free, all others at their least, that it takes",
    "mass": "its memory over time, over that of the strategy that takes most",
}
"""What the observation says of each strategy of the node in hand.

Costs are in units of what a node costs on average in the greedy plan.
"""
AHEAD = ("rule", "messages", "ahead", "both", "pressure")
"""Columns that look ahead."""
CONTEXTS = {
    "placed": "share of the nodes that are decided",
    "legal": "share of the strategies that are legal",
    "floor": "ln of the start plan's cost over the bound of what is decided, / 4, from -1 to 1",
    "strategies": "log2 of their number / 8",
    "later": "neighbours that follow / 16, at most 1",
    "earlier": "neighbours that are decided / 16, at most 1",
    "spread": "ln(1 + x) / 4 of what the dearest legal strategy costs more than the cheapest",
    "free": "share of the headroom that is free while the node uses memory",
    "nodes": "log2 of the nodes / 12",
}
"""What it says of the turn."""
BARE = tuple(name for name in COLUMNS if name not in AHEAD)
"""Columns that do not."""
_BY_MESSAGES, _BY_NEIGHBOURS = {"rule", "messages", "pressure"}, {"ahead", "both"}
"""Columns that need messages, and costs of neighbours that follow."""
_DEPTH = 4.0
"""What logarithms of excesses are divided by."""
_SHARP = 2.0, 20.0, 10.0
"""Factors of the rule's score: of the logarithm, within it, and of the pressure."""
_FURTHEST = 4.0
"""Most that the pressure tells."""
_PART = 1 << 20  # numbers of a temporary array
_TRIES = 16  # to find a first witness


class Construct:
    """The turns of n episodes at once; a single environment is the case n = 1.

    Episodes may be of any boards and at any nodes: all are played together, as arrays of the
    strategies of their nodes in hand, one episode after the other (``turns.tables``).

    Attributes:
        boards: the board of each episode.
        turn: (n,) int64, the node in hand.
        chosen: (n, N) int64, strategies of decided nodes.
        legal: (n, width) bool.
        rows: (n, width, len(columns)) float32.
        contexts: (n, len(CONTEXTS)) float32.
        over: (n,) bool.
        dead: (n,) bool, whether the episode ended for want of a legal strategy.
        cost: (n,) float64, cost of the plan of an episode that is complete, else NaN.

    Args:
        count: n.
        width: most strategies of a node.
        columns: what rows hold, of ``COLUMNS``.
        guarded: whether witnesses are kept; without, turns can be dead ends.
    """

    def __init__(
        self, count: int, width: int, columns: Sequence[str] = (), guarded: bool = True
    ) -> None:
        self.width, self.columns, self.guarded = width, tuple(columns), guarded
        self.by_messages = not _BY_MESSAGES.isdisjoint(columns)
        self.by_neighbours = not _BY_NEIGHBOURS.isdisjoint(columns)
        self.boards: list[Any] = [None] * count
        self.witness: list[Witness | None] = [None] * count
        self.tables = Tables(count, self.by_messages)
        # Where nodes and strategies of each episode's board begin, and what is told of it.
        self.node, self.strategy, self.length = np.zeros((3, count), dtype=np.int64)
        self.unit, self.reference = np.ones((2, count))
        self.is_free, self.is_exact = np.zeros((2, count), dtype=np.bool_)
        self.turn = np.zeros(count, dtype=np.int64)
        self.costs = np.zeros((count, 0))  # of strategies with decided neighbours
        self.room = np.zeros((count, 0), dtype=np.int64)  # headroom that is left
        self.wish = np.zeros((count, 0), dtype=np.int64)  # the same if all get what they want
        self.chosen = np.zeros((count, 0), dtype=np.int64)
        self.floor = np.zeros(count)  # lower bound of the cost, from decided nodes and least costs
        self.legal = np.zeros((count, width), dtype=np.bool_)
        self.rows = np.zeros((count, width, len(self.columns)), dtype=np.float32)
        self.contexts = np.zeros((count, len(CONTEXTS)), dtype=np.float32)
        self.over, self.dead = np.zeros((2, count), dtype=np.bool_)
        self.cost = np.full(count, np.nan)

    def put(self, row: int, board: Board) -> None:
        """Give an episode a board, before it starts."""
        self.boards[row] = board
        if self.tables.is_full:
            self.tables.clear()
            for other, held in enumerate(self.boards):
                if held is not None:
                    self.node[other], self.strategy[other] = self.tables.places(held)
        self.node[row], self.strategy[row] = self.tables.places(board)
        self.length[row], self.unit[row] = len(board), board.unit
        self.reference[row] = max(board.reference, 1)
        self.is_free[row], self.is_exact[row] = board.is_free, board.is_exact
        wish = len(board.headroom) if self.by_messages else 0
        for name, size in (
            ("costs", len(board.costs)), ("room", len(board.headroom)), ("wish", wish),
            ("chosen", len(board)),
        ):  # fmt: skip
            array = getattr(self, name)
            if array.shape[1] < size:
                widened = np.zeros((len(array), size), dtype=array.dtype)
                widened[:, : array.shape[1]] = array
                setattr(self, name, widened)

    def start(self, rows: np.ndarray) -> None:
        """Start episodes, (k,) int64, with nothing decided."""
        self.turn[rows] = 0
        for row in rows.tolist():
            board = self.boards[row]
            self.costs[row, : len(board.costs)] = board.costs
            self.room[row, : len(board.headroom)] = board.headroom
            if self.by_messages:
                self.wish[row, : len(board.headroom)] = board.room_of(wanted_of(board))
            kept = self.guarded and not board.is_free
            self.witness[row] = Witness(board) if kept else None
            self.floor[row] = board.floor
        self.over[rows] = self.dead[rows] = False
        self.cost[rows] = np.nan
        self._look(rows)

    def play(self, rows: np.ndarray, actions: np.ndarray) -> None:
        """Decide the node in hand of episodes that are not over, by legal actions; both (k,).

        ``over``, ``dead`` and ``cost`` tell what became of the episodes.
        """
        self._place(rows, actions)
        self.turn[rows] += 1
        complete = self.turn[rows] == self.length[rows]
        ended = rows[complete]
        # When all is decided, the bound is the cost.
        self.cost[ended], self.over[ended] = self.floor[ended], True
        for row in ended[~self.is_exact[ended]].tolist():
            board = self.boards[row]
            self.cost[row] = board.reduced.cost(self.chosen[row, : len(board)])
        self._look(rows[~complete] if len(ended) else rows)

    def plan(self, row: int) -> ShardingPlan:
        """Return the plan of an episode; nodes that are not decided take their leanest strategy."""
        board = self.boards[row]
        witness = self.witness[row]
        chosen = (board.lean if witness is None else witness.chosen).copy()
        turn = int(self.turn[row])
        chosen[:turn] = self.chosen[row, :turn]
        return board.problem.plan(board.whole.lift(chosen))

    def best(self, rows: np.ndarray, column: str, sign: int = 1) -> np.ndarray:
        """Return the legal strategy of the largest value, or with -1 the least, of a column, (k,).

        The first of several.
        """
        score = sign * self.rows[rows, :, self.columns.index(column)]
        return np.where(self.legal[rows], score, -np.inf).argmax(axis=1)

    # Turns

    def _place(self, rows: np.ndarray, chosen: np.ndarray) -> None:
        """Decide the node in hand of each episode."""
        tables, node = self.tables, self.node[rows] + self.turn[rows]
        self.chosen[rows, self.turn[rows]] = chosen
        costs, base = self.costs.reshape(-1), rows * self.costs.shape[1]
        begin, size = base + tables.offset[node], tables.size[node]
        least = np.minimum.reduceat(costs[ranges(begin, size)], begins(size))
        more = costs[begin + chosen] - least
        later = tables.later[node]
        edge, at = ranges(tables.edge[node], later), np.repeat(np.arange(len(rows)), later)
        if len(edge):
            width = tables.width[edge]
            into = ranges(base[at] + tables.other[edge], width)  # no place twice
            before, parts = costs[into], begins(width)
            after = before + tables.pairs[ranges(tables.pair[edge] + chosen[at] * width, width)]
            costs[into] = after
            change = np.minimum.reduceat(after, parts) - np.minimum.reduceat(before, parts)
            more += np.bincount(at, change, minlength=len(rows))
        self.floor[rows] += more
        for k, interval in self._intervals(node):
            used = tables.amounts[tables.amount[interval] + chosen[k]]
            length = tables.length[interval]
            times = ranges(rows[k] * self.room.shape[1] + tables.begin[interval], length)
            self.room.reshape(-1)[times] -= np.repeat(used, length)
            if self.by_messages:
                wanted = tables.amounts[tables.amount[interval] + tables.wanted[node[k]]]
                times = ranges(rows[k] * self.wish.shape[1] + tables.begin[interval], length)
                self.wish.reshape(-1)[times] -= np.repeat(used - wanted, length)
        if not self.is_free[rows].all():
            for row, strategy in zip(rows.tolist(), chosen.tolist(), strict=True):
                witness = self.witness[row]
                if witness is not None:
                    witness.take(int(self.turn[row]), strategy)

    def _intervals(self, node: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield places in nodes, (k,), and an interval of each: the first ones, the second ones."""
        count, first = self.tables.intervals[node], self.tables.interval[node]
        for number in range(int(count.max(initial=0))):
            (at,) = (count > number).nonzero()
            yield at, first[at] + number

    def judging(self, rows: np.ndarray) -> tuple[Timed, Timed]:
        """See ``RowGame.judging``: costs beside neighbours; memory, if all get their wish, too."""
        count = len(_Hand(self, rows).own)
        formulas = Timed(lambda: _Hand(self, rows)._pressures(), count)
        return Timed(partial(self._look, rows), count), formulas

    def _look(self, rows: np.ndarray) -> None:
        """Tell what is legal at the node in hand of each episode, and describe it."""
        if not len(rows):
            return
        hand = _Hand(self, rows)
        for k, part in hand.unsafe():
            witness = self.witness[int(rows[k])]
            if witness is not None:
                witness.look(int(self.turn[rows[k]]), self.costs[rows[k]], hand.legal[part])
        none = ~np.logical_or.reduceat(hand.legal, hand.parts)
        if none.any():
            self.dead[rows[none]] = self.over[rows[none]] = True
        self.rows[rows], self.legal[rows] = 0.0, False
        place = ranges(rows * self.width, hand.size)
        self.legal.reshape(-1)[place] = hand.legal
        if self.columns:
            made = np.stack([hand.column(name) for name in self.columns], axis=1)
            made[~hand.legal] = 0.0
            self.rows.reshape(-1, len(self.columns))[place] = made
        self.contexts[rows] = hand.contexts()


class _Hand:
    """The strategies of the nodes in hand of some episodes, in a row; k episodes, m strategies.

    Attributes:
        size: (k,) number of each node's strategies.
        parts: (k,) where they begin.
        legal: (m,) bool.
    """

    def __init__(self, turns: Construct, rows: np.ndarray) -> None:
        tables = turns.tables
        self.turns, self.rows, self.tables = turns, rows, tables
        self.node = turns.node[rows] + turns.turn[rows]
        self.size = tables.size[self.node]
        self.parts, self.base = begins(self.size), rows * turns.costs.shape[1]
        self.of = np.repeat(np.arange(len(rows)), self.size)  # episode of each strategy
        offset = tables.offset[self.node]
        self.strategies = ranges(turns.strategy[rows] + offset, self.size)
        self.own = turns.costs.reshape(-1)[ranges(self.base + offset, self.size)]
        self.ahead = np.zeros(0)
        self.unit = turns.unit[rows][self.of]
        self.legal = np.isfinite(self.own)
        if turns.by_neighbours or not turns.is_free[rows].all():
            self.ahead = self._ahead()
            self.legal &= np.isfinite(self.ahead)
        self._memory()
        self._regrets: dict[str, np.ndarray] = {}

    def unsafe(self) -> Iterator[tuple[int, slice]]:
        """Yield the episodes whose masks a witness has to look at, and the places in ``legal``."""
        for k in (~self.turns.is_free[self.rows]).nonzero()[0].tolist():
            yield k, slice(int(self.parts[k]), int(self.parts[k] + self.size[k]))

    def _ahead(self) -> np.ndarray:
        """Return the least that neighbours which follow cost more with each strategy, (m,)."""
        tables, costs = self.tables, self.turns.costs.reshape(-1)
        ahead, later = np.zeros(len(self.own)), self.tables.later[self.node]
        edges, ats = ranges(tables.edge[self.node], later), np.repeat(np.arange(len(later)), later)
        count = self.size[ats] * tables.width[edges]
        part = count.cumsum() // _PART  # so that temporary arrays stay small
        for first, last in pairwise([0, *(np.diff(part).nonzero()[0] + 1).tolist(), len(edges)]):
            if first == last:
                continue
            edge, at = edges[first:last], ats[first:last]
            width, size = tables.width[edge], self.size[at]
            begin = self.base[at] + tables.other[edge]
            widths = np.repeat(width, size)
            theirs = costs[ranges(np.repeat(begin, size), widths)]
            pairs = tables.pairs[ranges(tables.pair[edge], size * width)]
            least = np.minimum.reduceat(theirs + pairs, begins(widths))
            now = np.minimum.reduceat(costs[ranges(begin, width)], begins(width))
            where = ranges(self.parts[at], size)
            ahead += np.bincount(where, least - np.repeat(now, size), minlength=len(ahead))
        return ahead

    def _memory(self) -> None:
        """Find the share of the free memory that strategies take, and what is free; what fits."""
        tables, room = self.tables, self.turns.room
        self.share, self.free = np.zeros(len(self.own)), np.ones(len(self.rows))
        for k, interval, free, place, amounts in self._spans(room):
            left = np.repeat(free, self.size[k])
            self.legal[place] &= amounts <= left
            taken = amounts / np.maximum(left, 1)
            self.share[place] = np.maximum(self.share[place], taken)
            whole = free / np.maximum(tables.whole[interval], 1)
            self.free[k] = np.minimum(self.free[k], whole)

    def _spans(self, room: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield intervals of the nodes: episodes, intervals, free memory, strategies, amounts."""
        tables = self.tables
        for k, interval in self.turns._intervals(self.node):
            length, size = tables.length[interval], self.size[k]
            times = ranges(self.rows[k] * room.shape[1] + tables.begin[interval], length)
            free = np.minimum.reduceat(room.reshape(-1)[times], begins(length))
            place = ranges(self.parts[k], size)
            yield k, interval, free, place, tables.amounts[ranges(tables.amount[interval], size)]

    # What is told

    def column(self, name: str) -> np.ndarray:
        """Return a column of ``COLUMNS``, (m,)."""
        made: np.ndarray = getattr(self, f"_column_{name}")()
        return made

    def _least(self, values: np.ndarray) -> np.ndarray:
        """Return for each strategy the least value of its node's, (m,)."""
        return np.minimum.reduceat(values, self.parts)[self.of]

    def _regret(self, values: np.ndarray) -> np.ndarray:
        """Return ln(1 + x) / 4 of the excess x of values over the least of their node, in units."""
        least = self._least(values)
        with np.errstate(invalid="ignore"):
            more = np.where(np.isfinite(values), values - least, np.inf)
        return np.minimum(np.log1p(more / self.unit) / _DEPTH, RANGE)

    def _kept(self, name: str, values: Callable[[], np.ndarray]) -> np.ndarray:
        """Return what is computed once."""
        if name not in self._regrets:
            self._regrets[name] = values()
        return self._regrets[name]

    def _led(self) -> np.ndarray:
        return self._kept("led", lambda: self.own + self.tables.messages[self.strategies])

    def _column_rule(self) -> np.ndarray:
        outside, inside, weight = _SHARP
        led = self._led()
        least = self._least(np.where(self.legal, led, np.inf))
        with np.errstate(invalid="ignore"):
            more = np.where(self.legal, led - least, 0.0) / self.unit
        return -outside * np.log1p(inside * more) - weight * np.maximum(
            self._column_pressure(), 0.0
        )

    def _column_messages(self) -> np.ndarray:
        return self._regret(self._led())

    def _column_ahead(self) -> np.ndarray:
        return self._regret(self.ahead)

    def _column_both(self) -> np.ndarray:
        return self._kept("both", lambda: self._regret(self.own + self.ahead))

    def _column_pressure(self) -> np.ndarray:
        return self._kept("pressure", self._pressures)

    def _pressures(self) -> np.ndarray:
        """Return what strategies exceed the limit by if all others get what they want."""
        tables = self.tables
        left = np.full(len(self.own), np.iinfo(np.int64).max)
        for k, interval, free, place, amounts in self._spans(self.turns.wish):
            free = free + tables.amounts[tables.amount[interval] + tables.wanted[self.node[k]]]
            left[place] = np.minimum(left[place], np.repeat(free, self.size[k]) - amounts)
        whole = np.maximum(tables.headroom[self.node], 1)[self.of]
        uses = (tables.intervals[self.node] > 0)[self.of]
        return np.where(uses, np.clip(-left / whole, -1.0, _FURTHEST), 0.0)

    def _column_cost(self) -> np.ndarray:
        return self._kept("cost", lambda: self._regret(self.own))

    def _column_use(self) -> np.ndarray:
        return np.minimum(self.share, 1.0)

    def _column_mass(self) -> np.ndarray:
        return self.tables.mass[self.strategies]

    def contexts(self) -> np.ndarray:
        """Return the contexts of the turns, (k, len(CONTEXTS))."""
        turns, rows, tables, size = self.turns, self.rows, self.tables, self.size
        length = turns.length[rows]
        floor = np.log(turns.reference[rows] / np.maximum(turns.floor[rows], 1.0)) / _DEPTH
        worst = self._column_cost()
        return np.stack(
            [
                turns.turn[rows] / length,
                np.add.reduceat(self.legal, self.parts, dtype=np.int64) / size,
                np.clip(floor, -1.0, 1.0),
                np.log2(size) / 8,
                np.minimum(tables.later[self.node] / 16, 1.0),
                np.minimum(tables.earlier[self.node] / 16, 1.0),
                np.maximum.reduceat(np.where(self.legal, worst, 0.0), self.parts),
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

    The greedy plan takes the legal strategy of the least cost with decided neighbours and, at
    best, with those that follow.

    Raises:
        InfeasibleError: no legal plan was found.
    """
    board = replace(board, witness=board.lean if board.is_free else _first_witness(board))
    width = int(board.sizes.max())
    episode, row = Construct(1, width, ("both",)), np.zeros(1, dtype=np.int64)
    episode.put(0, board)
    episode.start(row)
    while not episode.over[0]:
        episode.play(row, episode.best(row, "both", -1))
    first = episode.chosen[0, : len(board)].copy()
    return replace(board, first=first, reference=board.reduced.cost(first))


def _first_witness(board: Board) -> np.ndarray:
    """Find a legal plan that uses little: the leanest legal strategies, then drawn ones."""
    episode, row = Construct(1, int(board.sizes.max()), ("mass",), False), np.zeros(1, np.int64)
    episode.put(0, board)
    rng = np.random.default_rng(0)
    for attempt in range(_TRIES):
        episode.start(row)
        while not episode.over[0]:
            score = episode.rows[0, :, 0].astype(float)
            score += 0.1 * attempt / _TRIES * rng.random(len(score)) if attempt else 0.0
            episode.play(row, np.where(episode.legal, score, np.inf).argmin(axis=1))
        if not episode.dead[0]:
            return episode.chosen[0, : len(board)].copy()
    raise InfeasibleError(
        f"{board.instance}: no legal plan was found in {_TRIES} attempts; there may be none"
    )
