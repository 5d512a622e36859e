"""Witnesses: a legal plan for the rest of an episode is always at hand, so no turn is a dead end.

On a free board (``Board.is_free``) it is that every node stays at its floor, and nothing is kept.
On others a strategy is taken if the witness can be mended to hold it: neighbours that it forbids
change to something that goes with all around them, and the whole keeps the limit. What cannot be
mended so may still be completable in another way; deciding that is NP-hard.
"""

from __future__ import annotations

import numpy as np

from parenvs.tasks.sharding.turns.board import Board


class Witness:
    """A legal plan that agrees with all decided nodes.

    Attributes:
        chosen: (n,) strategies.
        spare: (T + 1,) what the plan leaves of the headroom.
        mended: strategy of the node in hand -> what the others change to for it.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.chosen = board.witness.copy()
        self.spare = board.room_of(self.chosen)
        self.mended: dict[int, dict[int, int]] = {}

    def look(self, node: int, costs: np.ndarray, legal: np.ndarray) -> None:
        """Find the strategies that the witness can be mended for.

        Args:
            node: the node in hand.
            costs: (s,) of strategies with all decided neighbours; inf if forbidden.
            legal: (k,) bool, strategies to look at; those that fail become false.
        """
        self.mended = {int(self.chosen[node]): {}}
        for strategy in np.flatnonzero(legal).tolist():
            if strategy not in self.mended:
                changes = self._mend(node, strategy, costs)
                if changes is None:
                    legal[strategy] = False
                else:
                    self.mended[strategy] = changes
        legal[self.chosen[node]] = True

    def take(self, node: int, strategy: int) -> None:
        """Mend the plan for a strategy of the node that was looked at."""
        for other, value in {node: strategy, **self.mended[strategy]}.items():
            self.board.spend(self.spare, other, int(self.chosen[other]), 1)
            self.board.spend(self.spare, other, value, -1)
            self.chosen[other] = value

    def _mend(self, node: int, strategy: int, costs: np.ndarray) -> dict[int, int] | None:
        """Return what neighbours change to so that a strategy can be taken; None if nothing."""
        board, changes = self.board, {node: strategy}
        spare = self.spare.copy()
        board.spend(spare, node, int(self.chosen[node]), 1)
        board.spend(spare, node, strategy, -1)
        for other in board.later[node]:
            if other.forbids and np.isinf(other.table[self.chosen[other.node], strategy]):
                value = self._instead(other.node, changes, costs, spare)
                if value < 0:
                    return None
                changes[other.node] = value
        del changes[node]
        return changes if spare.min() >= 0 else None

    def _instead(
        self, node: int, changes: dict[int, int], costs: np.ndarray, spare: np.ndarray
    ) -> int:
        """Choose the leanest strategy of a node that goes with all around it; -1 if none does."""
        board = self.board
        begin, end = board.offset[node], board.offset[node + 1]
        allowed = np.isfinite(costs[begin:end])
        first = min(changes)  # the node in hand; costs hold what is decided before it
        for other in board.beside[node]:
            if other.forbids and other.node >= first:
                value = changes.get(other.node, int(self.chosen[other.node]))
                allowed &= np.isfinite(other.table[value])
        board.spend(spare, node, int(self.chosen[node]), 1)
        order = np.argsort(board.mass[begin:end], kind="stable")
        for value in order[allowed[order]].tolist():
            board.spend(spare, node, value, -1)
            usage = board.usage[node]
            if usage is None or spare[usage.first : usage.last].min() >= 0:
                return int(value)
            board.spend(spare, node, value, 1)
        return -1
