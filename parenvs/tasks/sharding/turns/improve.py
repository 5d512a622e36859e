"""``Improve``: n episodes that begin with the greedy plan and solve blocks of it anew.

A move solves the block of a node (``parenvs.tasks.sharding.turns.blocks``) and takes what it finds
if it is cheaper. Blocks that found nothing are no choice until the plan changes: an episode ends
when no block is left, or after its moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.turns.blocks import LARGEST, Block, Blocks, blocks_of
from parenvs.tasks.sharding.turns.board import Board

BLOCK_COLUMNS = {
    "rule": "30 times what the nodes of the block save one by one within the limit, in sum, over "
    "the plan's cost",
    "single": "ln(1 + x) / 4 of what the node alone saves within the limit",
    "block": "the same of the sum over the block",
    "unlimited": "the same of that sum without the limit",
    "excess": "the same of what the block's nodes cost with their neighbours beyond their least",
    "size": "nodes of the block / 16",
    "degree": "log2(1 + neighbours of the node) / 12",
    "since": "turns since the block was solved over those of an episode; 1: never",
    "changed": "1 if its nodes or their neighbours have changed since",
    "gained": "ln(1 + x) / 4 of what it gained then",
    "free": "least share of the headroom that is free while the node uses memory",
}
"""What the observation says of the block of each node.

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
"""What it says of the turn."""
MOVES = 64
"""Most moves of an episode."""
_BLOCK_SHARP = 30.0
"""Factor of the rule's score, and what logarithms of amounts are divided by."""


class Improve:
    """The moves of n episodes at once; a single environment is the case n = 1.

    Attributes and arguments are as of ``Construct``. Rows and actions are of nodes, whose blocks
    they stand for; ``cost`` is that of the plan as it is now.
    """

    def __init__(self, count: int, width: int, columns: Sequence[str] = ()) -> None:
        self.width, self.looks = width, not set(BLOCK_AHEAD).isdisjoint(columns)
        self._columns = [list(BLOCK_COLUMNS).index(name) for name in columns]
        self.boards: list[Board] = [None] * count  # type: ignore[list-item]
        self.turn = np.zeros(count, dtype=np.int64)
        self.legal = np.zeros((count, width), dtype=np.bool_)
        self.rows = np.zeros((count, width, len(columns)), dtype=np.float32)
        self.contexts = np.zeros((count, len(BLOCK_CONTEXTS)), dtype=np.float32)
        self.over = np.zeros(count, dtype=np.bool_)
        self.cost = np.full(count, np.nan)
        self._states: list[_State] = [None] * count  # type: ignore[list-item]

    def put(self, row: int, board: Board) -> None:
        """Give an episode a board, before it starts."""
        self.boards[row] = board

    def start(self, rows: np.ndarray) -> None:
        """Start episodes, (k,) int64, with the greedy plans of their boards."""
        self.turn[rows] = 0
        self.over[rows] = False
        for row in rows.tolist():
            self._states[row] = _State(self.boards[row])
            self._look(row)

    def play(self, rows: np.ndarray, actions: np.ndarray) -> None:
        """Solve legal blocks of episodes that are not over; see ``Construct.play``."""
        for row, action in zip(rows.tolist(), actions.tolist(), strict=True):
            self._states[row].move(action, int(self.turn[row]))
            self.turn[row] += 1
            self._look(row)
            self.over[row] = self.turn[row] == MOVES or not self.legal[row].any()

    def plan(self, row: int) -> ShardingPlan:
        """Return the plan of an episode as it is now."""
        board = self.boards[row]
        return board.problem.plan(board.whole.lift(self._states[row].chosen))

    def _look(self, row: int) -> None:
        """Tell which blocks are legal, and describe all."""
        state, turn = self._states[row], int(self.turn[row])
        rows = state.rows(turn, self.looks)[:, self._columns]
        rows[~state.open] = 0.0
        self.rows[row], self.legal[row] = 0.0, False
        self.rows[row, : len(rows)], self.legal[row, : len(rows)] = rows, state.open
        self.contexts[row], self.cost[row] = state.contexts(turn), state.cost


