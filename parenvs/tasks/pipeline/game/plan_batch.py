"""Vector environment of ``PipelinePlan-v0``: ``gym.make_vec("PipelinePlan-v0", num_envs=64)``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from parenvs.core.plan import ILLEGAL
from parenvs.envs.base import pipeline_so_far, regret_of, rendered
from parenvs.envs.batched import EVERY, NOBODY, BatchedEnv, keep_blocks, without
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.drawn.pooled import PooledProblems
from parenvs.tasks.pipeline.drawn.sequence import VERSION
from parenvs.tasks.pipeline.game.plan import PipelinePlanEnv
from parenvs.tasks.pipeline.game.plan_problems import PlanProblems
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS

ACTIONS = POINTS + UNITS
"""Number of actions; points come first."""


class PipelinePlanVectorEnv(BatchedEnv):
    """n episodes at once, each as in the single environment, to the last bit; see ``BatchedEnv``.

    Observations are ``chain`` (n, 4, 128), ``topology`` (n, 64, 64), ``numbers`` (n, 8) and
    ``plan`` (n, 2, 7) float32, ``step`` (n,) int64, masks (n, 192). Drawn problems equal those of
    ``SyncVectorEnv``: environment i has a generator of its own, seeded with ``seed + i``.

    With a fixed instance all environments share look-up tables. Drawing a problem takes as long as
    hundreds of steps, so the speed with drawn problems depends most on ``repeat``.

    ``copy=False`` hands out ``chain``, ``topology`` and ``numbers`` as read-only views that hold
    until the next call; if all environments share a problem, the views repeat one row. All other
    arrays are fresh.

    With ``draw=2`` problems are numbered, and all environments look them up in one pool. Each is
    made when it is first drawn; a step that only looks up takes no longer than with a fixed
    problem, see ``benchmarks/results/drawing.md``.

    Args:
        num_envs: n.
        *args: arguments of ``BatchedEnv``.
        pool: with ``draw=2`` a folder in which the first problems lie, 1 to 2 GB that are mapped
            into memory; they are written once, which takes a minute. None keeps all in memory.
        refill: with ``draw=2`` whether another process makes the problems that come next; they are
            the same with and without.
        **kwargs: arguments of ``BatchedEnv`` and of the single environment.

    Attributes:
        problems: the problem of each environment.
    """

    single = PipelinePlanEnv
    env: PipelinePlanEnv

    def __init__(
        self,
        num_envs: int = 1,
        *args: Any,
        pool: str | os.PathLike[str] | None = None,
        refill: bool = False,
        **kwargs: Any,
    ) -> None:
        """Make the environments; see the class."""
        self.pool_folder, self.refill = pool, refill
        if (pool is not None or refill) and kwargs.get("draw", 1) != VERSION:
            raise ParenvsError(f"pool, refill: need draw={VERSION}, whose problems are numbered")
        super().__init__(num_envs, *args, **kwargs)

    def _set_up(self) -> None:
        n = self.num_envs
        keep_blocks(16 * n * UNITS * UNITS)
        if self.env.draw == VERSION:
            self.problems: PlanProblems = PooledProblems(self.env, n, self.pool_folder, self.refill)
        else:
            self.problems = PlanProblems(self.env, n)
        # Row k is the start of stage k in every environment.
        self._points, self._units = np.zeros((2, STAGES, n), dtype=np.int64)
        self._plan = np.empty((n, 2, STAGES - 1), dtype=np.float32)
        self._made = np.empty(n, dtype=np.int64)
        self._figures = np.full((2, n), np.nan)  # length and excess bytes of complete plans
        # The last column stands for all numbers that are not actions.
        self._legal = np.zeros((n, ACTIONS + 1), dtype=np.bool_)
        self._row = np.arange(n) * (ACTIONS + 1)
        self._over = NOBODY  # environments whose episode has ended
        # Number of choices made, if it is the same everywhere and no episode is over; else None.
        self._common: int | None = None
        self._begin(EVERY)
        self._look()

    def close_extras(self, **kwargs: Any) -> None:
        """End the process that refills the pool, if there is one."""
        if isinstance(self.problems, PooledProblems):
            self.problems.close()

    def _plan_of(self, index: int) -> PipelinePlan:
        problem, cuts = self.problems.of[index], slice(1, 1 + int(self._made[index]) // 2)
        pivots = problem.pivots[self._points[cuts, index]]
        devices = problem.devices[self._units[cuts, index]]
        return problem.problem.plan(pivots, devices)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each environment, as in ``SyncVectorEnv``."""
        return tuple(map(self.problems.generator, range(self.num_envs)))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
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
        # As unsigned integers, negative numbers are large; numbers that are no action become 192.
        columns = np.minimum(actions.view(np.uint64), np.uint64(ACTIONS)).view(np.int64)
        legal = self._legal.take(self._row + columns)
        if self._common is not None and legal.all():
            ended = self._choose(self._common % 2, self._common // 2, EVERY, columns, rewards)
            self._over, self._common = ended, None if ended.size else self._common + 1
        elif self._over.size == self.num_envs:
            ended = NOBODY
            self._restart(EVERY)
        else:
            ended = self._step_apart(columns, legal, rewards)
        terminated[ended] = True
        return rewards, terminated

    def _ended(self) -> np.ndarray:
        return self._over

    def _outcomes(self, who: np.ndarray) -> dict[str, np.ndarray]:
        length, excess_bytes = self._figures[:, who]
        outcomes = {"length_seconds": length, "excess_bytes": excess_bytes}
        optimum = self.problems.optimum[who]
        if (optimum == optimum).any():  # not NaN
            value = np.where(length == length, self.problems.bubble_free(who) / length, ILLEGAL)
            outcomes.update(optimum=optimum, regret=regret_of(value, optimum))
        return outcomes

    def _instances(self, who: np.ndarray) -> Sequence[str]:
        return self.problems.instances(who)

    def _attribute(self, name: str, index: int) -> Any:
        return getattr(self.problems.of[index], name)

    def _masks(self) -> np.ndarray:
        return self._legal[:, :ACTIONS].copy().view(np.int8)

    def _infos(self) -> dict[str, Any]:
        self._look()  # only now have all environments acted or started anew
        return super()._infos()

    def _begin(self, who: Any) -> None:
        """Start the episodes of ``who`` with nothing chosen."""
        self._plan[who] = -1.0
        self._made[who] = 0
        self._figures[:, who] = np.nan
        if who is EVERY:
            self._over, self._common = NOBODY, 0
        else:
            self._over = without(self._over, who, self.num_envs)
            self._compare()

    def _compare(self) -> None:
        """Set the common number of choices, if all environments have made the same number."""
        first_made = int(self._made[0])
        is_common = not self._over.size and bool((self._made == first_made).all())
        self._common = first_made if is_common else None

    def _step_apart(
        self, actions: np.ndarray, legal: np.ndarray, rewards: np.ndarray
    ) -> np.ndarray:
        """Play a step in which turns differ or an action is illegal.

        Args:
            actions: (n,) int64, from 0 to 192, where 192 stands for numbers that are no action.
            legal: (n,) bool, whether each action is legal; the array is overwritten.
            rewards: (n,) float64; the rewards of episodes that end are written into it.

        Returns:
            The environments whose episode ends, (k,) int64.
        """
        over = self._over
        legal[over] = True  # their actions are ignored
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
        """Play legal actions that choose the start of the stage after ``stage``.

        Args:
            turn: 0 if the actions choose points, 1 if they choose units.
            stage: number of the stage that ends there: (k,) int64, or one for all.
            who: ``EVERY``, or the environments that act, (k,) int64.
            actions: (k,) int64.
            rewards: (n,) float64; the rewards of episodes that end are written into it.

        Returns:
            The environments whose episode ends, (j,) int64.
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
        columns = EVERY if len(rows) == self.num_envs else rows
        cuts, first_units = self._points[1:, columns].T, self._units[1:, columns].T
        lengths, excess_bytes, values = self.problems.dynamics.figures(cuts, first_units, rows)
        self._figures[0, rows], self._figures[1, rows] = lengths, excess_bytes
        rewards[rows] = values
        return rows

    def _look(self) -> None:
        """Compute the legal actions of all environments."""
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
        """Compute the legal actions of environments ``who``; see ``_choose`` for the arguments."""
        dynamics, legal = self.problems.dynamics, self._legal
        rows = None if who is EVERY else who
        point, unit = self._points[stage, who], self._units[stage, who]
        if turn:
            end = self._points[stage + 1, who]
            legal[who, :POINTS] = False
            legal[who, POINTS:ACTIONS] = dynamics.legal_units(stage, point, unit, end, rows)
        else:
            legal[who, :POINTS] = dynamics.legal_points(stage, point, unit, rows)
            legal[who, POINTS:ACTIONS] = False

    def _observation(self) -> dict[str, Any]:
        constant = self.problems.observed(self.copy)
        return {**constant, "plan": self._plan.copy(), "step": self._made.copy()}

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        batched = self.problems.observed_by(who)
        batched.update(plan=self._plan[who], step=self._made[who])
        return [{key: value[k] for key, value in batched.items()} for k in range(len(who))]
