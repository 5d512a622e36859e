"""Messages: what the nodes that follow cost at least with each strategy of a node.

They are those of tree-reweighted message passing (V. Kolmogorov, TPAMI 2006), memory apart. The
solver (``parenvs.agents.sharding``) has the same in compiled loops, with prices of memory, and its
bounds; here are some sweeps in NumPy, as an observation needs no more.
"""

from __future__ import annotations

import numpy as np

from parenvs.tasks.sharding.turns.board import Board

SWEEPS = 60
"""Sweeps of the messages."""


def messages_of(board: Board) -> np.ndarray:
    """Return the messages that each strategy gets from all neighbours that follow, (s,) float32.

    They are computed once for a board.
    """
    if "messages" not in board.cache:
        passing = _Messages(board)
        best, messages = -np.inf, passing.ahead()
        for _ in range(SWEEPS):
            bound = passing.sweep(board.costs)
            if bound > best:
                best, messages = bound, passing.ahead()
        board.cache["messages"] = messages.astype(np.float32)
    return board.cache["messages"]


def wanted_of(board: Board) -> np.ndarray:
    """Return what the messages lead to if memory has no limit, (n,) strategies."""
    if "wanted" not in board.cache:
        total, chosen = board.costs + messages_of(board), np.zeros(len(board), dtype=np.int64)
        for node in range(len(board)):
            chosen[node] = total[board.offset[node] : board.offset[node + 1]].argmin()
            for other in board.later[node]:
                at = slice(board.offset[other.node], board.offset[other.node + 1])
                total[at] += other.table[:, chosen[node]]
        board.cache["wanted"] = chosen
    return board.cache["wanted"]


class _Messages:
    """Messages into every node from each of its neighbours, (k,) each; 0 at first."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.into = [
            {other.node: np.zeros(int(size)) for other in others}
            for others, size in zip(board.beside, board.sizes.tolist(), strict=True)
        ]
        self.share = [
            1.0 / max(len(board.later[node]), len(others) - len(board.later[node]), 1)
            for node, others in enumerate(board.beside)
        ]

    def sweep(self, costs: np.ndarray) -> float:
        """Pass messages forward and back; return the bound of all costs."""
        count, bound = len(self.board), 0.0
        for node in range(count):
            self._pass(node, costs, forward=True)
        for node in reversed(range(count)):
            bound += self._pass(node, costs, forward=False)
        return bound

    def _pass(self, node: int, costs: np.ndarray, forward: bool) -> float:
        board, into = self.board, self.into[node]
        total = costs[board.offset[node] : board.offset[node + 1]].copy()
        for message in into.values():
            total += message
        bound = 0.0
        if not forward:
            minimum = float(total.min())
            bound, total = minimum, total - minimum
        allowed = np.isfinite(total)
        for other in board.beside[node]:
            if (other.node > node) == forward:
                received = np.where(allowed, into[other.node], 0.0)  # without inf - inf
                sent = (other.table + (self.share[node] * total - received)).min(axis=1)
                minimum = float(sent.min())
                self.into[other.node][node] = sent - minimum
                bound += 0.0 if forward else minimum
        return bound

    def ahead(self) -> np.ndarray:
        """Return the sums of messages from neighbours that follow, (s,)."""
        ahead = np.zeros(len(self.board.costs))
        for node, others in enumerate(self.board.later):
            at = slice(self.board.offset[node], self.board.offset[node + 1])
            for other in others:
                ahead[at] += self.into[node][other.node]
        return ahead