class _State:
    """The plan of one episode, and what was tried."""

    def __init__(self, board: Board) -> None:
        self.board, self.blocks = board, blocks_of(board)
        self.parts = _Parts.of(board, self.blocks)
        self.chosen = board.first.copy()
        self.cost = board.reference
        self.room = board.room_of(self.chosen)
        self.open = np.ones(len(board), dtype=np.bool_)
        self.tried = np.full(len(board), -1)  # turn of the last try
        self.changed = np.ones(len(board), dtype=np.bool_)  # near the block, since then
        self.gain = np.zeros(len(board))  # of the last try
        self.last = 0.0
        self.costs: list[np.ndarray] = [np.zeros(0)] * len(board)  # of strategies, all else as is
        self.now = np.zeros(len(board))  # cost of each node with its neighbours
        self.could = np.zeros(len(board))  # what each node alone could save, memory apart
        self._measure(range(len(board)))

    def move(self, root: int, turn: int) -> None:
        """Solve a block, and take what is found."""
        block = self.blocks[root]
        strategies = block.solve(self.chosen, self.room)
        self.tried[root], self.changed[root] = turn, False
        before = self.cost
        if strategies is not None:
            moved = [n for n, s in zip(block.nodes, strategies.tolist(), strict=True)
                     if self.chosen[n] != s]  # fmt: skip
            for node, strategy in zip(block.nodes, strategies.tolist(), strict=True):
                self.board.spend(self.room, node, int(self.chosen[node]), 1)
                self.board.spend(self.room, node, strategy, -1)
            self.chosen[block.nodes] = strategies
            self.cost = self.board.reduced.cost(self.chosen)
            self.open[:] = True
            near = set(moved)
            for node in moved:
                near.update(other.node for other in self.board.beside[node])
            self._measure(sorted(near))
            touched = np.zeros(len(self.board), dtype=np.bool_)
            touched[moved] = True
            self.changed |= self.parts.around(touched)
        self.open[root] = False
        self.last = float(_depth((before - self.cost) / self.board.unit))
        self.gain[root] = self.last

    def _measure(self, nodes: range | list[int]) -> None:
        board = self.board
        for node in nodes:
            costs = board.costs[board.offset[node] : board.offset[node + 1]].copy()
            for other in board.beside[node]:
                costs += other.table[self.chosen[other.node]]
            self.costs[node] = costs
            self.now[node] = costs[self.chosen[node]]
            self.could[node] = self.now[node] - costs.min()

    def singles(self) -> np.ndarray:
        """Return what each node alone can save within the limit, (n,)."""
        board, singles = self.board, self.could.copy()
        for node in np.flatnonzero(singles > 0).tolist():
            usage = board.usage[node]
            if usage is not None:
                free = np.minimum.reduceat(self.room[usage.first : usage.last], usage.starts)
                free += usage.amount[:, self.chosen[node]]
                fits = (usage.amount <= free[:, None]).all(axis=0)
                singles[node] = self.now[node] - self.costs[node][fits].min()
        return singles

    def rows(self, turn: int, looks: bool) -> np.ndarray:
        """Return the description of all blocks, (n, len(BLOCK_COLUMNS))."""
        parts, unit = self.parts, self.board.unit
        ahead = np.zeros((len(BLOCK_AHEAD), len(self.board)))
        if looks:
            single = self.singles()
            block = parts.sums(single)
            amounts = [single, block, parts.sums(self.could)]
            amounts.append(parts.sums(np.maximum(self.now - parts.least, 0.0)))
            ahead[0] = _BLOCK_SHARP * block / max(self.cost, 1)
            ahead[1:] = _depth(np.stack(amounts) / unit)
        columns = [
            *ahead,
            parts.size,
            parts.degree,
            np.where(self.tried < 0, 1.0, np.minimum((turn - self.tried) / MOVES, 1.0)),
            self.changed,
            self.gain,
            parts.free(self.room),
        ]
        return np.stack(columns, axis=1).astype(np.float32)

    def contexts(self, turn: int) -> list[float]:
        """Return the context of the turn, (len(BLOCK_CONTEXTS),)."""
        board = self.board
        saved = np.log(max(board.reference, 1) / max(self.cost, 1)) / _DEPTH
        share = self.room[:-1] / np.maximum(board.headroom[:-1], 1)
        fullest = min(max(float(share.min(initial=1.0)), 0.0), 1.0)
        nodes = float(np.log2(len(board)) / 12)
        opened = float(self.open.mean())
        return [turn / MOVES, opened, min(float(saved), 1.0), self.last, fullest, nodes]


class _Parts:
    """Which nodes each block of a board holds, as arrays of places."""

    def __init__(self, board: Board, blocks: Blocks) -> None:
        every: list[Block] = [blocks[root] for root in range(len(board))]
        self.board = board
        self.inside, self._inside = _flat([np.array(block.nodes) for block in every])
        self.near, self._near = _flat([block.around for block in every])
        self.size = np.array([len(block.nodes) / LARGEST for block in every])
        self.degree = np.minimum([np.log2(1 + len(x)) / 12 for x in board.beside], 1.0)
        minimum = np.minimum.reduceat(board.costs, board.offset[:-1])
        for node, others in enumerate(board.beside):
            minimum[node] += sum(float(other.table.min()) for other in others)
        self.least = minimum

    @classmethod
    def of(cls, board: Board, blocks: Blocks) -> _Parts:
        """Return the parts of a board, made once."""
        if "parts" not in board.cache:
            board.cache["parts"] = cls(board, blocks)
        return board.cache["parts"]

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of values, (n,), over each block, (n,)."""
        return np.add.reduceat(values[self.inside], self._inside)

    def around(self, touched: np.ndarray) -> np.ndarray:
        """Return the blocks in or beside which a node, (n,) bool, is touched."""
        return np.logical_or.reduceat(touched[self.near], self._near)

    def free(self, room: np.ndarray) -> np.ndarray:
        """Return the least share of the headroom that is free while each node uses memory, (n,)."""
        share = room[:-1] / np.maximum(self.board.headroom[:-1], 1)
        free = np.ones(len(self.board))
        for node, usage in enumerate(self.board.usage):
            if usage is not None:
                free[node] = share[usage.first : usage.last].min()
        return np.clip(free, 0.0, 1.0)


def _flat(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return parts one after the other, and where each begins."""
    begin = np.cumsum([0, *(len(part) for part in parts[:-1])])
    return np.concatenate(parts), begin


def _depth(values: np.ndarray | float) -> np.ndarray:
    """Return ln(1 + x) / 4 of amounts x in units."""
    return np.asarray(np.log1p(np.maximum(values, 0.0)) / _DEPTH)
