"""Advice for the turns of an episode: what nodes that follow cost, and what memory costs.

Messages of tree-reweighted message passing (V. Kolmogorov, TPAMI 2006) tell a node what the part of
the problem that is not decided costs at least with each of its strategies; the Lagrangian of the
limit gives each time a price. The solver (``parenvs.agents.sharding``) has the same in compiled
loops, and its bounds; here are a few hundred sweeps in NumPy, as an observation needs no more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parenvs.tasks.sharding.turns.board import Board

LEVELS = ("none", "messages", "prices")
"""Levels of advice."""
SWEEPS = {"messages": 60, "prices": 400}
"""Sweeps of each level."""


class Advice(NamedTuple):
    """What strategies are said to cost beyond the decided part.

    Attributes:
        messages: (s,) with all neighbours that follow.
        prices: (s,) for memory.
        bound: lower bound of the cost of every legal plan.
    """

    messages: np.ndarray
    prices: np.ndarray
    bound: float


def advise(board: Board, level: str) -> Advice:
    """Return the advice of a level, computed once for a board."""
    if level not in board.cache:
        board.cache[level] = _advice(board, SWEEPS[level], level == "prices")
    return board.cache[level]


def _advice(board: Board, sweeps: int, priced: bool) -> Advice:
    """Sweep, and move the prices along what the decoded choice uses beyond the limit."""
    passing = _Messages(board)
    price = best_price = np.zeros(board.times)
    step, momentum = np.zeros(board.times), 0.5
    best, best_messages, scale, stale = -np.inf, passing.ahead(), 1.0, 0
    for _ in range(sweeps):
        costs = board.costs + _memory_costs(board, price)
        bound, chosen = passing.sweep(costs)
        bound -= float(price @ board.headroom[:-1])
        if bound > best:
            best, best_price, best_messages, stale = bound, price, passing.ahead(), 0
        else:
            stale += 1
        if stale > 25:
            scale, stale = 0.6 * scale, 0
        if not priced or not board.times:
            continue
        excess = -board.headroom[:-1].astype(float)
        for node, usage in enumerate(board.usage):
            if usage is not None:
                excess[usage.first : usage.last] += usage.at_times(chosen[node : node + 1])[0]
        excess[(price <= 0) & (excess < 0)] = 0.0
        length = float(excess @ excess)
        if length:
            top = max(float(board.reference - board.reduced.constant), best)
            target = best + 0.3 * (min(top, best + 0.05 * abs(best) + 1.0) - best)
            step = (
                momentum * step + scale * max(target - bound, 1e-6 * abs(bound)) / length * excess
            )
            price = np.maximum(price + step, 0.0)
    return Advice(best_messages, _memory_costs(board, best_price), best + board.reduced.constant)


def _memory_costs(board: Board, price: np.ndarray) -> np.ndarray:
    """Return what the usage of each strategy costs at the prices of the times, (s,)."""
    costs = np.zeros(len(board.costs))
    sums = np.concatenate([[0.0], np.cumsum(price)])
    for node, usage in enumerate(board.usage):
        if usage is not None:
            at = usage.first + usage.starts
            each = sums[at + usage.lengths] - sums[at]
            costs[board.offset[node] : board.offset[node + 1]] = each @ usage.amount
    return costs


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

    def sweep(self, costs: np.ndarray) -> tuple[float, np.ndarray]:
        """Pass messages forward and back; return the bound, and (n,) the choice they lead to."""
        count, bound = len(self.board), 0.0
        for node in range(count):
            self._pass(node, costs, forward=True)
        for node in reversed(range(count)):
            bound += self._pass(node, costs, forward=False)
        return bound, self._decoded(costs)

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

    def _decoded(self, costs: np.ndarray) -> np.ndarray:
        board = self.board
        chosen = np.zeros(len(board), dtype=np.int64)
        for node in range(len(board)):
            total = costs[board.offset[node] : board.offset[node + 1]].copy()
            for other in board.beside[node]:
                if other.node < node:
                    total += other.table[chosen[other.node]]
                else:
                    total += self.into[node][other.node]
            chosen[node] = int(total.argmin())
        return chosen

    def ahead(self) -> np.ndarray:
        """Return the sums of messages from neighbours that follow, (s,)."""
        ahead = np.zeros(len(self.board.costs))
        for node, others in enumerate(self.board.later):
            at = slice(self.board.offset[node], self.board.offset[node + 1])
            for other in others:
                ahead[at] += self.into[node][other.node]
        return ahead
