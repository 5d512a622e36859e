"""MaskablePPO (sb3-contrib) with settings for each environment of the suite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

POLICY = "MultiInputPolicy"
EPISODES = 8
"""Episodes of each environment in an update, for pipelines."""
ENVS = {"PipelineCut-v0": 64, "OperatorPartition-v0": 8, "DataParallel-v0": 8}
"""Environments side by side. Pipelines: many short episodes an update, rather than few, keep the
policy from settling before it has seen enough cuts. Partitions: hundreds of decisions that pay one
by one are learned by many small updates."""


def settings(env_id: str, episode_steps: int) -> dict[str, Any]:
    """Keyword arguments of MaskablePPO for an environment with episodes of this many steps.

    Returns are undiscounted. A cut's worth shows in the last step of an episode only; a decision on
    a class pays at once.
    """
    common = {"n_epochs": 6, "gamma": 1.0, "device": "cpu"}
    if env_id == "PipelineCut-v0":
        steps = EPISODES * episode_steps
        return {
            **common,
            "n_steps": steps,
            "batch_size": ENVS[env_id] * steps // 4,
            "learning_rate": 1e-3,
            "gae_lambda": 1.0,
            "ent_coef": 0.02,
        }
    return {
        **common,
        "n_steps": 64,
        "batch_size": ENVS.get(env_id, 8) * 64 // 4,
        "learning_rate": 3e-3,
        "gae_lambda": 0.9,
        "ent_coef": 0.0,
    }


class ScaledReward(gym.RewardWrapper[Any, Any]):
    """Divides rewards by the largest return, so that networks see returns of at most one."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.scale = float(env.get_wrapper_attr("largest_return"))

    def reward(self, reward: Any) -> float:
        """The reward as the agent sees it."""
        return float(reward) / self.scale


def make_env(env_id: str, env_kwargs: dict[str, Any], seed: int, envs: int | None = None) -> VecEnv:
    """Environments side by side in this process: masks make subprocesses slower, not faster.

    Their rewards are scaled; what a ``Monitor`` reports is not.
    """
    count = ENVS.get(env_id, 8) if envs is None else envs
    return make_vec_env(
        env_id, n_envs=count, seed=seed, env_kwargs=env_kwargs, wrapper_class=ScaledReward
    )


def make_model(
    env: VecEnv, env_id: str, episode_steps: int, seed: int, **overrides: Any
) -> MaskablePPO:
    """A fresh agent; ``overrides`` replace single settings."""
    return MaskablePPO(POLICY, env, seed=seed, **{**settings(env_id, episode_steps), **overrides})


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: networks this small only lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
