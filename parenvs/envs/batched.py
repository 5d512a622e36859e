"""``BatchedEnv``, the base of the native vector environments.

It does what they have in common: autoreset, partial resets, masks and final observations.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from parenvs.envs.base import whole_number
from parenvs.envs.batches import EVERY, NOBODY, Guest, keep_blocks, reset_mask_of, without
from parenvs.errors import ParenvsError

__all__ = ["EVERY", "NOBODY", "BatchedEnv", "keep_blocks", "without"]

# Python looks up a module's names faster than an Enum's members, and compares dtypes faster than
# types.
DISABLED, SAME_STEP = AutoresetMode.DISABLED, AutoresetMode.SAME_STEP
INT64 = np.dtype(np.int64)


class BatchedEnv(gym.vector.VectorEnv[dict[str, Any], np.ndarray, np.ndarray]):
    """Plays n episodes at once, each as in the single environment, to the last bit.

    ``reset`` and ``step`` return what ``gymnasium.vector.SyncVectorEnv`` returns for n single
    environments: batched observations, rewards (n,) float64, both flags (n,) bool, and infos, each
    key with a mask, (n,) bool, under ``_key``: ``action_mask``, (n, a) int8, ``instance``, (n,)
    object, and at the end of an episode what ``_outcome`` of the single environment holds, (n,)
    float64. In the mode ``SAME_STEP`` infos of ended episodes are in ``infos["final_info"]``.

    A subclass keeps the state of all episodes in arrays, and implements ``_set_up``, ``_restart``,
    ``_play``, ``_ended``, ``_masks``, ``_observation``, ``_last``, ``_picture`` and ``_plan_of``.
    Infos at the end of an episode need ``_outcomes``; where problems differ within the batch,
    ``_instances``. All else is done here: autoreset, partial resets, infos, masked observations,
    ``call``, ``get_attr``, ``set_attr``, and ``reset(options=...)``, whose episodes are played by
    single environments of class ``single``, one for each, which is as slow as they are, unless the
    subclass overrides ``_reset``.

    ``gym.make_vec`` refuses ``wrappers`` and ``vector_kwargs`` for native batches: arguments of
    this class are given as plain keywords, and wrappers of single environments need
    ``vectorization_mode="sync"``.

    Args:
        num_envs: n.
        autoreset_mode: when an ended episode starts again: in the next step, whose action is
            ignored and whose reward is 0 (``NEXT_STEP``); in the same step, with the final
            observation in ``infos["final_obs"]`` (``SAME_STEP``); or by
            ``reset(options={"reset_mask": ...})`` (``DISABLED``).
        copy: whether observations are copies; with False, large parts of them are views, see the
            subclass.
        mask_in_observation: whether observations have the part ``action_mask``, as with the wrapper
            ``MaskInObservation``.
        max_episode_steps: a limit of steps; only one that no episode reaches is taken.
        kwargs: arguments of the single environment.

    Attributes:
        env: a single environment with the same arguments; it is never stepped.

    Raises:
        ParenvsError: the single environment refuses its arguments, or the limit could be reached.
        ValueError: ``num_envs`` is less than 1, or the mode is unknown.
    """

    single: ClassVar[type[gym.Env[Any, Any]]]
    own: ClassVar[tuple[str, ...]] = ("instance", "problem", "space")
    """Attributes of the single environment that belong to its problem."""
    env: Any

    def __init__(
        self,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        mask_in_observation: bool = False,
        max_episode_steps: int | None = None,
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
        if max_episode_steps is not None and 0 < max_episode_steps < self.episode_steps:
            raise ParenvsError(
                f"max_episode_steps: episodes end by themselves after at most {self.episode_steps} "
                f"steps, and a native batch cuts none off after {max_episode_steps}; leave it out "
                'or give make_vec vectorization_mode="sync"'
            )
        self.metadata = {**self.env.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_action_space = self.env.action_space
        self._actions = int(self.env.action_space.n)
        self.mask_in_observation = mask_in_observation
        self.single_observation_space = self.env.observation_space
        if mask_in_observation:
            mask = gym.spaces.Box(0, 1, (self._actions,), np.int8)
            parts = self.env.observation_space.spaces
            self.single_observation_space = gym.spaces.Dict({**parts, "action_mask": mask})
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        # Copying an array that is the same in every step is faster than making it.
        self._all = np.ones(num_envs, dtype=np.bool_)
        self._none = np.zeros(num_envs, dtype=np.bool_)
        self._guests: dict[int, Guest] = {}
        self._set_by_user: dict[str, list[Any]] = {}
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
        infos = self._infos_with_guests()
        observation = self._seen(infos["action_mask"])
        if mask is not None:
            infos["action_mask"][~mask] = 0
            infos["_action_mask"] = mask.copy()
        self._name(infos, np.arange(self.num_envs)[who])
        return observation, infos

    def step(
        self, actions: np.ndarray | Sequence[int]
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Play one action in every environment.

        Args:
            actions: (n,) whole numbers, actions of the single environment.

        Raises:
            AssertionError: an episode is over, and the autoreset mode is ``DISABLED``.
            ParenvsError: an action is no whole number.
            ValueError: there are not n actions.
        """
        checked_actions, mode = self._checked_actions(actions), self.autoreset_mode
        begun = NOBODY if mode is SAME_STEP else self._all_ended()
        if mode is DISABLED and begun.size:
            over = sorted(begun.tolist())
            raise AssertionError(f"episodes {over} are over: reset them by 'reset_mask'")
        if self._guests:
            rewards, terminated = self._play_with_guests(checked_actions)
        else:
            rewards, terminated = self._play(checked_actions)
        ended = terminated.nonzero()[0]
        final: dict[str, Any] = {}
        if ended.size:
            closing = self._closing(ended)
            if mode is SAME_STEP:
                final, begun = self._final_infos(ended, terminated), ended
                final["final_info"].update(closing)
                for row in ended.tolist() if self._guests else ():
                    self._guests.pop(row, None)
                self._restart(EVERY if ended.size == self.num_envs else ended)
            else:
                final = closing
        infos = {**final, **self._infos_with_guests()}
        if begun.size:
            self._name(infos, begun)
        return self._seen(infos["action_mask"]), rewards, terminated, self._none.copy(), infos

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (n, a) bool; a row is all true where the episode is over."""
        masks = self._masks()
        for row, guest in self._guests.items():
            masks[row] = guest.info["action_mask"]
        return masks.view(np.bool_)

    def render(self) -> tuple[Any, ...] | None:
        """Render each environment as the single environment's ``render`` does."""
        mode = self.render_mode
        if mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make_vec")
            return None
        return tuple(
            self._guests[row].env.render() if row in self._guests else self._picture(mode, row)
            for row in range(self.num_envs)
        )

    def plan(self, index: int) -> Any:
        """Return the plan that environment ``index`` has built so far, as the single one does."""
        guest = self._guests.get(range(self.num_envs)[index])
        return self._plan_of(index) if guest is None else guest.env.plan()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return a method's results, or an attribute, of each environment.

        Args:
            name: ``"action_masks"``, ``"plan"`` or ``"render"``, which take no arguments, or the
                name of an attribute, see ``get_attr``.
            *args: none.
            **kwargs: none.

        Raises:
            AttributeError: there is no such method or attribute.
            TypeError: there are arguments.
        """
        methods: dict[str, Callable[[], Any]] = {
            "action_masks": lambda: tuple(self.action_masks()),
            "plan": lambda: tuple(self.plan(row) for row in range(self.num_envs)),
            "render": lambda: self.render() or (None,) * self.num_envs,
        }
        if args or kwargs:
            raise TypeError(f"{name}() takes no arguments in a native batch")
        return methods[name]() if name in methods else self.get_attr(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment.

        Args:
            name: an attribute of the single environment that is no method and no state of an
                episode, or a name that ``set_attr`` was given.

        Raises:
            AttributeError: there is no such attribute.
        """
        if name in self._set_by_user:
            return tuple(self._set_by_user[name])
        if name in self.own:
            return tuple(
                getattr(self._guests[row].env, name)
                if row in self._guests
                else self._attribute(name, row)
                for row in range(self.num_envs)
            )
        value = None if name.startswith("_") else getattr(self.env, name)
        if name.startswith("_") or callable(value):
            raise AttributeError(f"environments of a native batch have no {name!r} of their own")
        return (value,) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Give each environment an attribute of a new name.

        Args:
            name: the name.
            values: a list or tuple of n values, or one value for all.

        Raises:
            AttributeError: the environments have that attribute, which all share.
            ValueError: there are not n values.
        """
        if name.startswith("_") or hasattr(self.env, name):
            raise AttributeError(
                f"environments of a native batch share {name!r}, which cannot be set; make another "
                'batch, or give make_vec vectorization_mode="sync"'
            )
        several = isinstance(values, (list, tuple))
        if several and len(values) != self.num_envs:
            raise ValueError(f"{self.num_envs} values are needed, not {len(values)}")
        self._set_by_user[name] = list(values) if several else [values] * self.num_envs

    def _set_up(self) -> None:
        """Make the arrays of the state, and start all episodes."""
        raise NotImplementedError

    def _reset(
        self, who: Any, seed: int | Sequence[int | None] | None, options: dict[str, Any]
    ) -> None:
        """Reset ``who``; this base draws no numbers, and guests play the problem of ``options``."""
        if isinstance(seed, Sequence):
            if len(seed) != self.num_envs:
                raise ValueError(f"{self.num_envs} seeds are needed, not {len(seed)}")
            seed = seed[0]
        rows = np.arange(self.num_envs)[who].tolist()
        guests: dict[int, Guest] = {}
        for row in rows if options else ():
            env = copying.copy(self.env)
            guests[row] = Guest(env, *env.reset(options=options))
            self.env._away = env._away  # what the options name is loaded once
        super().reset(seed=seed)
        for row in rows:
            self._guests.pop(row, None)
        self._guests.update(guests)
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

    def _plan_of(self, index: int) -> Any:
        """Return the plan that environment ``index`` has built so far."""
        raise NotImplementedError

    def _outcomes(self, who: np.ndarray) -> dict[str, np.ndarray]:
        """Return ``_outcome`` of environments ``who``, (k,) int64, whose episode has just ended.

        Returns:
            An array (k,) float64 for each name, NaN where the single environment has none.
        """
        return {}

    def _instances(self, who: np.ndarray) -> Sequence[str]:
        """Return the instance of each of environments ``who``, (k,) int64."""
        return [self.env.instance] * len(who)

    def _attribute(self, name: str, index: int) -> Any:
        """Return the attribute of ``own`` called ``name`` of environment ``index``."""
        return getattr(self.env, name)

    def _checked_actions(self, actions: np.ndarray | Sequence[int]) -> np.ndarray:
        """Return the actions as (n,) int64; numbers outside the action space remain outside."""
        checked = np.asarray(actions)
        if checked.shape != (self.num_envs,):
            raise ValueError(f"{self.num_envs} actions are needed, not shape {checked.shape}")
        if checked.dtype != INT64:
            if checked.dtype.kind not in "iub":
                numbers = [whole_number(x) for x in checked]
                checked = np.array([min(max(x, -1), self._actions) for x in numbers])
            checked = checked.astype(np.int64)
        return checked

    def _infos(self) -> dict[str, Any]:
        """Return the infos of a step without ended episodes."""
        return {"action_mask": self._masks(), "_action_mask": self._all.copy()}

    def _infos_with_guests(self) -> dict[str, Any]:
        """Return ``_infos``, with the masks of guests."""
        infos = self._infos()
        for row, guest in self._guests.items():
            infos["action_mask"][row] = guest.info["action_mask"]
        return infos

    def _seen(self, masks: np.ndarray) -> dict[str, Any]:
        """Return ``_observation``, with those of guests, and with the masks if they are asked for.

        Args:
            masks: (n, a) int8, the legal actions.
        """
        observation = self._observation()
        if self._guests:
            observation = {key: np.array(value) for key, value in observation.items()}
            for row, guest in self._guests.items():
                for key, value in guest.observation.items():
                    observation[key][row] = value
        if self.mask_in_observation:
            observation["action_mask"] = masks.copy()
        return observation

    def _all_ended(self) -> np.ndarray:
        """Return the environments whose episode is over, guests included, (k,) int64."""
        over = [row for row, guest in self._guests.items() if guest.over]
        return np.append(self._ended(), over) if over else self._ended()

    def _play_with_guests(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Play one step as ``_play`` does, of which guests play theirs.

        In the arrays of the state their environments stay at the start of an episode.
        """
        rows = np.array(list(self._guests))
        idle = actions.copy()
        idle[rows] = self._masks()[rows].argmax(axis=1)
        rewards, terminated = self._play(idle)
        self._restart(rows)
        rewards[rows], terminated[rows] = 0.0, False
        for row, guest in list(self._guests.items()):
            if guest.over:
                del self._guests[row]  # the next episode is one of the batch
                continue
            guest.observation, rewards[row], guest.over, _, guest.info = guest.env.step(
                int(actions[row])
            )
            terminated[row] = guest.over
        return rewards, terminated

    def _name(self, infos: dict[str, Any], who: np.ndarray) -> None:
        """Write the instances of environments ``who``, (k,) int64, into infos."""
        if "instance" not in infos:
            infos["instance"] = np.full(self.num_envs, None, dtype=object)
            infos["_instance"] = self._none.copy()
        infos["instance"][who] = self._instances(who)
        infos["_instance"][who] = True
        for row in who.tolist() if self._guests else ():
            if row in self._guests:
                infos["instance"][row] = self._guests[row].env.instance

    def _closing(self, who: np.ndarray) -> dict[str, Any]:
        """Return the infos, but for masks, of environments ``who`` that ended in this step."""
        infos: dict[str, Any] = {}
        self._name(infos, who)
        guests = [row for row in who.tolist() if row in self._guests] if self._guests else []
        native = np.setdiff1d(who, guests) if guests else who
        if native.size:
            for key, values in self._outcomes(native).items():
                known = values == values  # not NaN
                if known.any():
                    self._put(infos, key, native[known], values[known])
        for row in guests:
            for key, value in self._guests[row].env._outcome.items():
                self._put(infos, key, np.array([row]), value)
        return infos

    def _put(self, infos: dict[str, Any], key: str, who: np.ndarray, values: Any) -> None:
        """Write numbers of environments ``who`` into infos, as ``SyncVectorEnv`` does."""
        if key not in infos:
            infos[key], infos[f"_{key}"] = np.zeros(self.num_envs), self._none.copy()
        infos[key][who] = values
        infos[f"_{key}"][who] = True

    def _final_infos(self, who: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        """Return final observations and masks of the environments that ended in this step.

        Args:
            who: indices of these environments, (k,) int64.
            over: the same environments as a mask, (n,) bool.
        """
        final_observations = np.full(self.num_envs, None, dtype=object)
        for index, observation in zip(who.tolist(), self._last(who), strict=True):
            guest = self._guests.get(index)
            final_observations[index] = observation if guest is None else guest.observation
            if self.mask_in_observation:
                every_action = np.ones(self._actions, dtype=np.int8)
                final_observations[index] = {
                    **final_observations[index],
                    "action_mask": every_action,
                }
        mask = np.zeros((self.num_envs, self._actions), dtype=np.int8)
        mask[who] = 1
        return {
            "final_obs": final_observations,
            "_final_obs": over.copy(),
            "final_info": {"action_mask": mask, "_action_mask": over.copy()},
            "_final_info": over.copy(),
        }
