"""``Improve``: n episodes that begin with the greedy plan and solve blocks of it anew.

A move solves the block of a node (``parenvs.tasks.sharding.turns.blocks``) and takes what it finds
if it is cheaper. Blocks that found nothing are no choice until the plan changes: an episode ends
when no block is left, or after its moves.
"""

from __future__ import annotations

import numpy as np

from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.turns.blocks import LARGEST, Block, Blocks, blocks_of
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.construct import DEEPEST
from parenvs.tasks.sharding.turns.worth import WORST, worth_of

ROWS = ("node", "block", "excess", "size", "degree", "since", "changed", "gained", "free", "legal")
"""What the observation says of the block of each node."""
NUMBERS = ("placed", "legal", "saved", "last", "node", "block")
"""What it says of the episode."""
MOVES = 64
"""Default moves of an episode."""


class Improve:
    """The moves of n episodes at once; a single environment is the case n = 1.

    Attributes and arguments are as of ``Construct``, but for ``moves``, most moves of an episode.
    Rows and actions are of nodes, whose blocks they stand for.
    """

    def __init__(self, count: int, width: int, reward: str = "log", moves: int = MOVES) -> None:
        self.width, self.reward, self.moves = width, reward, moves
        self.boards: list[Board] = [None] * count  # type: ignore[list-item]
        self.turn = np.zeros(count, dtype=np.int64)
        self.legal = np.zeros((count, width), dtype=np.bool_)
        self.rows = np.zeros((count, width, len(ROWS)), dtype=np.float32)
        self.numbers = np.zeros((count, len(NUMBERS)), dtype=np.float32)
        self.over, self.dead = np.zeros((2, count), dtype=np.bool_)
        self.cost = np.full(count, np.nan)
        self._states: list[_State] = [None] * count  # type: ignore[list-item]

    def put(self, row: int, board: Board) -> None:
        """Give an episode a board, before it starts."""
        self.boards[row] = board

    def start(self, rows: np.ndarray) -> None:
        """Start episodes, (k,) int64, with the greedy plans of their boards."""
        self.turn[rows] = 0
        self.over[rows] = False
        self.cost[rows] = np.nan
        for row in rows.tolist():
            self._states[row] = _State(self.boards[row])
            self._look(row)

    def play(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Solve a block of episodes that are not over; see ``Construct.play``."""
        rewards = np.zeros(len(rows))
        for at, (row, action) in enumerate(zip(rows.tolist(), actions.tolist(), strict=True)):
            state, reference = self._states[row], self.boards[row].reference
            before = worth_of(state.cost, reference, self.reward)
            if not (0 <= action < self.width and self.legal[row, action]):
                self.over[row] = True
                rewards[at] = WORST[self.reward] - (before - worth_of(1, 1, self.reward))
                continue
            state.move(action, int(self.turn[row]))
            self.turn[row] += 1
            rewards[at] = worth_of(state.cost, reference, self.reward) - before
            self._look(row)
            if self.turn[row] == self.moves or not self.legal[row].any():
                self.over[row], self.cost[row] = True, state.cost
        return rewards

    def plan(self, row: int) -> ShardingPlan:
        """Return the plan of an episode as it is now."""
        board = self.boards[row]
        return board.problem.plan(board.reduced.lift(self._states[row].chosen))

    def greedy(self, rows: np.ndarray) -> np.ndarray:
        """Return the legal block whose nodes could save most one by one, (k,) int64."""
        score = self.rows[rows, :, ROWS.index("block")]
        return np.where(self.legal[rows], score, -np.inf).argmax(axis=1)

    def _look(self, row: int) -> None:
        """Tell which blocks are legal, and describe all."""
        state, count = self._states[row], len(self.boards[row])
        features = np.zeros((self.width, len(ROWS)), dtype=np.float32)
        features[:count] = state.rows(int(self.turn[row]), self.moves)
        self.rows[row] = features
        self.legal[row] = features[:, -1] > 0
        self.numbers[row] = state.numbers(int(self.turn[row]), self.moves, features[:count])


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
            self.now[node] = costs[self.chosen[node]]
            self.could[node] = self.now[node] - costs.min()

    def rows(self, turn: int, moves: int) -> np.ndarray:
        """Return the description of all blocks, (n, len(ROWS))."""
        parts, unit = self.parts, self.board.unit
        since = np.where(self.tried < 0, 1.0, np.minimum((turn - self.tried) / moves, 1.0))
        free = parts.free(self.room)
        columns = [
            _depth(self.could / unit),
            _depth(parts.sums(self.could) / unit),
            _depth(parts.sums(np.maximum(self.now - parts.least, 0.0)) / unit),
            parts.size,
            parts.degree,
            since,
            self.changed,
            self.gain,
            free,
            self.open,
        ]
        return np.stack(columns, axis=1).astype(np.float32)

    def numbers(self, turn: int, moves: int, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of the episode, (len(NUMBERS),)."""
        saved = np.log(max(self.board.reference, 1) / max(self.cost, 1)) / DEEPEST
        maximum = rows[:, :2].max(axis=0)
        whole = [turn / moves, self.open.mean(), min(saved, 1.0), self.last, *maximum]
        return np.array(whole, dtype=np.float32)


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
    """Return amounts in units as logarithms in [0, 1]."""
    return np.minimum(np.log1p(np.maximum(values, 0.0)) / DEEPEST, 1.0)
