"""A native batch of environments as a ``VecEnv`` of SB3, with masks, statistics and scaling.

JOINED: The environments that agents train on: side by side, rewards scaled, torch on one thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import (
    VecEnvIndices,
    VecEnvObs,
    VecEnvStepReturn,
)

OWN = ("problem", "space")
"""Attributes that differ where each environment of a batch has a problem of its own."""


class NativeVecEnv(VecEnv):
    """n environments of a batch, for agents that know single ones in a ``DummyVecEnv``.

    Agents see what ``make_vec_env`` shows them of n single environments, to the last bit: an
    episode that ends starts anew in the same step, with the last observation in its info
    (``terminal_observation``) and what a ``Monitor`` reports of it (``episode``: return, steps,
    seconds). Only the infos of episodes that go on differ: they are empty, as agents read masks
    from ``env_method("action_masks")``, and making them would take a loop over environments.

    Attributes are those of the single environment that the batch was made from, and cannot be set;
    those of its problem are each environment's own, where problems differ. Of methods there are
    ``action_masks``, ``plan`` and ``render``.

    Args:
        batch: a batch of this suite, or one with its ``env``, ``action_masks()`` (n, c) bool and
            partial resets, that resets itself in the same step.
        scale: what rewards are divided by for the agent; statistics are of the undivided ones.

    Raises:
        ValueError: a batch of another autoreset mode.
    """

    def __init__(self, batch: Any, scale: float = 1.0) -> None:
        mode = batch.metadata["autoreset_mode"]
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"agents need a batch of the autoreset mode {AutoresetMode.SAME_STEP.value!r}, "
                f"not {mode.value!r}"
            )
        self.batch, self.scale = batch, scale
        self._methods: dict[str, Callable[[list[int]], list[Any]]] = {
            "action_masks": self._action_masks,
            "plan": lambda rows: [self.batch.plan(row) for row in rows],
            "render": self._render,
        }
        self._returns = np.zeros(batch.num_envs)
        self._steps = np.zeros(batch.num_envs, dtype=np.int64)
        self._begin = time.time()
        self._actions: Any = None
        super().__init__(batch.num_envs, batch.single_observation_space, batch.single_action_space)
        self.metadata = batch.env.metadata

    def reset(self) -> VecEnvObs:
        """Start all episodes anew, with the seeds and options that are set.

        Raises:
            ValueError: environments have different options.
        """
        seeds = None if None in self._seeds else self._seeds
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ValueError("environments of a batch are reset with the same options")
        observation, infos = self.batch.reset(seed=seeds, options=options or None)
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = 0.0
        self._steps[:] = 0
        self.reset_infos = [{"action_mask": mask} for mask in infos["action_mask"]]
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions, (n,) whole numbers, for ``step_wait``."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Observations, rewards (n,) float32, ends (n,) bool and infos of the step."""
        observation, rewards, terminated, truncated, told = self.batch.step(self._actions)
        self._returns += rewards
        self._steps += 1
        dones = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = dones.nonzero()[0]
        if ended.size:
            seconds = round(time.time() - self._begin, 6)
            for row in ended.tolist():
                infos[row] = {
                    "action_mask": told["final_info"]["action_mask"][row],
                    "TimeLimit.truncated": bool(truncated[row] and not terminated[row]),
                    "terminal_observation": told["final_obs"][row],
                    "episode": {
                        "r": round(float(self._returns[row]), 6),
                        "l": int(self._steps[row]),
                        "t": seconds,
                    },
                }
                self.reset_infos[row] = {"action_mask": told["action_mask"][row]}
            self._returns[ended] = 0.0
            self._steps[ended] = 0
        return observation, (rewards / self.scale).astype(np.float32), dones, infos

    def replay(self, actions: Sequence[Sequence[int]]) -> VecEnvObs:
        """Bring every environment to where its own actions, legal ones, lead from a reset on.

        A batch takes no step of some environments alone. So the one with most actions begins; the
        others play anything, and are reset when they have to begin for all to arrive together.
        Every episode of an environment has to be of the same problem.

        Returns:
            the observations there.
        """
        observation = self.reset()
        counts = np.array([len(one) for one in actions])
        for left in range(counts.max(), -1, -1):
            begin = counts == left
            if begin.any():
                observation, _ = self.batch.reset(options={"reset_mask": begin})
                self._returns[begin] = 0.0
                self._steps[begin] = 0
            if left:
                step = self.batch.action_masks().argmax(axis=1)
                for row in np.flatnonzero(counts >= left).tolist():
                    step[row] = actions[row][-left]
                observation, *_ = self.step(step)
        return observation

    def close(self) -> None:
        """Close the batch."""
        self.batch.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of each environment, which ``render`` tiles."""
        return self.env_method("render")

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute, once for each environment that is asked for.

        Raises:
            AttributeError: there is none, or it is of a single environment's state.
        """
        rows = list(self._get_indices(indices))
        if attr_name in self._methods:
            return [partial(self._call, attr_name, row) for row in rows]
        if attr_name == "spec":  # the single environment was not made by gym.make
            return [self.batch.spec] * len(rows)
        if attr_name in OWN and hasattr(self.batch, "problems"):
            return [getattr(self.batch.problems.of[row], attr_name) for row in rows]
        value = None if attr_name.startswith("_") else getattr(self.batch.env, attr_name)
        if attr_name.startswith("_") or callable(value):
            raise AttributeError(f"environments of a batch have no {attr_name!r} of their own")
        return [value] * len(rows)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Not possible.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("environments of a batch share their attributes")

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """What a method returns for each environment; masks are rows of one array, (n, c) bool.

        Raises:
            AttributeError: another method than ``action_masks``, ``plan`` and ``render``.
            TypeError: these take no arguments.
        """
        if method_name not in self._methods:
            raise AttributeError(f"environments of a batch have no method {method_name!r}")
        if method_args or method_kwargs:
            raise TypeError(f"{method_name}() takes no arguments")
        return self._methods[method_name](list(self._get_indices(indices)))

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """True of ``Monitor`` alone, as its statistics are here."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def _call(self, name: str, row: int) -> Any:
        return self._methods[name]([row])[0]

    def _action_masks(self, rows: list[int]) -> list[np.ndarray]:
        masks = self.batch.action_masks()
        return list(masks) if len(rows) == self.num_envs else [masks[row] for row in rows]

    def _render(self, rows: list[int]) -> list[Any]:
        pictures = self.batch.render()
        return [None if pictures is None else pictures[row] for row in rows]


class ScaledReward(gym.RewardWrapper[Any, Any]):
    """Divides rewards by the largest return, so that networks see returns of at most one."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.scale = float(env.get_wrapper_attr("largest_return"))

    def reward(self, reward: Any) -> float:
        """The reward as the agent sees it."""
        return float(reward) / self.scale


