"""``BatchedEnv``, the base of the native vector environments.

It does what they have in common: autoreset, partial resets, masks and final observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

EVERY = slice(None)
"""Index of all environments; the parameter ``who`` of methods is this or indices, (k,) int64."""
NOBODY = np.empty(0, dtype=np.int64)
"""Index of no environment."""
# Python looks up a module's names faster than an Enum's members, and compares dtypes faster than
# types.
DISABLED, SAME_STEP = AutoresetMode.DISABLED, AutoresetMode.SAME_STEP
INT64 = np.dtype(np.int64)


class BatchedEnv(gym.vector.VectorEnv[dict[str, Any], np.ndarray, np.ndarray]):
    """Plays n episodes at once, each as in the single environment, to the last bit.

    ``reset`` and ``step`` return what ``gymnasium.vector.SyncVectorEnv`` returns for n single
    environments: batched observations, rewards (n,) float64, both flags (n,) bool, and
    ``infos["action_mask"]``, (n, a) int8, with ``infos["_action_mask"]``, (n,) bool.

    A subclass keeps the state of all episodes in arrays, and implements ``_set_up``, ``_restart``,
    ``_play``, ``_ended``, ``_masks``, ``_observation``, ``_last`` and ``_picture``.

    Args:
        num_envs: n.
        autoreset_mode: when an ended episode starts again: in the next step, whose action is
            ignored and whose reward is 0 (``NEXT_STEP``); in the same step, with the final
            observation in ``infos["final_obs"]`` (``SAME_STEP``); or by
            ``reset(options={"reset_mask": ...})`` (``DISABLED``).
        copy: whether observations are copies; with False, large parts of them are views, see the
            subclass.
        kwargs: arguments of the single environment.

    Attributes:
        env: a single environment with the same arguments; it is never stepped.

    Raises:
        ParenvsError: the single environment refuses its arguments.
        ValueError: ``num_envs`` is less than 1, or the mode is unknown.
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
        """Make the single environment, the batched spaces, and the state of n episodes."""
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
        # Copying an array that is the same in every step is faster than making it.
        self._all = np.ones(num_envs, dtype=np.bool_)
        self._none = np.zeros(num_envs, dtype=np.bool_)
        self._set_up()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Restart all episodes, or those of ``options["reset_mask"]``, (n,) bool.

        Args:
            seed: a number, or one for each environment; only environments that draw problems use
                it.
            options: ``"reset_mask"``, and the options of the single environment, which apply to
                all episodes that restart.

        Raises:
            ParenvsError: the single environment refuses the options; no episode is restarted then.
            TypeError: the mask is no array of bool.
            ValueError: the mask or the seeds do not have length n, or the mask is all false.
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
        """Play one action in every environment.

        Args:
            actions: (n,) whole numbers, actions of the single environment.

        Raises:
            AssertionError: an episode is over, and the autoreset mode is ``DISABLED``.
            ValueError: there are not n actions.
        """
        checked_actions, mode = self._checked_actions(actions), self.autoreset_mode
        if mode is DISABLED and self._ended().size:
            over = sorted(self._ended().tolist())
            raise AssertionError(f"episodes {over} are over: reset them by 'reset_mask'")
        rewards, terminated = self._play(checked_actions)
        final = None
        if mode is SAME_STEP:
            ended = self._ended()
            if ended.size:
                final = self._final_infos(ended, terminated)
                self._restart(EVERY if ended.size == self.num_envs else ended)
        infos = self._infos() if final is None else {**final, **self._infos()}
        return self._observation(), rewards, terminated, self._none.copy(), infos

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (n, a) bool; a row is all true where the episode is over."""
        return self._masks().view(np.bool_)

    def render(self) -> tuple[Any, ...] | None:
        """Render each environment as the single environment's ``render`` does."""
        mode = self.render_mode
        if mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make_vec")
            return None
        return tuple(self._picture(mode, index) for index in range(self.num_envs))

    def _set_up(self) -> None:
        """Make the arrays of the state, and start all episodes."""
        raise NotImplementedError

    def _reset(
        self, who: Any, seed: int | Sequence[int | None] | None, options: dict[str, Any]
    ) -> None:
        """Reset ``who``; this base draws no numbers and ignores ``options``."""
        if isinstance(seed, Sequence):
            if len(seed) != self.num_envs:
                raise ValueError(f"{self.num_envs} seeds are needed, not {len(seed)}")
            seed = seed[0]
        super().reset(seed=seed)
        self._restart(who)

    def _restart(self, who: Any) -> None:
        """Start the next episode of each of ``who``."""
        raise NotImplementedError

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Play one step, and return rewards (n,) float64 and ends (n,) bool as fresh arrays.

        The actions of environments whose episode was over before are ignored; in the mode
        ``NEXT_STEP`` these environments start the next episode.
        """
        raise NotImplementedError

    def _ended(self) -> np.ndarray:
        """Return the environments whose episode is over, (k,) int64."""
        raise NotImplementedError

    def _masks(self) -> np.ndarray:
        """Return the legal actions as a fresh array, (n, a) int8; see ``action_masks``."""
        raise NotImplementedError

    def _observation(self) -> dict[str, Any]:
        """Return the batched observation of all environments."""
        raise NotImplementedError

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        """Return the final observations of environments ``who``, (k,) int64."""
        raise NotImplementedError

    def _picture(self, mode: str, index: int) -> Any:
        """Render environment ``index`` in the render mode ``mode``."""
        raise NotImplementedError

    def _checked_actions(self, actions: np.ndarray | Sequence[int]) -> np.ndarray:
        """Return the actions as (n,) int64; numbers outside the action space remain outside."""
        checked = np.asarray(actions)
        if checked.shape != (self.num_envs,):
            raise ValueError(f"{self.num_envs} actions are needed, not shape {checked.shape}")
        if checked.dtype != INT64:
            if checked.dtype.kind not in "iub":  # the single environment converts them by int()
                checked = np.array([min(max(int(x), -1), self._actions) for x in checked])
            checked = checked.astype(np.int64)
        return checked

    def _infos(self) -> dict[str, Any]:
        """Return the infos of a step without ended episodes."""
        return {"action_mask": self._masks(), "_action_mask": self._all.copy()}

    def _final_infos(self, who: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        """Return final observations and masks of the environments that ended in this step.

        Args:
            who: indices of these environments, (k,) int64.
            over: the same environments as a mask, (n,) bool.
        """
        final_observations = np.full(self.num_envs, None, dtype=object)
        for index, observation in zip(who.tolist(), self._last(who), strict=True):
            final_observations[index] = observation
        mask = np.zeros((self.num_envs, self._actions), dtype=np.int8)
        mask[who] = 1
        return {
            "final_obs": final_observations,
            "_final_obs": over.copy(),
            "final_info": {"action_mask": mask, "_action_mask": over.copy()},
            "_final_info": over.copy(),
        }


def reset_mask_of(options: dict[str, Any], count: int) -> np.ndarray | None:
    """Take ``"reset_mask"`` out of the options of a reset.

    Args:
        options: options of a reset; the mask is removed.
        count: n, the number of environments.

    Returns:
        (n,) bool, or None if there is no mask: then all environments are reset.

    Raises:
        TypeError: the mask is no array of bool.
        ValueError: the mask has another shape, or no true element.
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
    """Make malloc keep blocks of about ``size`` bytes.

    Malloc keeps blocks of a size once one of that size was freed. Otherwise every array of
    observations costs page faults, which take longer than filling the array. The block that this
    function allocates and frees is never written.
    """
    np.empty(min(max(size, 1 << 21), 30 << 20), dtype=np.uint8)


def without(indices: np.ndarray, who: Any, count: int) -> np.ndarray:
    """Return the environments in ``indices`` that are not in ``who``.

    Args:
        indices: (k,) int64, indices of environments.
        who: ``EVERY``, or (j,) int64, indices of environments.
        count: n, the number of environments.
    """
    if who is EVERY or who is indices or not indices.size:
        return NOBODY
    removed = np.zeros(count, dtype=np.bool_)
    removed[who] = True
    return indices[~removed[indices]]
