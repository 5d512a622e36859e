"""Many ``PipelinePlan-v0`` at once: ``gym.make_vec("PipelinePlan-v0", num_envs=64)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenvs.envs.base import pipeline_so_far, rendered
from parenvs.envs.batched import EVERY, NOBODY, BatchedEnv, keep_blocks, without
from parenvs.envs.pipeline_plan import PipelinePlanEnv
from parenvs.envs.pipeline_plan_problems import PlanProblems
from parenvs.pipeline.points import POINTS, STAGES, UNITS
from parenvs.plan import ILLEGAL, PipelinePlan

ACTIONS = POINTS + UNITS


class PipelinePlanVectorEnv(BatchedEnv):
    """n episodes at once, each as in the single environment, to the last bit; see ``BatchedEnv``.

    Observations are ``chain`` (n, 4, 128), ``topology`` (n, 64, 64), ``numbers`` (n, 8) and
    ``plan`` (n, 2, 7) float32, ``step`` (n,) int64, masks (n, 192). Drawn problems are those of
    ``SyncVectorEnv`` as well: environment i has a generator of its own, seeded with ``seed + i``.

    With a fixed instance all look things up in the same tables. Drawing a problem takes as long as
    hundreds of steps, so that then ``repeat`` matters more than anything else.

    ``copy=False`` hands out ``chain``, ``topology`` and ``numbers`` as read-only views that hold
    until the next call; of a problem that all share, of one row. All else is fresh.

    Attributes:
        problems: the problem of each environment.
    """

    single = PipelinePlanEnv
    env: PipelinePlanEnv

    def _set_up(self) -> None:
        n = self.num_envs
        keep_blocks(16 * n * UNITS * UNITS)
        self.problems = PlanProblems(self.env, n)
        # Row k is the start of stage k in every environment.
        self._points, self._units = np.zeros((2, STAGES, n), dtype=np.int64)
        self._plan = np.empty((n, 2, STAGES - 1), dtype=np.float32)
        self._made = np.empty(n, dtype=np.int64)
        # The last action is what stands for all that are none.
        self._legal = np.zeros((n, ACTIONS + 1), dtype=np.bool_)
        self._row = np.arange(n) * (ACTIONS + 1)
        self._over = NOBODY  # environments whose episode has ended
        # Choices that all have made; None if they differ or an episode is over.
        self._common: int | None = None
        self._begin(EVERY)
        self._look()

    def plan(self, index: int) -> PipelinePlan:
        """The plan that environment ``index`` has built so far (the rest is its last stage)."""
        problem, cuts = self.problems.of[index], slice(1, 1 + int(self._made[index]) // 2)
        pivots = problem.pivots[self._points[cuts, index]]
        devices = problem.devices[self._units[cuts, index]]
        return problem.problem.plan(pivots, devices)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each environment, as ``SyncVectorEnv`` gives them."""
        return tuple(map(self.problems.generator, range(self.num_envs)))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each generator."""
        return tuple(map(self.problems.seed_of, range(self.num_envs)))

    def _picture(self, mode: str, index: int) -> Any:
        return rendered(mode, pipeline_so_far(self.plan(index), self.problems.of[index].problem))

    def _reset(
        self, who: Any, seed: int | Sequence[int | None] | None, options: dict[str, Any]
    ) -> None:
        self.problems.reset(who, seed, options)
        self._begin(who)

    def _restart(self, who: Any) -> None:
        self.problems.advance(who)
        self._begin(who)

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards, terminated = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        # Negative numbers are large ones without a sign; what is no action becomes 192.
        asked = np.minimum(actions.view(np.uint64), np.uint64(ACTIONS)).view(np.int64)
        legal = self._legal.take(self._row + asked)
        if self._common is not None and legal.all():
            ended = self._choose(self._common % 2, self._common // 2, EVERY, asked, rewards)
            self._over, self._common = ended, None if ended.size else self._common + 1
        elif self._over.size == self.num_envs:
            ended = NOBODY
            self._restart(EVERY)
        else:
            ended = self._step_apart(asked, legal, rewards)
        terminated[ended] = True
        return rewards, terminated

    def _ended(self) -> np.ndarray:
        return self._over

    def _masks(self) -> np.ndarray:
        return self._legal[:, :ACTIONS].copy().view(np.int8)

    def _infos(self) -> dict[str, Any]:
        self._look()  # once all have moved or started anew
        return super()._infos()

    def _begin(self, who: Any) -> None:
        """Nothing is chosen in the episodes of ``who``."""
        self._plan[who] = -1.0
        self._made[who] = 0
        if who is EVERY:
            self._over, self._common = NOBODY, 0
        else:
            self._over = without(self._over, who, self.num_envs)
            self._compare()

    def _compare(self) -> None:
        """See whether all have made the same number of choices."""
        made = int(self._made[0])
        alike = not self._over.size and bool((self._made == made).all())
        self._common = made if alike else None

    def _step_apart(
        self, actions: np.ndarray, legal: np.ndarray, rewards: np.ndarray
    ) -> np.ndarray:
        """A step of environments that differ, or of which some act illegally; those that end."""
        over = self._over
        legal[over] = True  # what is asked of them does not count
        ends = [np.flatnonzero(~legal)]
        rewards[ends[0]] = ILLEGAL
        legal[over] = False
        turns = self._made % 2
        for turn in (0, 1):
            who = np.flatnonzero(legal & (turns == turn))
            if who.size:
                stages = self._made[who] // 2
                ends.append(self._choose(turn, stages, who, actions[who], rewards))
        ended = np.concatenate(ends)
        self._over = np.concatenate([over, ended])
        if over.size:
            self._restart(over)
        else:
            self._compare()
        return ended

    def _choose(
        self, turn: int, stage: Any, who: Any, actions: np.ndarray, rewards: np.ndarray
    ) -> np.ndarray:
        """Legal choices, (k,) int64, of the points (turn 0) or the units (1) behind a stage.

        Whoever is ``EVERY`` has one stage, others, (k,) int64, one each. Rewards of episodes that
        end are written into ``rewards``, (n,) float64, and their environments are returned.
        """
        self._made[who] += 1
        if not turn:
            self._points[stage + 1, who] = actions
            self._plan[who, 0, stage] = actions * (1 / POINTS)
            return NOBODY
        units = actions - POINTS
        self._units[stage + 1, who] = units
        self._plan[who, 1, stage] = units * (1 / UNITS)
        ended = (self.problems.stages[who] == stage + 2).nonzero()[0]
        if not ended.size:
            return NOBODY
        rows = ended if who is EVERY else who[ended]
        ending = EVERY if len(rows) == self.num_envs else rows
        cuts, starts = self._points[1:, ending].T, self._units[1:, ending].T
        rewards[rows] = self.problems.dynamics.values(cuts, starts, rows)
        return rows

    def _look(self) -> None:
        """Find the legal actions of all."""
        if self._common is not None:
            self._look_at(self._common % 2, self._common // 2, EVERY)
            return
        if self._over.size == self.num_envs:
            self._legal[:, :ACTIONS] = True
            return
        turns = self._made % 2
        turns[self._over] = -1
        for turn in (0, 1):
            who = np.flatnonzero(turns == turn)
            if who.size:
                self._look_at(turn, self._made[who] // 2, who)
        self._legal[self._over, :ACTIONS] = True

    def _look_at(self, turn: int, stage: Any, who: Any) -> None:
        """Find the legal actions where it is the points' or the units' turn; see ``_choose``."""
        dynamics, legal = self.problems.dynamics, self._legal
        rows = None if who is EVERY else who
        at = stage, self._points[stage, who], self._units[stage, who]
        if turn:
            end = self._points[stage + 1, who]
            legal[who, :POINTS] = False
            legal[who, POINTS:ACTIONS] = dynamics.legal_units(*at, end, rows)
        else:
            legal[who, :POINTS] = dynamics.legal_points(*at, rows)
            legal[who, POINTS:ACTIONS] = False

    def _observation(self) -> dict[str, Any]:
        seen = self.problems.observed(self.copy)
        return {**seen, "plan": self._plan.copy(), "step": self._made.copy()}

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        seen = self.problems.observed_by(who)
        seen.update(plan=self._plan[who], step=self._made[who])
        return [{key: value[k] for key, value in seen.items()} for k in range(len(who))]
