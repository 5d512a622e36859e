"""Vector environments of ``OperatorPartition-v0`` and ``DataParallel-v0``."""

from __future__ import annotations

import copy as copying
from typing import Any, ClassVar

import numpy as np

from parenvs.core.plan import ILLEGAL
from parenvs.envs.batched import EVERY, NOBODY, BatchedEnv, without
from parenvs.tasks.partition.game.single import DataParallelEnv, OperatorPartitionEnv, PartitionEnv
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.partition.space import OPEN
from parenvs.tasks.partition.transitions import transitions_of

MASKS = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.int8)
"""Legal actions if the class at stake is replicated (row 0), partitioned (1), or open (-1)."""
FORBIDDEN = np.array([1, 0, 2])
"""The illegal action in these cases; 2, which is no action, if the class is open."""


class PartitionVectorEnv(BatchedEnv):
    """n episodes at once, each as in the single environment, to the last bit; see ``BatchedEnv``.

    ``copy=False`` hands out ``decisions`` as a read-only view that holds until the next call.
    """

    single: ClassVar[type[PartitionEnv]]
    env: PartitionEnv

    def _set_up(self) -> None:
        n, self.space = self.num_envs, self.env.space
        self.transitions = transitions_of(self.space)
        # With linkage no action contradicts a decision, as only open classes are asked about.
        self._strict = not self.space.linkage
        self._hints = self._strict and self.env.masked
        self._decisions = np.tile(self.transitions.first_decisions, (n, 1))
        self._known = np.tile(self.transitions.first_known, (n, 1))
        self._row = np.arange(n) * self._known.shape[1]
        self._position = np.zeros(n, dtype=np.int64)
        self._stake = np.zeros(n, dtype=np.int64)  # decision known of the class at stake, or OPEN
        self._limited = self.env.problem.step.limit is not None
        self._earned = np.zeros(n)  # returns so far, with a limit of memory
        self._over = NOBODY  # environments whose episode has ended
        # Constant arrays: making them in every step, or using numbers instead, takes longer.
        self._free = np.ones((n, 2), dtype=np.int8)
        self._one = np.ones(n, dtype=np.int64)
        self._other_bits = ~self._one  # bits that are 0 in every legal action
        self._start(EVERY)

    def _plan_of(self, index: int) -> PartitionPlan:
        return self.fork(index).plan()

    def _picture(self, mode: str, index: int) -> Any:
        return self.fork(index).render()

    def fork(self, index: int) -> PartitionEnv:
        """Return a single environment in the state of environment ``index``.

        It shares no state with this vector environment.
        """
        env = copying.copy(self.env)
        env._decisions = self._decisions[index].copy()
        env._known = self._known[index, : len(self.space.classes)].tolist()
        env._position, env._earned = int(self._position[index]), float(self._earned[index])
        env._over = bool(np.isin(index % self.num_envs, self._over))
        return env

    def _restart(self, who: Any) -> None:
        self._start(who)
        self._over = without(self._over, who, self.num_envs)

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        transitions, over = self.transitions, self._over
        wrong = self._wrong(actions)
        codes = self._position + self._position
        codes += actions
        self._position += self._one
        if wrong.size:
            codes[wrong] = len(transitions.paid) - 1
        if over.size:
            codes[over] = len(transitions.paid) - 1
        rewards = transitions.paid.take(codes)
        if self.space.pays_once:
            rewards = np.where(self._stake == OPEN, rewards, 0.0)
        elif transitions.varies is not None:
            rows = transitions.varies.take(codes).nonzero()[0]
            if rows.size:
                rewards[rows] = transitions.varying(self._known[rows], codes[rows])
        transitions.decisions.write(self._decisions, codes)
        transitions.known.write(self._known, codes)
        if wrong.size:
            rewards[wrong] = ILLEGAL
            self._position[wrong] -= 1
        if over.size:
            rewards[over] = 0.0
            self._start(over)
        self._look()
        terminated = transitions.last.take(self._position)
        if wrong.size:
            terminated[wrong] = True
            terminated[over] = False  # their actions were ignored
        self._over = terminated.nonzero()[0]
        if self._limited:
            complete = self._over[self._position[self._over] == len(self.space.questions)]
            if complete.size:
                known = self._known[complete, : len(self.space.classes)]
                over_limit = complete[self.env._figures(known)["excess_bytes"] > 0]
                rewards[over_limit] = ILLEGAL - self._earned[over_limit]
            self._earned += rewards
        return rewards, terminated

    def _ended(self) -> np.ndarray:
        return self._over

    def _outcomes(self, who: np.ndarray) -> dict[str, np.ndarray]:
        complete = self._position[who] == len(self.space.questions)
        known = self._known[who[complete], : len(self.space.classes)]
        figures = {}
        for name, values in self.env._figures(known).items() if len(known) else ():
            figures[name] = np.full(len(who), np.nan)
            figures[name][complete] = values
        return figures

    def _wrong(self, actions: np.ndarray) -> np.ndarray:
        """Return the indices of environments whose action is illegal, (k,) int64."""
        wrong = (actions & self._other_bits).nonzero()[0]
        if self._strict:
            clash = actions == FORBIDDEN.take(self._stake)
            if wrong.size:
                clash[wrong] = True
            wrong = clash.nonzero()[0]
        return wrong

    def _look(self) -> None:
        """Look up the decision known of the class at stake; with linkage, skip decided classes."""
        if self._strict:
            column = self.transitions.column.take(self._position)
            self._stake = self._known.take(self._row + column).astype(np.int64)  # an index
            return
        stake = self._known.take(self._row + self._position)
        known = (~stake).nonzero()[0]  # ~OPEN == 0
        if known.size:  # all earlier classes are decided, so the next is the first open one
            self._position[known] = (self._known[known] == OPEN).argmax(axis=1)

    def _start(self, who: Any) -> None:
        """Start the episodes of ``who`` with nothing decided."""
        self._decisions[who] = self.transitions.first_decisions
        self._known[who] = self.transitions.first_known
        self._position[who] = 0
        self._earned[who] = 0.0
        if self._strict:
            self._stake[who] = self.transitions.first_known[self.transitions.column[0]]

    def _observation(self) -> dict[str, Any]:
        if self.copy:
            decisions = self._decisions.copy()
        else:
            decisions = self._decisions.view()
            decisions.flags.writeable = False
        return {
            "decisions": decisions,
            "position": self._position.copy(),
            "stake": self.space.stakes.take(self._position, axis=0),
        }

    def _masks(self) -> np.ndarray:
        if not self._hints:
            return self._free.copy()
        masks = MASKS.take(self._stake, axis=0)
        if self._over.size:
            masks[self._over] = 1
        return masks

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        positions = self._position[who]
        rows = zip(self._decisions[who], positions, self.space.stakes[positions], strict=True)
        return [
            {"decisions": decisions, "position": position, "stake": stake}
            for decisions, position, stake in rows
        ]


class OperatorPartitionVectorEnv(PartitionVectorEnv):
    """n episodes of ``OperatorPartition-v0``; see ``OperatorPartitionEnv`` for the task."""

    single = OperatorPartitionEnv


class DataParallelVectorEnv(PartitionVectorEnv):
    """n episodes of ``DataParallel-v0``; see ``DataParallelEnv`` for the task."""

    single = DataParallelEnv
