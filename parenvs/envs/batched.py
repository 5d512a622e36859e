"""What the native batches of environments share: autoreset, partial resets, masks, last views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

EVERY = slice(None)
"""All environments; the methods of a batch take it, or the numbers of some, (k,) int64."""
NOBODY = np.empty(0, dtype=np.int64)
# Attributes of an Enum take longer to look up than names of a module, types to compare than dtypes.
DISABLED, SAME_STEP = AutoresetMode.DISABLED, AutoresetMode.SAME_STEP
INT64 = np.dtype(np.int64)


class BatchedEnv(gym.vector.VectorEnv[dict[str, Any], np.ndarray, np.ndarray]):
    """n episodes at once, each as in the single environment, to the last bit.

    What ``reset`` and ``step`` return is what ``gymnasium.vector.SyncVectorEnv`` makes of n single
    environments: observations batched, rewards (n,) float64, both flags (n,) bool, and
    ``infos["action_mask"]``, (n, a) int8, with ``infos["_action_mask"]``, (n,) bool.

    A subclass keeps the state of all episodes in arrays. It has ``_set_up``, ``_restart``,
    ``_play`` and ``_ended``; ``_masks``, ``_observation``, ``_last`` and ``_picture``.

    Args:
        num_envs: n.
        autoreset_mode: an ended episode starts anew in the next step, whose action is ignored and
            whose reward is 0 (``NEXT_STEP``); in the same step, with the last observation in
            ``infos["final_obs"]`` (``SAME_STEP``); or by ``reset(options={"reset_mask": ...})``
            (``DISABLED``).
        copy: False hands out large parts of the observation without a copy; see the subclass.
        kwargs: arguments of the single environment.

    Attributes:
        env: a single environment, which is never played.

    Raises:
        ParenvsError: as in the single environment.
        ValueError: no environment, or an unknown mode.
    """

    single: ClassVar[type[gym.Env[Any, Any]]]
    env: Any

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
        self.num_envs, self.copy = num_envs, copy
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.env = self.single(**kwargs)
        self.render_mode = self.env.render_mode
        self.episode_steps, self.largest_return = self.env.episode_steps, self.env.largest_return
        self.metadata = {**self.env.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_action_space = self.env.action_space
        self.single_observation_space = self.env.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._actions = int(self.env.action_space.n)
        # Copying what is the same in every step is faster than making it.
        self._all = np.ones(num_envs, dtype=np.bool_)
        self._none = np.zeros(num_envs, dtype=np.bool_)
        self._set_up()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start all episodes anew, or those of ``options["reset_mask"]``, (n,) bool.

        Args:
            seed: a number, or one for each environment. It changes only what is drawn.
            options: other ones as in the single environment, for all that start anew.

        Raises:
            ParenvsError: as in the single environment; nothing has changed then.
            TypeError: the mask is no array of bool.
            ValueError: the mask, or the seeds, are not n; or the mask holds nothing.
        """
        options = dict(options or {})
        mask = reset_mask_of(options, self.num_envs)
        who = EVERY if mask is None or mask.all() else np.flatnonzero(mask)
        self._reset(who, seed, options)
        infos = self._infos()
        if mask is not None:
            infos["action_mask"][~mask] = 0
            infos["_action_mask"] = mask.copy()
        return self._observation(), infos

    def step(
        self, actions: np.ndarray | Sequence[int]
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Act in every environment, (n,) whole numbers; which ones, see the single environment.

        Raises:
            AssertionError: an episode is over, and the autoreset mode is ``DISABLED``.
            ValueError: not n actions.
        """
        asked, mode = self._asked(actions), self.autoreset_mode
        if mode is DISABLED and self._ended().size:
            over = sorted(self._ended().tolist())
            raise AssertionError(f"episodes {over} are over: reset them by 'reset_mask'")
        rewards, terminated = self._play(asked)
        final = None
        if mode is SAME_STEP:
            ended = self._ended()
            if ended.size:
                final = self._final_infos(ended, terminated)
                self._restart(EVERY if ended.size == self.num_envs else ended)
        infos = self._infos() if final is None else {**final, **self._infos()}
        return self._observation(), rewards, terminated, self._none.copy(), infos

    def action_masks(self) -> np.ndarray:
        """(n, a) bool, legal actions; all true where the episode is over."""
        return self._masks().view(np.bool_)

    def render(self) -> tuple[Any, ...] | None:
        """What the single environment's ``render`` gives, of each environment."""
        mode = self.render_mode
        if mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make_vec")
            return None
        return tuple(self._picture(mode, index) for index in range(self.num_envs))

    def _set_up(self) -> None:
        """Make the arrays, and start all episodes."""
        raise NotImplementedError

    def _reset(
        self, who: Any, seed: int | Sequence[int | None] | None, options: dict[str, Any]
    ) -> None:
        """Reset ``who``; here nothing is drawn, and there are no options."""
        if isinstance(seed, Sequence):
            if len(seed) != self.num_envs:
                raise ValueError(f"{self.num_envs} seeds are needed, not {len(seed)}")
            seed = seed[0]
        super().reset(seed=seed)
        self._restart(who)

    def _restart(self, who: Any) -> None:
        """Start the next episodes of ``who``."""
        raise NotImplementedError

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A step: rewards (n,) float64 and ends (n,) bool, fresh arrays.

        Those that were over before do not act; in the mode ``NEXT_STEP`` they start anew.
        """
        raise NotImplementedError

    def _ended(self) -> np.ndarray:
        """(k,) int64 environments whose episode is over."""
        raise NotImplementedError

    def _masks(self) -> np.ndarray:
        """(n, a) int8, ``action_masks`` as a fresh array."""
        raise NotImplementedError

    def _observation(self) -> dict[str, Any]:
        """What all see."""
        raise NotImplementedError

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        """What each of ``who``, (k,) int64, sees in its episode that is over."""
        raise NotImplementedError

    def _picture(self, mode: str, index: int) -> Any:
        """One environment in a render mode."""
        raise NotImplementedError

    def _asked(self, actions: np.ndarray | Sequence[int]) -> np.ndarray:
        """Actions as (n,) int64; what is no action stays none."""
        asked = np.asarray(actions)
        if asked.shape != (self.num_envs,):
            raise ValueError(f"{self.num_envs} actions are needed, not shape {asked.shape}")
        if asked.dtype != INT64:
            if asked.dtype.kind not in "iub":  # as the single environment: whatever int() takes
                asked = np.array([min(max(int(one), -1), self._actions) for one in asked])
            asked = asked.astype(np.int64)
        return asked

    def _infos(self) -> dict[str, Any]:
        return {"action_mask": self._masks(), "_action_mask": self._all.copy()}

    def _final_infos(self, who: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        """Last observations and masks of environments ``who``; ``over``: the same, (n,) bool."""
        last = np.full(self.num_envs, None, dtype=object)
        for row, seen in zip(who.tolist(), self._last(who), strict=True):
            last[row] = seen
        mask = np.zeros((self.num_envs, self._actions), dtype=np.int8)
        mask[who] = 1
        return {
            "final_obs": last,
            "_final_obs": over.copy(),
            "final_info": {"action_mask": mask, "_action_mask": over.copy()},
            "_final_info": over.copy(),
        }


def reset_mask_of(options: dict[str, Any], count: int) -> np.ndarray | None:
    """(n,) bool, who is reset, taken out of the options of a reset; None if it is all.

    Raises:
        TypeError: no array of bool.
        ValueError: of another shape, or without a true element.
    """
    if "reset_mask" not in options:
        return None
    mask = options.pop("reset_mask")
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"'reset_mask' must be a NumPy array of bool, not {type(mask).__name__}")
    if mask.shape != (count,) or not mask.any():
        raise ValueError(f"'reset_mask' must have the shape ({count},), and a true element")
    return mask


def keep_blocks(size: int) -> None:
    """Make malloc keep blocks of about so many bytes.

    It does so once a large block is freed; without it every array of observations costs page
    faults, more than filling it does. Nothing is written here.
    """
    np.empty(min(max(size, 1 << 21), 30 << 20), dtype=np.uint8)


def without(some: np.ndarray, who: Any, count: int) -> np.ndarray:
    """Those of ``some``, (k,) int64 of ``count`` environments, that are none of ``who``."""
    if who is EVERY or who is some or not some.size:
        return NOBODY
    gone = np.zeros(count, dtype=np.bool_)
    gone[who] = True
    return some[~gone[some]]
