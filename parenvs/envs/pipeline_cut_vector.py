"""Many ``PipelineCut-v0`` at once: ``gym.make_vec("PipelineCut-v0", num_envs=1024)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from parenvs.envs.cut_kernel import kernel_of
from parenvs.envs.cut_tables import MOST_BYTES_VECTOR
from parenvs.envs.pipeline_cut import PipelineCutEnv, picture
from parenvs.judge import ILLEGAL, make_plan
from parenvs.plan import PipelinePlan

EVERY = slice(None)


class PipelineCutVectorEnv(gym.vector.VectorEnv[dict[str, Any], np.ndarray, np.ndarray]):
    """n episodes at once, each as in the single environment, to the last bit.

    What ``reset`` and ``step`` return is what ``gymnasium.vector.SyncVectorEnv`` makes of n single
    environments: ``features`` (n, c, 3) float32, ``cuts`` (n, S-1) float32 and ``step`` (n,) int64;
    rewards (n,) float64; both flags (n,) bool; ``infos["action_mask"]`` (n, c) int8 with
    ``infos["_action_mask"]`` (n,) bool. It is fastest while all have made the same number of cuts,
    as they do without illegal actions and partial resets.

    Args:
        num_envs: n.
        autoreset_mode: an ended episode starts anew in the next step, whose action is ignored and
            whose reward is 0 (``NEXT_STEP``); in the same step, with the last observation in
            ``infos["final_obs"]`` (``SAME_STEP``); or by ``reset(options={"reset_mask": ...})``
            (``DISABLED``).
        copy: False hands out ``features`` that the next call overwrites. All else is fresh.
        kwargs: arguments of the single environment.

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
        self.env = PipelineCutEnv(**kwargs)
        self.space, self.pipeline = self.env.space, self.env.pipeline
        self.render_mode = self.env.render_mode
        self.episode_steps, self.largest_return = self.env.episode_steps, self.env.largest_return
        self.metadata = {**self.env.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_action_space = self.env.action_space
        self.single_observation_space = self.env.observation_space
        self.action_space = batch_space(self.single_action_space, n)
        self.observation_space = batch_space(self.single_observation_space, n)
        known = self.env.kernel
        self.kernel = kernel = (
            known if known.tabulated else kernel_of(self.space, MOST_BYTES_VECTOR)
        )
        self._buffer = None if copy else np.zeros((n, kernel.end, 3), dtype=np.float32)
        # Freeing a large block makes malloc keep blocks of that size, without which every array of
        # observations costs page faults, more than filling it does. Nothing is written here.
        np.empty(min(max(48 * n * kernel.end, 1 << 21), 30 << 20), dtype=np.uint8)
        self._numbers = np.arange(kernel.end)
        # Row k of chains is cut k of every environment, between the ends of the model.
        self._chains = np.full((kernel.cuts + 2, n), kernel.end)
        self._chains[0] = kernel.start
        self._cuts = np.empty((n, kernel.cuts), dtype=np.float32)
        self._made = np.empty(n, dtype=np.int64)
        self._over = np.empty(n, dtype=np.bool_)
        # Legal are the candidates [begin, end) of each; none once its episode is over.
        self._begin, self._end = np.empty((2, n), dtype=np.int64)
        # Of the stages settled, see CutKernel.settle.
        self._peaks, self._paces = np.zeros((n, 2), dtype=np.float32), np.zeros((n, 2))
        # Cuts that all have made; S-1 if all are over; None if they differ.
        self._common: int | None = None
        self._restart(EVERY)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start all episodes anew, or those of ``options["reset_mask"]``, (n,) bool.

        Episodes are the same whatever the seed, a number or one for each environment.

        Raises:
            TypeError: the mask is no array of bool.
            ValueError: the mask, or the seeds, are not n; or the mask holds nothing.
        """
        if isinstance(seed, Sequence):
            if len(seed) != self.num_envs:
                raise ValueError(f"{self.num_envs} seeds are needed, not {len(seed)}")
            seed = seed[0]
        super().reset(seed=seed)
        mask = None if options is None else options.get("reset_mask")
        if mask is None:
            self._restart(EVERY)
            return self._observation(), self._infos()
        _check_reset_mask(mask, self.num_envs)
        self._restart(np.flatnonzero(mask))
        infos = self._infos()
        infos["action_mask"][~mask] = 0
        infos["_action_mask"] = mask.copy()
        return self._observation(), infos

    def step(
        self, actions: np.ndarray | Sequence[int]
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Cut at the candidates ``actions``, (n,) whole numbers.

        Raises:
            AssertionError: an episode is over, and the autoreset mode is ``DISABLED``.
            ValueError: not n actions.
        """
        asked = np.asarray(actions)
        if asked.shape != (self.num_envs,):
            raise ValueError(f"{self.num_envs} actions are needed, not shape {asked.shape}")
        if asked.dtype.kind == "f":
            asked = np.trunc(asked)  # as int() does
        mode, cuts, step = self.autoreset_mode, self.kernel.cuts, self._common
        if mode == AutoresetMode.DISABLED and step in (None, cuts) and self._over.any():
            over = np.flatnonzero(self._over).tolist()
            raise AssertionError(f"episodes {over} are over: reset them by 'reset_mask'")
        rewards = np.zeros(self.num_envs)
        if step == cuts and mode == AutoresetMode.NEXT_STEP:
            self._restart(EVERY)
        else:
            legal = (asked >= self._begin) & (asked < self._end)
            if step is not None and legal.all():
                self._cut(step, EVERY, asked, rewards)
                self._common = step + 1
            else:
                self._step_apart(asked, legal, rewards)
        terminated = self._over.copy()
        final = {}
        if mode == AutoresetMode.SAME_STEP and self._common in (None, cuts) and terminated.any():
            final = self._final_infos(terminated)
            self._restart(EVERY if self._common == cuts else np.flatnonzero(terminated))
        infos = {**final, **self._infos()}
        return self._observation(), rewards, terminated, np.zeros_like(terminated), infos

    def action_masks(self) -> np.ndarray:
        """(n, c) bool, legal actions; all true where the episode is over."""
        step, kernel = self._common, self.kernel
        if step == kernel.cuts:
            return np.ones((self.num_envs, kernel.end), dtype=np.bool_)
        if step == 0 or (step is not None and not kernel.overlaps[step]):
            legal = np.zeros((self.num_envs, kernel.end), dtype=np.bool_)
            legal[:, self._begin[0] : kernel.high[step]] = True
            return legal
        if step is not None and kernel.tabulated:
            return kernel.step_masks[step].take(self._chains[step] - kernel.low[step - 1], axis=0)
        legal = self._numbers >= self._begin[:, None]
        legal &= self._numbers < self._end[:, None]
        legal |= self._over[:, None]
        return legal

    def plan(self, index: int) -> PipelinePlan:
        """The plan that environment ``index`` has built so far (the rest is its last stage)."""
        chosen = self._chains[1 : 1 + self._made[index], index]
        return make_plan(self.pipeline, *self.space.plan(chosen), instance=self.env.instance)

    def render(self) -> tuple[Any, ...] | None:
        """What ``PipelineCutEnv.render`` gives, of each environment."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make_vec")
            return None
        plans = map(self.plan, range(self.num_envs))
        return tuple(picture(self.render_mode, self.pipeline, plan) for plan in plans)

    def _restart(self, who: Any) -> None:
        """Start the episodes of ``who``, all or an array of numbers, anew."""
        kernel = self.kernel
        self._cuts[who] = -1.0
        self._made[who] = 0
        self._over[who] = False
        self._begin[who] = max(kernel.after[kernel.start], kernel.low[0])
        self._end[who] = kernel.high[0]
        if who is EVERY:
            self._common = 0
        else:
            self._compare()

    def _finish(self, who: Any) -> None:
        self._over[who] = True
        self._begin[who] = self._end[who] = 0

    def _compare(self) -> None:
        """See whether all have made the same number of cuts."""
        made = int(self._made[0])
        alike = not self._over.any() and bool((self._made == made).all())
        self._common = self.kernel.cuts if self._over.all() else made if alike else None

    def _step_apart(self, actions: np.ndarray, legal: np.ndarray, rewards: np.ndarray) -> None:
        """A step of environments that differ in their cuts, or of which some act illegally."""
        over = self._over.copy()
        illegal = np.flatnonzero(~(legal | over))
        rewards[illegal] = ILLEGAL
        self._finish(illegal)
        # From the last step on, so that nobody moves twice.
        for step in range(self.kernel.cuts - 1, -1, -1):
            who = np.flatnonzero(legal & (self._made == step))
            if who.size:
                self._cut(step, who, actions[who], rewards)
        if self.autoreset_mode == AutoresetMode.NEXT_STEP:
            self._restart(np.flatnonzero(over))
        else:
            self._compare()

    def _cut(self, step: int, who: Any, actions: np.ndarray, rewards: np.ndarray) -> None:
        """Legal actions of environments ``who`` that have made ``step`` cuts."""
        kernel, chains = self.kernel, self._chains
        actions = actions.astype(np.int64)
        chains[step + 1, who] = actions
        self._cuts[who, step] = kernel.shares.take(actions)
        self._made[who] = step + 1
        if step + 1 == kernel.cuts:
            rewards[who] = kernel.values(chains[:, who])
            self._finish(who)
            return
        self._begin[who] = np.maximum(kernel.follower.take(actions), kernel.low[step + 1])
        self._end[who] = kernel.high[step + 1]
        self._peaks[who], self._paces[who] = kernel.settle(
            step, chains[:, who], self._peaks[who], self._paces[who]
        )

    def _observation(self) -> dict[str, Any]:
        cuts, made = self._cuts.copy(), self._made.copy()
        return {"features": self._features(), "cuts": cuts, "step": made}

    def _features(self) -> np.ndarray:
        kernel, step, out = self.kernel, self._common, self._buffer
        shape = (self.num_envs, kernel.end, 3)
        if step == 0:
            out = np.empty(shape, dtype=np.float32) if out is None else out
            out[:] = kernel.first
            return out
        if step == 1 and kernel.openings is not None:
            index = self._chains[1] - kernel.low[0]
            # Clipping changes no index, but spares a buffer.
            return kernel.openings.take(index, axis=0, out=out, mode="clip")
        if out is None:
            out = np.zeros(shape, dtype=np.float32)
        else:
            out.fill(0.0)
        if step is None:
            for made in range(kernel.cuts):
                who = np.flatnonzero(~self._over & (self._made == made))
                if who.size:
                    part = np.zeros((len(who), *shape[1:]), dtype=np.float32)
                    out[who] = self._write(made, who, part) if made else kernel.first
        elif step < kernel.cuts:
            self._write(step, EVERY, out)
        return out

    def _write(self, step: int, who: Any, out: np.ndarray) -> np.ndarray:
        """Features of environments that have made ``step`` >= 1 cuts, into zeros."""
        chains, peaks, paces = self._chains[:, who], self._peaks[who], self._paces[who]
        self.kernel.features(step, chains, peaks, paces, out)
        return out

    def _infos(self) -> dict[str, Any]:
        everybody = np.ones(self.num_envs, dtype=np.bool_)
        return {"action_mask": self.action_masks().view(np.int8), "_action_mask": everybody}

    def _final_infos(self, over: np.ndarray) -> dict[str, Any]:
        """Last observations and masks of the episodes that are ``over``, (n,) bool."""
        who = np.flatnonzero(over)
        features = np.zeros((len(who), self.kernel.end, 3), dtype=np.float32)
        rows = zip(features, self._cuts[who], self._made[who], strict=True)
        last = np.full(self.num_envs, None, dtype=object)
        last[who] = [{"features": f, "cuts": cuts, "step": made} for f, cuts, made in rows]
        mask = np.zeros((self.num_envs, self.kernel.end), dtype=np.int8)
        mask[who] = 1
        return {
            "final_obs": last,
            "_final_obs": over.copy(),
            "final_info": {"action_mask": mask, "_action_mask": over.copy()},
            "_final_info": over.copy(),
        }


def _check_reset_mask(mask: Any, count: int) -> None:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"'reset_mask' must be a NumPy array of bool, not {type(mask).__name__}")
    if mask.shape != (count,) or not mask.any():
        raise ValueError(f"'reset_mask' must have the shape ({count},), and a true element")
