"""MaskablePPO (sb3-contrib) with settings for each environment of the suite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

POLICY = "MultiInputPolicy"
ENVS = 64
"""Environments side by side. Many short episodes an update, rather than few, keep the policy from
settling before it has seen enough cuts."""
EPISODES = 8
"""Episodes of each environment in an update."""


def settings(episode_steps: int) -> dict[str, Any]:
    """Keyword arguments of MaskablePPO for an environment with episodes of this many steps.

    Returns are undiscounted: only the last step of an episode pays.
    """
    steps = EPISODES * episode_steps
    return {
        "n_steps": steps,
        "batch_size": ENVS * steps // 4,
        "n_epochs": 6,
        "learning_rate": 1e-3,
        "gamma": 1.0,
        "gae_lambda": 1.0,
        "ent_coef": 0.02,
        "device": "cpu",
    }


def make_env(env_id: str, env_kwargs: dict[str, Any], seed: int, envs: int = ENVS) -> VecEnv:
    """Environments side by side in this process: masks make subprocesses slower, not faster."""
    return make_vec_env(env_id, n_envs=envs, seed=seed, env_kwargs=env_kwargs)


def make_model(env: VecEnv, episode_steps: int, seed: int, **overrides: Any) -> MaskablePPO:
    """A fresh agent; ``overrides`` replace single settings."""
    return MaskablePPO(POLICY, env, seed=seed, **{**settings(episode_steps), **overrides})


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: networks this small only lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
