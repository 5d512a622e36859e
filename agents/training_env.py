"""The environments that agents train on: side by side, rewards scaled, torch on one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from parenvs.agents.native_vec_env import NativeVecEnv


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
