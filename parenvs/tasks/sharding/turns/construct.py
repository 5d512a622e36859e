"""``Construct``: n episodes that decide the nodes of their boards one after the other.

A strategy is legal if it is allowed with all decided neighbours, every neighbour that follows keeps
one that is allowed with it, the limit is kept with all other nodes at their floors, and, on boards
that are not free, the witness can be mended for it (``parenvs.tasks.sharding.turns.witness``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from parenvs.core.rows import RANGE
from parenvs.errors import InfeasibleError
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.turns.advice import messages_of, wanted_of
from parenvs.tasks.sharding.turns.board import Board
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
_GUIDE, _BOTH = list(COLUMNS).index("rule"), list(COLUMNS).index("both")
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

    Attributes:
        boards: the board of each episode.
        turn: (n,) int64, the node in hand.
        chosen: (n, N) int64, strategies of decided nodes.
        legal: (n, width) bool.
        rows: (n, width, len(COLUMNS)) float32.
        contexts: (n, len(CONTEXTS)) float32.
        over: (n,) bool.
        dead: (n,) bool, whether the episode ended for want of a legal strategy.
        cost: (n,) float64, cost of the plan of an episode that is complete, else NaN.

    Args:
        count: n.
        width: most strategies of a node.
        looks: whether rows hold messages and what follows from them.
        guarded: whether witnesses are kept; without, turns can be dead ends.
    """

    def __init__(self, count: int, width: int, looks: bool = False, guarded: bool = True) -> None:
        self.width, self.looks, self.guarded = width, looks, guarded
        self.boards: list[Any] = [None] * count
        self.witness: list[Witness | None] = [None] * count
        self.turn = np.zeros(count, dtype=np.int64)
        self.costs = np.zeros((count, 0))  # of strategies with decided neighbours
        self.room = np.zeros((count, 0), dtype=np.int64)  # headroom that is left
        self.wish = np.zeros((count, 0), dtype=np.int64)  # the same if all get what they want
        self.chosen = np.zeros((count, 0), dtype=np.int64)
        self.floor = np.zeros(count)  # lower bound of the cost, from decided nodes and least costs
        self.legal = np.zeros((count, width), dtype=np.bool_)
        self.rows = np.zeros((count, width, len(COLUMNS)), dtype=np.float32)
        self.contexts = np.zeros((count, len(CONTEXTS)), dtype=np.float32)
        self.over, self.dead = np.zeros((2, count), dtype=np.bool_)
        self.cost = np.full(count, np.nan)

    def put(self, row: int, board: Board) -> None:
        """Give an episode a board, before it starts."""
        self.boards[row] = board
        for name, size in (
            ("costs", len(board.costs)), ("room", len(board.headroom)),
            ("wish", len(board.headroom)), ("chosen", len(board)),
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
            if self.looks:
                self.wish[row, : len(board.headroom)] = board.room_of(wanted_of(board))
            kept = self.guarded and not board.is_free
            self.witness[row] = Witness(board) if kept else None
            self.floor[row] = _floor(board)
        self.over[rows] = self.dead[rows] = False
        self.cost[rows] = np.nan
        self._look(rows)

    def play(self, rows: np.ndarray, actions: np.ndarray) -> None:
        """Decide the node in hand of episodes that are not over, by legal actions; both (k,).

        ``over``, ``dead`` and ``cost`` tell what became of the episodes.
        """
        self._place(rows, actions)
        self.turn[rows] += 1
        complete = self.turn[rows] == np.array([len(self.boards[row]) for row in rows.tolist()])
        for row in rows[complete].tolist():
            board = self.boards[row]
            self.cost[row] = board.reduced.cost(self.chosen[row, : len(board)])
            self.over[row] = True
        self._look(rows[~complete])

    def plan(self, row: int) -> ShardingPlan:
        """Return the plan of an episode; nodes that are not decided take their leanest strategy."""
        board = self.boards[row]
        witness = self.witness[row]
        chosen = (board.lean if witness is None else witness.chosen).copy()
        turn = int(self.turn[row])
        chosen[:turn] = self.chosen[row, :turn]
        return board.problem.plan(board.whole.lift(chosen))

    def greedy(self, rows: np.ndarray) -> np.ndarray:
        """Return the legal strategy that is best by the rule, or without it by ``both``, (k,)."""
        score = self.rows[rows, :, _GUIDE] if self.looks else -self.rows[rows, :, _BOTH]
        return np.where(self.legal[rows], score, -np.inf).argmax(axis=1)

    # Turns

    def _groups(self, rows: np.ndarray) -> Iterator[tuple[Board, int, np.ndarray]]:
        """Yield the episodes that have the same node of the same board in hand; places in rows."""
        groups: dict[tuple[int, int], list[int]] = {}
        for at, (row, turn) in enumerate(zip(rows.tolist(), self.turn[rows].tolist(), strict=True)):
            groups.setdefault((id(self.boards[row]), turn), []).append(at)
        for (_, turn), positions in groups.items():
            yield self.boards[int(rows[positions[0]])], turn, np.array(positions)

    def _place(self, rows: np.ndarray, chosen: np.ndarray) -> None:
        """Decide the node in hand of each episode."""
        self.chosen[rows, self.turn[rows]] = chosen
        for board, node, positions in self._groups(rows):
            group, taken = rows[positions], chosen[positions]
            own = self.costs[group, board.offset[node] : board.offset[node + 1]]
            more = own[np.arange(len(group)), taken] - own.min(axis=1)
            for other in board.later[node]:
                begin, end = board.offset[other.node], board.offset[other.node + 1]
                before = self.costs[group, begin:end]
                after = before + other.table.T[taken]
                self.costs[group, begin:end] = after
                more += after.min(axis=1) - before.min(axis=1)
            self.floor[group] += more
            usage = board.usage[node]
            if usage is not None:
                used = usage.at_times(taken)
                self.room[group, usage.first : usage.last] -= used
                if self.looks:
                    wanted = usage.at_times(wanted_of(board)[node : node + 1])
                    self.wish[group, usage.first : usage.last] -= used - wanted
        for row, strategy in zip(rows.tolist(), chosen.tolist(), strict=True):
            witness = self.witness[row]
            if witness is not None:
                witness.take(int(self.turn[row]), strategy)

    def _look(self, rows: np.ndarray) -> None:
        """Tell what is legal at the node in hand of each episode, and describe it."""
        for board, node, positions in self._groups(rows):
            group = rows[positions]
            own, ahead = self._costs(board, node, group)
            share, fits, free = self._memory(board, node, group)
            legal = np.isfinite(own + ahead) & fits
            if not board.is_free:
                for row, mine in zip(group.tolist(), legal, strict=True):
                    witness = self.witness[row]
                    if witness is not None:
                        witness.look(node, self.costs[row], mine)
            none = ~legal.any(axis=1)
            if none.any():
                self.dead[group[none]] = self.over[group[none]] = True
            self._describe(board, node, group, own, ahead, legal, share, free)

    def _costs(self, board: Board, node: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return costs with decided neighbours, and the least more with each that follows."""
        own = self.costs[rows, board.offset[node] : board.offset[node + 1]]
        ahead = np.zeros_like(own)
        for other in board.later[node]:
            begin, end = board.offset[other.node], board.offset[other.node + 1]
            theirs, table = self.costs[rows, begin:end], other.table
            part = max(1, _PART // table.size)
            for first in range(0, len(rows), part):
                block = slice(first, first + part)
                minimum = (theirs[block, :, None] + table).min(axis=1)
                ahead[block] += minimum - theirs[block].min(axis=1, keepdims=True)
        return own, ahead

    def _memory(
        self, board: Board, node: int, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the share of the headroom that strategies take, whether they fit, what is free."""
        count, size = len(rows), int(board.sizes[node])
        usage = board.usage[node]
        share, fits = np.zeros((count, size)), np.ones((count, size), dtype=np.bool_)
        if usage is None:
            return share, fits, np.ones(count)
        room = self.room[rows, usage.first : usage.last]
        free = np.minimum.reduceat(room, usage.starts, axis=1)
        part = max(1, _PART // usage.amount.size)
        for first in range(0, count, part):
            block = slice(first, first + part)
            left = free[block, :, None]
            fits[block] = (usage.amount <= left).all(axis=1)
            share[block] = (usage.amount / np.maximum(left, 1)).max(axis=1)
        whole = np.minimum.reduceat(board.headroom[usage.first : usage.last], usage.starts)
        return share, fits, (free / np.maximum(whole, 1)).min(axis=1)

    def _pressure(self, board: Board, node: int, rows: np.ndarray) -> np.ndarray | float:
        """Return what each strategy exceeds the limit by if all others get what they want."""
        usage = board.usage[node]
        if usage is None:
            return 0.0
        span = slice(usage.first, usage.last)
        free = np.minimum.reduceat(self.wish[rows, span], usage.starts, axis=1)
        free = free + usage.amount[:, wanted_of(board)[node]]
        left = (free[:, :, None] - usage.amount).min(axis=1)
        whole = np.minimum.reduceat(board.headroom[span], usage.starts).min()
        return np.clip(-left / max(int(whole), 1), -1.0, _FURTHEST)

    def _describe(
        self, board: Board, node: int, rows: np.ndarray, own: np.ndarray, ahead: np.ndarray,
        legal: np.ndarray, share: np.ndarray, free: np.ndarray,
    ) -> None:  # fmt: skip
        """Write mask, rows and contexts of the node in hand."""
        size, at = own.shape[1], slice(board.offset[node], board.offset[node + 1])
        mass = board.mass[at]
        mine = np.zeros((len(rows), size, len(COLUMNS)), dtype=np.float32)
        if self.looks:
            led = own + messages_of(board)[at]
            outside, inside, weight = _SHARP
            pressure = self._pressure(board, node, rows)
            best = np.where(legal, led, np.inf).min(axis=1, keepdims=True)
            more = np.where(legal, led - best, 0.0) / board.unit
            mine[..., 0] = -outside * np.log1p(inside * more) - weight * np.maximum(pressure, 0.0)
            mine[..., 1] = regret(led, board.unit)
            mine[..., 4] = pressure
        mine[..., 2] = regret(ahead, board.unit)
        mine[..., 3] = worst = regret(own + ahead, board.unit)
        mine[..., 5] = regret(own, board.unit)
        mine[..., 6] = np.minimum(share, 1.0)
        mine[..., 7] = mass / max(mass.max(), 1.0)
        mine[~legal] = 0.0
        self.rows[rows] = 0.0
        self.rows[rows, :size] = mine
        self.legal[rows] = False
        self.legal[rows, :size] = legal
        floor = np.log(max(board.reference, 1) / np.maximum(self.floor[rows], 1.0)) / _DEPTH
        later = len(board.later[node])
        self.contexts[rows] = np.stack(
            np.broadcast_arrays(
                node / len(board),
                legal.mean(axis=1),
                np.clip(floor, -1.0, 1.0),
                np.log2(size) / 8,
                min(later / 16, 1.0),
                min((len(board.beside[node]) - later) / 16, 1.0),
                np.where(legal, worst, 0.0).max(axis=1),
                np.clip(free, 0.0, 1.0),
                np.log2(len(board)) / 12,
            ),
            axis=1,
        )


def regret(values: np.ndarray, unit: float) -> np.ndarray:
    """Return ln(1 + x) / 4 of the excess x of values over the least of their row, in units."""
    finite = np.isfinite(values)
    minimum = np.where(finite, values, np.inf).min(axis=-1, keepdims=True)
    more = np.where(finite, values - np.where(np.isfinite(minimum), minimum, 0.0), np.inf)
    return np.minimum(np.log1p(more / unit) / _DEPTH, RANGE)


def _floor(board: Board) -> float:
    """Return what all nodes cost at least, with what the reduction took out."""
    return float(np.minimum.reduceat(board.costs, board.offset[:-1]).sum() + board.reduced.constant)


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
    episode, row = Construct(1, width), np.zeros(1, dtype=np.int64)
    episode.put(0, board)
    episode.start(row)
    while not episode.over[0]:
        episode.play(row, episode.greedy(row))
    first = episode.chosen[0, : len(board)].copy()
    return replace(board, first=first, reference=board.reduced.cost(first))


def _first_witness(board: Board) -> np.ndarray:
    """Find a legal plan that uses little: the leanest legal strategies, then drawn ones."""
    episode, row = Construct(1, int(board.sizes.max()), guarded=False), np.zeros(1, dtype=np.int64)
    episode.put(0, board)
    rng = np.random.default_rng(0)
    for attempt in range(_TRIES):
        episode.start(row)
        while not episode.over[0]:
            score = episode.rows[0, :, list(COLUMNS).index("mass")].astype(float)
            score += 0.1 * attempt / _TRIES * rng.random(len(score)) if attempt else 0.0
            episode.play(row, np.where(episode.legal, score, np.inf).argmin(axis=1))
        if not episode.dead[0]:
            return episode.chosen[0, : len(board)].copy()
    raise InfeasibleError(
        f"{board.instance}: no legal plan was found in {_TRIES} attempts; there may be none"
    )
