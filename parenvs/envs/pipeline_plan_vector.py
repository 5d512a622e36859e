"""Many ``PipelinePlan-v0`` at once: ``gym.make_vec("PipelinePlan-v0", num_envs=64)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from parenvs.envs.pipeline_cut import picture
from parenvs.envs.pipeline_plan import PipelinePlanEnv
from parenvs.envs.plan_problems import EVERY, PlanProblems
from parenvs.judge import ILLEGAL, make_plan
from parenvs.plan import PipelinePlan
from parenvs.plan_space import STAGES, UNITS
from parenvs.points import POINTS

ACTIONS = POINTS + UNITS
NOBODY = np.empty(0, dtype=np.int64)


class PipelinePlanVectorEnv(gym.vector.VectorEnv[dict[str, Any], np.ndarray, np.ndarray]):
    """n episodes at once, each as in the single environment, to the last bit.

    What ``reset`` and ``step`` return is what ``gymnasium.vector.SyncVectorEnv`` makes of n single
    environments: ``chain`` (n, 4, 128), ``topology`` (n, 64, 64), ``numbers`` (n, 8) and ``plan``
    (n, 2, 7) float32, ``step`` (n,) int64; rewards (n,) float64; both flags (n,) bool;
    ``infos["action_mask"]`` (n, 192) int8 with ``infos["_action_mask"]`` (n,) bool. Drawn problems
    are the same as well: environment i has a generator of its own, seeded with ``seed + i``.

    With a fixed instance all look things up in the same tables. Drawing a problem takes as long as
    hundreds of steps, so that then ``repeat`` matters more than anything else.

    Args:
        num_envs: n.
        autoreset_mode: an ended episode starts anew in the next step, whose action is ignored and
            whose reward is 0 (``NEXT_STEP``); in the same step, with the last observation in
            ``infos["final_obs"]`` (``SAME_STEP``); or by ``reset(options={"reset_mask": ...})``
            (``DISABLED``).
        copy: False hands out ``chain``, ``topology`` and ``numbers`` as read-only views that hold
            until the next call; of a problem that all share, of one row. All else is fresh.
        kwargs: arguments of the single environment.

    Attributes:
        env: a single environment, which is never played.
        problems: the problem of each environment.

    Raises:
        ParenvsError: as in the single environment.
        ValueError: no environment, or an unknown mode.
    """

    def __init__(
        self,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        **kwargs: Any,
    ) -> None:
        """Make one environment, and room for n episodes."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        self.num_envs = n = num_envs
        self.copy, self.autoreset_mode = copy, AutoresetMode(autoreset_mode)
        self.env = PipelinePlanEnv(**kwargs)
        self.render_mode = self.env.render_mode
        self.episode_steps, self.largest_return = self.env.episode_steps, self.env.largest_return
        self.metadata = {**self.env.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_action_space = self.env.action_space
        self.single_observation_space = self.env.observation_space
        self.action_space = batch_space(self.single_action_space, n)
        self.observation_space = batch_space(self.single_observation_space, n)
        # Freeing a large block makes malloc keep blocks of that size, without which every array of
        # observations costs page faults, more than filling it does. Nothing is written here.
        np.empty(min(max(16 * n * UNITS * UNITS, 1 << 21), 30 << 20), dtype=np.uint8)
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

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start all episodes anew, or those of ``options["reset_mask"]``, (n,) bool.

        Args:
            seed: that of the first environment, the next has the next number; or one for each.
            options: as in the single environment, for all that start anew.

        Raises:
            ParenvsError: as in the single environment; nothing has changed then.
            TypeError: the mask is no array of bool.
            ValueError: the mask, or the seeds, are not n; or the mask holds nothing.
        """
        who = self.problems.reset(seed, options)
        self._begin(who)
        self._look()
        infos = self._infos()
        if who is not EVERY:
            infos["_action_mask"][:] = False
            infos["_action_mask"][who] = True
            infos["action_mask"][~infos["_action_mask"]] = 0
        return self._observation(), infos

    def step(
        self, actions: np.ndarray | Sequence[int]
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Choose a point or a unit in each environment, (n,) whole numbers.

        Raises:
            AssertionError: an episode is over, and the autoreset mode is ``DISABLED``.
            ValueError: not n actions.
        """
        asked = self._actions(actions)
        if self._over.size and self.autoreset_mode == AutoresetMode.DISABLED:
            over = sorted(self._over.tolist())
            raise AssertionError(f"episodes {over} are over: reset them by 'reset_mask'")
        rewards, terminated = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        legal = self._legal.take(self._row + asked)
        if self._common is not None and legal.all():
            ended = self._choose(self._common % 2, self._common // 2, EVERY, asked, rewards)
            self._over, self._common = ended, None if ended.size else self._common + 1
        elif self._over.size == self.num_envs:
            ended = NOBODY
            self._restart(EVERY)
        else:
            ended = self._step_apart(asked, legal, rewards)
        final = {}
        if ended.size:
            terminated[ended] = True
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                final = self._final_infos(ended, terminated)
                self._restart(EVERY if ended.size == self.num_envs else ended)
        self._look()
        infos = {**final, **self._infos()}
        return self._observation(), rewards, terminated, np.zeros_like(terminated), infos

    def action_masks(self) -> np.ndarray:
        """(n, 192) bool, legal actions; all true where the episode is over."""
        return self._legal[:, :ACTIONS].copy()

    def plan(self, index: int) -> PipelinePlan:
        """The plan that environment ``index`` has built so far (the rest is its last stage)."""
        problem, cuts = self.problems.of[index], slice(1, 1 + int(self._made[index]) // 2)
        pivots = problem.pivots[self._points[cuts, index]]
        devices = problem.devices[self._units[cuts, index]]
        return make_plan(problem.pipeline, pivots, devices, instance=problem.instance)

    def render(self) -> tuple[Any, ...] | None:
        """What ``PipelinePlanEnv.render`` gives, of each environment."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make_vec")
            return None
        problems = enumerate(self.problems.of)
        return tuple(picture(self.render_mode, one.pipeline, self.plan(i)) for i, one in problems)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each environment, as ``SyncVectorEnv`` gives them."""
        return tuple(map(self.problems.generator, range(self.num_envs)))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each generator."""
        return tuple(map(self.problems.seed_of, range(self.num_envs)))

    def _restart(self, who: Any) -> None:
        """Start the next episodes of ``who``, ``EVERY`` or (k,) int64."""
        self.problems.advance(who)
        self._begin(who)

    def _begin(self, who: Any) -> None:
        """Nothing is chosen in the episodes of ``who``."""
        self._plan[who] = -1.0
        self._made[who] = 0
        if who is EVERY:
            self._over, self._common = NOBODY, 0
        else:
            begins = np.zeros(self.num_envs, dtype=np.bool_)
            begins[who] = True
            self._over = self._over[~begins[self._over]]
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
        some = EVERY if len(rows) == self.num_envs else rows
        chosen = self._points[1:, some], self._units[1:, some]
        rewards[rows] = self.problems.dynamics.values(*chosen, rows)
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

    def _actions(self, actions: np.ndarray | Sequence[int]) -> np.ndarray:
        """Actions as (n,) int64; what is none becomes 192."""
        asked = np.asarray(actions)
        if asked.shape != (self.num_envs,):
            raise ValueError(f"{self.num_envs} actions are needed, not shape {asked.shape}")
        if asked.dtype != np.int64:
            if asked.dtype.kind not in "iub":  # as the single environment: whatever int() takes
                asked = np.array([min(max(int(one), -1), ACTIONS) for one in asked])
            asked = asked.astype(np.int64)
        # Negative numbers are large ones without a sign.
        return np.minimum(asked.view(np.uint64), np.uint64(ACTIONS)).view(np.int64)

    def _observation(self) -> dict[str, Any]:
        seen = self.problems.observed(self.copy)
        return {**seen, "plan": self._plan.copy(), "step": self._made.copy()}

    def _infos(self) -> dict[str, Any]:
        everybody = np.ones(self.num_envs, dtype=np.bool_)
        return {"action_mask": self.action_masks().view(np.int8), "_action_mask": everybody}

    def _final_infos(self, who: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        """Last observations and masks of environments ``who``; ``over``: the same, (n,) bool."""
        seen = self.problems.observed_by(who)
        seen.update(plan=self._plan[who], step=self._made[who])
        last = np.full(self.num_envs, None, dtype=object)
        for place, row in enumerate(who.tolist()):
            last[row] = {key: value[place] for key, value in seen.items()}
        mask = np.zeros((self.num_envs, ACTIONS), dtype=np.int8)
        mask[who] = 1
        return {
            "final_obs": last,
            "_final_obs": over.copy(),
            "final_info": {"action_mask": mask, "_action_mask": over.copy()},
            "_final_info": over.copy(),
        }
