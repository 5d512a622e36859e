"""Blocks of nodes that are solved anew, the rest of the plan as it is.

The block of a node is a part around it: breadth first, a node joins as long as the whole can be
solved by eliminating its nodes one by one (R. Dechter, Bucket elimination, 1999) with tables of at
most ``LARGEST_TABLE`` numbers. So its best strategies are found exactly; where they break the
limit, it is done again with memory at several prices, and the best legal result counts.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property

import numpy as np

from parenvs.tasks.sharding.turns.board import Board

LARGEST = 16
"""Most nodes of a block."""
LARGEST_TABLE = 1 << 12
"""Most numbers of a table of joint costs in a block of two nodes and more."""
_REFUSED = 12  # nodes in a row that do not join, after which none is tried
_PRICES = np.array([0.1, 1.0, 10.0])
"""Prices of all the memory that is free, in units of what could be gained without the limit."""


class Block:
    """The block of a node.

    Attributes:
        nodes: its nodes, the one that it is of first.
        order: (node, neighbours in the block that are left when it is eliminated), as places in
            ``nodes``.
        around: nodes whose strategies decide what the block can gain: it and its neighbours.
    """

    def __init__(self, board: Board, root: int) -> None:
        self.board = board
        self.nodes = [root]
        self.order: list[tuple[int, tuple[int, ...]]] = [(0, ())]
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
            for other in board.beside[node]:
                if other.node not in seen:
                    seen.add(other.node)
                    waiting.append(other.node)
        near = {other.node for node in self.nodes for other in board.beside[node]}
        self.around = np.array(sorted({*self.nodes, *near}), dtype=np.int64)

    def _elimination(self, nodes: list[int]) -> list[tuple[int, tuple[int, ...]]] | None:
        """Return an order of elimination, least tables first; None if a table is too large."""
        index = {node: at for at, node in enumerate(nodes)}
        beside = [
            {index[other.node] for other in self.board.beside[node] if other.node in index}
            for node in nodes
        ]
        size = np.log2(self.board.sizes[nodes]).tolist()
        table = [size[at] + sum(size[x] for x in others) for at, others in enumerate(beside)]
        left, order, max_log_size = set(index.values()), [], np.log2(LARGEST_TABLE) + 1e-9
        while left:
            at = min(left, key=table.__getitem__)
            if table[at] > max_log_size:
                return None
            others = beside[at]
            order.append((at, tuple(sorted(others))))
            left.discard(at)
            for one in others:
                beside[one] = (beside[one] | others) - {one, at}
                table[one] = size[one] + sum(size[x] for x in beside[one])
        return order

    @cached_property
    def tables(self) -> list[tuple[tuple[int, int], np.ndarray]]:
        """Places of two neighbours in the block, and the costs of their pairs."""
        index = {node: at for at, node in enumerate(self.nodes)}
        return [
            ((index[other.node], at), other.table)
            for at, node in enumerate(self.nodes)
            for other in self.board.beside[node]
            if index.get(other.node, at) < at
        ]

    def solve(self, chosen: np.ndarray, room: np.ndarray) -> np.ndarray | None:
        """Find better strategies for the block's nodes.

        Args:
            chosen: (n,) strategies of the plan.
            room: (T + 1,) what the plan leaves of the headroom.

        Returns:
            Strategies of ``nodes`` with which the plan is legal and costs less; None if none are
            found.
        """
        board, nodes = self.board, self.nodes
        free = room.copy()
        for node in nodes:
            board.spend(free, node, int(chosen[node]), 1)
        inside = set(nodes)
        own, shares = [], []
        for node in nodes:
            costs = board.costs[board.offset[node] : board.offset[node + 1]].copy()
            for other in board.beside[node]:
                if other.node not in inside:
                    costs += other.table[chosen[other.node]]
            share = self._share(node, free)
            costs[share > 1.0] = np.inf
            own.append(costs)
            shares.append(share)
        now = self._cost(own, chosen[nodes])
        best, lowest = self._best(own, shares, np.zeros(1))
        if not lowest[0] < now:
            return None
        if self._fits(best[0], free):
            return best[0]
        strategies, costs = self._best(own, shares, _PRICES * (now - lowest[0]))
        for at in np.argsort(costs, kind="stable").tolist():
            if costs[at] < now and self._fits(strategies[at], free):
                return strategies[at]
        return None

    def _share(self, node: int, free: np.ndarray) -> np.ndarray:
        """Return the largest share of what is free that each strategy takes, (k,)."""
        usage = self.board.usage[node]
        if usage is None:
            return np.zeros(int(self.board.sizes[node]))
        free_share = np.minimum.reduceat(free[usage.first : usage.last], usage.starts)[:, None]
        over = usage.amount > free_share
        return np.where(over, np.inf, usage.amount / np.maximum(free_share, 1)).max(axis=0)

    def _best(
        self, own: list[np.ndarray], shares: list[np.ndarray], prices: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best strategies, (p, m), at each of p prices of memory, and their costs."""
        total = [
            costs + np.where(prices[:, None] > 0, prices[:, None] * np.minimum(share, 1.0), 0.0)
            for costs, share in zip(own, shares, strict=True)
        ]
        factors: list[tuple[tuple[int, ...], np.ndarray]]
        factors = [((at,), costs) for at, costs in enumerate(total)]
        factors += [(scope, table[None]) for scope, table in self.tables]
        back = []
        for at, others in self.order:
            scope = (*others, at)
            whole = np.asarray(sum(_spread(x, scope) for x in factors if at in x[0]))
            factors = [x for x in factors if at not in x[0]]
            factors.append((others, whole.min(axis=-1)))
            back.append((at, others, whole.argmin(axis=-1)))
        strategies = np.zeros((len(prices), len(own)), dtype=np.int64)
        rows = np.arange(len(prices))
        for at, others, best in reversed(back):
            strategies[:, at] = best[(rows, *(strategies[:, x] for x in others))]
        return strategies, np.array([self._cost(own, one) for one in strategies])

    def _cost(self, own: list[np.ndarray], taken: np.ndarray) -> float:
        """Return what strategies of the block, (m,), cost within it and with its neighbours."""
        total = sum(float(costs[s]) for costs, s in zip(own, taken.tolist(), strict=True))
        return total + sum(float(table[taken[a], taken[b]]) for (a, b), table in self.tables)

    def _fits(self, taken: np.ndarray, free: np.ndarray) -> bool:
        left = free.copy()
        for node, strategy in zip(self.nodes, taken.tolist(), strict=True):
            self.board.spend(left, node, strategy, -1)
        return bool(left.min() >= 0)


def _spread(factor: tuple[tuple[int, ...], np.ndarray], scope: tuple[int, ...]) -> np.ndarray:
    """Return the table of a factor with the axes of a scope that holds its own, prices first."""
    places, table = factor
    axes = [0, *(1 + places.index(x) for x in scope if x in places)]
    index = (slice(None), *(slice(None) if x in places else None for x in scope))
    return table.transpose(axes)[index]


class Blocks:
    """The blocks of a board, by root, made when they are asked for."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._made: dict[int, Block] = {}

    def __getitem__(self, root: int) -> Block:
        """Return the block of a node."""
        if root not in self._made:
            self._made[root] = Block(self.board, root)
        return self._made[root]


def blocks_of(board: Board) -> Blocks:
    """Return the blocks of a board, which are made once."""
    if "blocks" not in board.cache:
        board.cache["blocks"] = Blocks(board)
    return board.cache["blocks"]
