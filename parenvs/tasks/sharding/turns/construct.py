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

from parenvs.errors import InfeasibleError
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.turns.advice import LEVELS, advise
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.witness import Witness
from parenvs.tasks.sharding.turns.worth import WORST, worth_of

ROWS = ("cost", "ahead", "both", "messages", "prices", "use", "mass", "best", "legal")
"""What the observation says of each strategy of the node in hand."""
NUMBERS = ("placed", "legal", "floor", "strategies", "later", "earlier", "spread", "free")
"""What it says of the episode."""
GUIDES = dict(zip(LEVELS, ("both", "messages", "prices"), strict=True))
"""Row that a greedy choice goes by, by the level of advice."""
DEEPEST = 16.0
"""Logarithm of the largest regret that rows can tell, in units of ``Board.unit``."""
_PART = 1 << 20  # numbers of a temporary array
_TRIES = 16  # to find a first witness


class Construct:
    """The turns of n episodes at once; a single environment is the case n = 1.

    Attributes:
        boards: the board of each episode.
        turn: (n,) int64, the node in hand.
        chosen: (n, N) int64, strategies of decided nodes.
        legal: (n, width) bool.
        rows: (n, width, len(ROWS)) float32.
        numbers: (n, len(NUMBERS)) float32.
        over: (n,) bool.
        dead: (n,) bool, whether the episode ended for want of a legal strategy.
        cost: (n,) float64, cost of the plan of an episode that is complete, else NaN.

    Args:
        count: n.
        width: most strategies of a node.
        advice: a level of ``parenvs.tasks.sharding.turns.advice.LEVELS``.
        reward: one of ``worth.REWARDS``.
        guarded: whether witnesses are kept; without, turns can be dead ends.
    """

    def __init__(
        self, count: int, width: int, advice: str = "none", reward: str = "log",
        guarded: bool = True,
    ) -> None:  # fmt: skip
        self.width, self.advice, self.reward, self.guarded = width, advice, reward, guarded
        self.boards: list[Any] = [None] * count
        self.witness: list[Witness | None] = [None] * count
        self.turn = np.zeros(count, dtype=np.int64)
        self.costs = np.zeros((count, 0))  # of strategies with decided neighbours
        self.room = np.zeros((count, 0), dtype=np.int64)  # headroom that is left
        self.chosen = np.zeros((count, 0), dtype=np.int64)
        self.floor = np.zeros(count)  # lower bound of the cost, from decided nodes and least costs
        self.legal = np.zeros((count, width), dtype=np.bool_)
        self.rows = np.zeros((count, width, len(ROWS)), dtype=np.float32)
        self.numbers = np.zeros((count, len(NUMBERS)), dtype=np.float32)
        self.over, self.dead = np.zeros((2, count), dtype=np.bool_)
        self.cost = np.full(count, np.nan)

    def put(self, row: int, board: Board) -> None:
        """Give an episode a board, before it starts."""
        self.boards[row] = board
        for name, size in (
            ("costs", len(board.costs)), ("room", len(board.headroom)), ("chosen", len(board)),
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
            kept = self.guarded and not board.is_free
            self.witness[row] = Witness(board) if kept else None
            self.floor[row] = _floor(board)
        self.over[rows] = self.dead[rows] = False
        self.cost[rows] = np.nan
        self._look(rows)

    def play(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Decide the node in hand of episodes that are not over; both (k,) int64.

        Returns:
            (k,) float64 rewards; ``over``, ``dead`` and ``cost`` tell what became of the episodes.
        """
        before = self._promise(rows)
        wrong = (actions < 0) | (actions >= self.width)
        wrong |= ~self.legal[rows, np.where(wrong, 0, actions)]
        good = rows[~wrong]
        self.over[rows[wrong]] = True
        if good.size:
            self._place(good, actions[~wrong])
            self.turn[good] += 1
            sizes = np.array([len(self.boards[row]) for row in good.tolist()])
            complete = self.turn[good] == sizes
            for row in good[complete].tolist():
                board = self.boards[row]
                self.cost[row] = board.reduced.cost(self.chosen[row, : len(board)])
                self.over[row] = True
            self._look(good[~complete])
        after = self._promise(rows)
        lost = wrong | self.dead[rows]
        return np.where(lost, WORST[self.reward], after) - before

    def _promise(self, rows: np.ndarray) -> np.ndarray:
        """Return what episodes were paid so far, (k,), if no one ended illegally.

        With ``reward="log"`` it is what a plan would be worth that costs as much as the bound of
        the decided part, or the reference if that is more; of complete plans it is their worth.
        """
        paid = np.zeros(len(rows))
        for at, row in enumerate(rows.tolist()):
            reference, cost = self.boards[row].reference, self.cost[row]
            if cost == cost:
                paid[at] = worth_of(cost, reference, self.reward)
            elif self.reward == "log":
                paid[at] = worth_of(max(self.floor[row], reference), reference, "log")
        return paid

    def plan(self, row: int) -> ShardingPlan:
        """Return the plan of an episode; nodes that are not decided take their leanest strategy."""
        board = self.boards[row]
        witness = self.witness[row]
        chosen = (board.lean if witness is None else witness.chosen).copy()
        turn = int(self.turn[row])
        chosen[:turn] = self.chosen[row, :turn]
        return board.problem.plan(board.reduced.lift(chosen))

    def greedy(self, rows: np.ndarray) -> np.ndarray:
        """Return the legal strategy that the advice rates best, (k,) int64."""
        score = self.rows[rows, :, ROWS.index(GUIDES[self.advice])]
        return np.where(self.legal[rows], score, np.inf).argmin(axis=1)

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
                self.room[group, usage.first : usage.last] -= usage.at_times(taken)
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

    def _describe(
        self, board: Board, node: int, rows: np.ndarray, own: np.ndarray, ahead: np.ndarray,
        legal: np.ndarray, share: np.ndarray, free: np.ndarray,
    ) -> None:  # fmt: skip
        """Write mask, rows and numbers of the node in hand."""
        size, at = own.shape[1], slice(board.offset[node], board.offset[node + 1])
        both = own + ahead
        mass = board.mass[at]
        features = np.zeros((len(rows), self.width, len(ROWS)), dtype=np.float32)
        mine = features[:, :size]
        mine[..., 0] = regret(own, board.unit)
        mine[..., 1] = regret(ahead, board.unit)
        mine[..., 2] = worst = regret(both, board.unit)
        if self.advice != "none":
            advice = advise(board, self.advice)
            led = own + advice.messages[at]
            mine[..., 3] = regret(led, board.unit)
            if self.advice == "prices":
                mine[..., 4] = regret(led + advice.prices[at], board.unit)
        mine[..., 5] = np.minimum(share, 1.0)
        mine[..., 6] = mass / max(mass.max(), 1.0)
        mine[..., 7] = np.where(legal, worst, np.inf) == np.where(legal, worst, np.inf).min(
            axis=1, keepdims=True
        )
        mine[..., 8] = legal
        mine[..., 7] *= mine[..., 8]
        self.rows[rows] = features
        self.legal[rows] = False
        self.legal[rows, :size] = legal
        floor = np.log(np.maximum(self.floor[rows], 1.0) / max(board.reference, 1)) / DEEPEST
        later = len(board.later[node])
        self.numbers[rows] = np.stack(
            np.broadcast_arrays(
                node / len(board),
                legal.mean(axis=1),
                np.clip(floor, -1.0, 1.0),
                np.log2(size) / 12,
                min(later / 16, 1.0),
                min((len(board.beside[node]) - later) / 16, 1.0),
                np.where(legal, worst, 0.0).max(axis=1),
                np.clip(free, 0.0, 1.0),
            ),
            axis=1,
        )


def regret(values: np.ndarray, unit: float) -> np.ndarray:
    """Return by how much values exceed the least of their row, as a logarithm in [0, 1]."""
    finite = np.isfinite(values)
    minimum = np.where(finite, values, np.inf).min(axis=-1, keepdims=True)
    more = np.where(finite, values - np.where(np.isfinite(minimum), minimum, 0.0), np.inf)
    return np.minimum(np.log1p(more / unit) / DEEPEST, 1.0)


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
            score = episode.rows[0, :, ROWS.index("mass")].astype(float)
            score += 0.1 * attempt / _TRIES * rng.random(len(score)) if attempt else 0.0
            episode.play(row, np.where(episode.legal, score, np.inf).argmin(axis=1))
        if not episode.dead[0]:
            return episode.chosen[0, : len(board)].copy()
    raise InfeasibleError(
        f"{board.problem.name}: no legal plan was found in {_TRIES} attempts; there may be none"
    )
