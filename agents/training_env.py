"""The environments that agents train on: side by side, rewards scaled, torch on one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv


class ScaledReward(gym.RewardWrapper[Any, Any]):
    """Divides rewards by the largest return, so that networks see returns of at most one."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.scale = float(env.get_wrapper_attr("largest_return"))

    def reward(self, reward: Any) -> float:
        """The reward as the agent sees it."""
        return float(reward) / self.scale


def make_env(env_id: str, env_kwargs: dict[str, Any], seed: int, envs: int) -> VecEnv:
    """Environments side by side in this process: masks make subprocesses slower, not faster.

    Their rewards are scaled; what a ``Monitor`` reports is not.
    """
    return make_vec_env(
        env_id, n_envs=envs, seed=seed, env_kwargs=env_kwargs, wrapper_class=ScaledReward
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: networks this small only lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
