"""Vector environment of ``IntraOpSharding-v0``: ``gym.make_vec("IntraOpSharding-v0", ...)``."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenvs.envs.base import regret_of, rendered
from parenvs.envs.seeded import SeededBatch
from parenvs.tasks.sharding.game.single import IntraOpShardingEnv, optimum, viewable, worth
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.turns.board import Board


class IntraOpShardingVectorEnv(SeededBatch):
    """n episodes at once, each as in the single environment, to the last bit; see ``SeededBatch``.

    Episodes that have the same node of the same problem in hand are played together, so that a
    batch of one problem is fast; ``form="improve"`` solves its blocks one by one. Drawing a problem
    takes as long as thousands of steps: give ``pool``.

    ``copy=False`` hands out ``actions`` as a read-only view that holds until the next call. All
    other arrays are fresh.
    """

    single = IntraOpShardingEnv
    own = ("instance", "problem", "board")
    env: IntraOpShardingEnv

    def _set_up(self) -> None:
        self._set_up_seeds()
        self._episodes = self.env.play_of(self.num_envs)
        for row in range(self.num_envs):
            self._episodes.put(row, self.env.board)
        self._episodes.start(self._rows)
        self._next = np.arange(self.num_envs)  # of the set, if ``order`` is sequential

    def problem(self, index: int) -> Sharding:
        """Return the problem of environment ``index``."""
        return self.board(index).problem

    def board(self, index: int) -> Board:
        """Return the board of environment ``index``."""
        return self._episodes.boards[index]

    def _plan_of(self, index: int) -> ShardingPlan:
        return self._episodes.plan(index)

    def _reseeded(self, row: int) -> None:
        self._next[row] = row

    def _lend(self, who: Any, other: Board) -> None:
        for row in self._rows[who].tolist():
            self._episodes.put(row, other)
        self._episodes.start(self._rows[who])

    def _restart(self, who: Any) -> None:
        for row in self._rows[who].tolist():
            board = self.env.next_board(self._generator(row), int(self._next[row]))
            self._episodes.put(row, board)
        self._next[who] += self.num_envs
        self._episodes.start(self._rows[who])

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        episodes, over = self._episodes, self._ended()
        rewards, terminated = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        rows = np.flatnonzero(~episodes.over)
        rewards[rows] = episodes.play(rows, actions[rows])
        terminated[rows] = episodes.over[rows]
        if over.size:
            self._restart(over)
        return rewards, terminated

    def _ended(self) -> np.ndarray:
        return np.flatnonzero(self._episodes.over)

    def _masks(self) -> np.ndarray:
        masks = self._episodes.legal.copy()
        masks[self._episodes.over] = True
        return masks.view(np.int8)

    def _outcomes(self, who: np.ndarray) -> dict[str, np.ndarray]:
        cost, boards = self._episodes.cost[who], [self.board(index) for index in who.tolist()]
        reference = [float(board.reference) for board in boards]
        best = np.array([optimum(board) or np.nan for board in boards])
        found = np.array([worth(*pair) for pair in zip(cost.tolist(), boards, strict=True)])
        return {
            "cost": cost,
            "reference": np.where(np.isnan(cost), np.nan, reference),
            "optimum": best,
            "regret": regret_of(found, best),
        }

    def _instances(self, who: np.ndarray) -> list[str]:
        return [self.board(index).instance for index in who.tolist()]

    def _attribute(self, name: str, index: int) -> Any:
        board = self.board(index)
        return board if name == "board" else getattr(board, name)

    def _observation(self) -> dict[str, Any]:
        actions = self._episodes.rows
        if self.copy:
            actions = actions.copy()
        else:
            actions = actions.view()
            actions.flags.writeable = False
        return {"actions": actions, "numbers": self._episodes.numbers.copy()}

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        actions, numbers = self._episodes.rows[who], self._episodes.numbers[who]
        return [{"actions": actions[k], "numbers": numbers[k]} for k in range(len(who))]

    def _picture(self, mode: str, index: int) -> Any:
        return rendered(mode, viewable(self._episodes, index))