def make_env(
    env_id: str, env_kwargs: dict[str, Any], seed: int, envs: int, native: bool = True
) -> VecEnv:
    """Environments side by side in this process: masks make subprocesses slower, not faster.

    Their rewards are scaled; what a ``Monitor`` reports is not. Environments of this suite are a
    native batch, others single ones in a ``DummyVecEnv``; agents cannot tell one from the other.

    Args:
        env_id: id of the environment.
        env_kwargs: its arguments.
        seed: of the first environment; the others count on from it.
        envs: how many.
        native: False takes single environments anyway.
    """
    if native and has_batch(env_id, env_kwargs):
        batch: Any = gym.make_vec(
            env_id,
            num_envs=envs,
            vectorization_mode="vector_entry_point",
            autoreset_mode=AutoresetMode.SAME_STEP,
            **{"render_mode": "rgb_array", **env_kwargs},
        )
        env = NativeVecEnv(batch, batch.env.largest_return)
        env.action_space.seed(seed)
        env.seed(seed)
        return env
    return make_vec_env(
        env_id, n_envs=envs, seed=seed, env_kwargs=env_kwargs, wrapper_class=ScaledReward
    )


def has_batch(env_id: str, env_kwargs: dict[str, Any]) -> bool:
    """Whether ``NativeVecEnv`` suits: a batch of this suite, and nothing wrapped around it."""
    spec = gym.registry.get(env_id.rpartition(":")[2])
    if spec is None or spec.additional_wrappers or spec.max_episode_steps is not None:
        return False
    entry = spec.vector_entry_point
    module = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    # Arguments of gym.make, which a batch does not take.
    wrapping = {"max_episode_steps", "disable_env_checker"} & env_kwargs.keys()
    return module.startswith("parenvs.envs.") and not wrapping


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: networks this small only lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
