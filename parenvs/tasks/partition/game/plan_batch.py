"""Vector environment of ``PartitionPlan-v0``: ``gym.make_vec("PartitionPlan-v0", ...)``."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenvs.envs.base import rendered
from parenvs.envs.seeded import SeededBatch
from parenvs.tasks.partition.game.plan import PartitionPlanEnv, undecided
from parenvs.tasks.partition.game.plan_episode import Episode
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.partition.problem import Partitioning


class PartitionPlanVectorEnv(SeededBatch):
    """n episodes at once, each as in the single environment, to the last bit; see ``BatchedEnv``.

    Observations are ``classes`` (n, 5, 13), ``choices`` (n, 2, 3) and ``plan`` (n, 10) float32,
    masks (n, 2). Environment i has its own generator, seeded with ``seed + i``, so problems equal
    those of ``SyncVectorEnv``. With ``order="sequential"`` environment i plays the problems i,
    i + n, and so on, of the set. Episodes of different graphs are played one after the other, so a
    step takes about as long as n steps of single environments, less what wrappers take. All arrays
    are fresh, whatever ``copy`` is.
    """

    single = PartitionPlanEnv
    own = ("instance", "problem", "episode")
    env: PartitionPlanEnv

    def _set_up(self) -> None:
        self._set_up_seeds()
        self._next = np.arange(self.num_envs)  # of the set, if ``order`` is sequential
        first = self.env.episode.outlook
        self._episodes = [Episode(first) for _ in range(self.num_envs)]
        self._seen_of: dict[str, np.ndarray] = {}
        self._write(self._rows)

    def problem(self, index: int) -> Partitioning:
        """Return the problem of environment ``index``."""
        return self._episodes[index].outlook.problem

    def _plan_of(self, index: int) -> PartitionPlan:
        return self.problem(index).plan(self._episodes[index].chosen())

    def _reseeded(self, row: int) -> None:
        self._next[row] = row

    def _lend(self, who: Any, other: Any) -> None:
        for row in self._rows[who].tolist():
            self._episodes[row] = Episode(other)
        self._begin(self._rows[who])

    def _restart(self, who: Any) -> None:
        fixed = self.env.fixed
        for row in self._rows[who].tolist():
            found = fixed or self.env.source.draw(self._generator(row), int(self._next[row]))
            self._episodes[row] = Episode(found)
        self._next[who] += self.num_envs
        self._begin(self._rows[who])

    def _begin(self, rows: np.ndarray) -> None:
        """Show the first observations of episodes that have just begun."""
        self._over[rows] = False
        self._write(rows)

    def _write(self, rows: np.ndarray) -> None:
        """Keep what environments see now."""
        for row in rows.tolist():
            for key, values in self._episodes[row].observation().items():
                if key not in self._seen_of:
                    shape = (self.num_envs, *values.shape)
                    self._seen_of[key] = np.zeros(shape, dtype=np.float32)
                self._seen_of[key][row] = values

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        over = self._ended()
        rewards, terminated = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        rows = np.flatnonzero(~self._over)
        for row, action in zip(rows.tolist(), actions[rows].tolist(), strict=True):
            rewards[row] = self._episodes[row].play(action)
            terminated[row] = self._episodes[row].over
        self._over |= terminated
        self._write(rows)
        if over.size:
            self._restart(over)
        return rewards, terminated

    def _masks(self) -> np.ndarray:
        return np.ones((self.num_envs, 2), dtype=np.int8)

    def _outcomes(self, who: np.ndarray) -> dict[str, np.ndarray]:
        found = [self._episodes[row].outcome for row in who.tolist()]
        names = dict.fromkeys(name for outcome in found for name in outcome)
        return {name: np.array([outcome.get(name, np.nan) for outcome in found]) for name in names}

    def _instances(self, who: np.ndarray) -> list[str]:
        return [self._episodes[row].outlook.name for row in who.tolist()]

    def _attribute(self, name: str, index: int) -> Any:
        episode = self._episodes[index]
        values = {"instance": episode.outlook.name, "problem": episode.outlook.problem}
        return values.get(name, episode)

    def _observation(self) -> dict[str, Any]:
        return {key: values.copy() for key, values in self._seen_of.items()}

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        return [{key: x[row].copy() for key, x in self._seen_of.items()} for row in who.tolist()]

    def _picture(self, mode: str, index: int) -> Any:
        report = self.problem(index).report(self._plan_of(index))
        return rendered(mode, report, undecided(self._episodes[index]))
