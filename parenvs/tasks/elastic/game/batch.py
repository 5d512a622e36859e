"""Vector environment of ``ElasticPlan-v0``: ``gym.make_vec("ElasticPlan-v0", ...)``."""

from __future__ import annotations

import copy as copying
from collections.abc import Sequence
from typing import Any

import numpy as np

from parenvs.envs.base import rendered
from parenvs.envs.batched import keep_blocks
from parenvs.envs.batches import Guest
from parenvs.envs.seeded import SeededBatch
from parenvs.tasks.elastic.game.play import Play
from parenvs.tasks.elastic.game.single import ElasticPlanEnv
from parenvs.tasks.elastic.library import MOST_PLANS
from parenvs.tasks.elastic.run import Run


class ElasticPlanVectorEnv(SeededBatch):
    """n episodes at once, each as in the single environment, to the last bit; see ``BatchedEnv``.

    Observations are ``plans`` (n, 64, 6), ``change`` (n, 64, 3) and ``numbers`` (n, 16) float32,
    masks (n, 64). Environment i has a generator of its own, seeded with ``seed + i``.

    ``copy=False`` hands out ``plans`` as a read-only view that holds until the next call. All
    other arrays are fresh.
    """

    single = ElasticPlanEnv
    own = ("instance", "problem")
    env: ElasticPlanEnv

    def _set_up(self) -> None:
        n = self.num_envs
        keep_blocks(4 * n * MOST_PLANS * 6)
        self._play_of = Play(n, self.env.home.tables)
        self._set_up_seeds()
        self._complete = np.zeros(n, dtype=np.bool_)
        self._next = np.arange(n)  # of the set, if ``order`` is sequential
        self._plans = np.zeros((n, MOST_PLANS, 6), dtype=np.float32)
        number, drawn = self.env.home.draw(np.random.default_rng(0))
        self._begin(self._rows, [number] * n, [drawn] * n)

    def _reset(
        self, who: Any, seed: int | Sequence[int | None] | None, options: dict[str, Any]
    ) -> None:
        if options:
            self.env._elsewhere(options)  # what is refused changes nothing
        self._reseed(who, seed)
        guests = {}
        for row in self._rows[who].tolist() if options else ():
            env = copying.copy(self.env)
            env._np_random = self._generator(row)
            guests[row] = Guest(env, *env.reset(options=options))
        for row in self._rows[who].tolist():
            self._guests.pop(row, None)
        self._guests.update(guests)
        self._restart(who)

    def _restart(self, who: Any) -> None:
        rows = self._rows[who]
        if self._guests:  # while a guest plays, nothing is drawn for its environment
            is_idle = np.array([r in self._guests and not self._guests[r].over for r in rows])
            self._play_of.rewind(rows[is_idle])
            self._over[rows[is_idle]] = False
            rows = rows[~is_idle]
            if not rows.size:
                return
        home, played = self.env.home, self._next[rows]
        drawn = [
            home.draw(self._generator(row), number)
            for row, number in zip(rows.tolist(), played.tolist(), strict=True)
        ]
        self._next[rows] += self.num_envs
        self._begin(rows, [number for number, _ in drawn], [numbers for _, numbers in drawn])

    def _reseeded(self, row: int) -> None:
        self._next[row] = row

    def _begin(self, rows: np.ndarray, problems: list[int], drawn: list[Any]) -> None:
        """Start the episodes of ``rows``."""
        self._play_of.start(rows, problems, drawn)
        self._plans[rows] = self._play_of.tables.plans[self._play_of.row[rows]]
        self._over[rows] = self._complete[rows] = False

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        play, over = self._play_of, self._ended()
        rewards, terminated = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        legal = play.legal(actions)
        rows = self._going_on(legal, rewards, terminated)
        if rows.size:
            rewards[rows], complete = play.step(rows, actions[rows])
            if complete.any():
                ended = rows[complete]
                terminated[ended] = self._over[ended] = self._complete[ended] = True
        if over.size:
            self._restart(over)
        return rewards, terminated

    def _masks(self) -> np.ndarray:
        masks = self._play_of.masks()
        if self._over.any():
            masks[self._over] = 1
        return masks

    def _outcomes(self, who: np.ndarray) -> dict[str, np.ndarray]:
        complete = self._complete[who]
        figures = {"samples": self._play_of.total[who], "share": self._play_of.shares(who)}
        return {key: np.where(complete, value, np.nan) for key, value in figures.items()}

    def _instances(self, who: np.ndarray) -> list[str]:
        return [self._attribute("instance", index) for index in who.tolist()]

    def _attribute(self, name: str, index: int) -> Any:
        problem = self._play_of.tables.problems[self._play_of.problem[index]]
        return problem.instance if name == "instance" else problem

    def _observation(self) -> dict[str, Any]:
        if self.copy:  # from the tables, which are small, and not from what was copied before
            plans = self._play_of.tables.plans.take(self._play_of.row, axis=0)
        else:
            plans = self._plans.view()
            plans.flags.writeable = False
        return {"plans": plans, **self._play_of.observation(self._rows)}

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        batched = {"plans": self._plans[who], **self._play_of.observation(who)}
        return [{key: value[k] for key, value in batched.items()} for k in range(len(who))]

    def _picture(self, mode: str, index: int) -> Any:
        return rendered(mode, self._plan_of(index))

    def _plan_of(self, index: int) -> Run:
        return self._play_of.run(index)
