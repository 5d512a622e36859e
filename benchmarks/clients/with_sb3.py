"""MaskablePPO of sb3-contrib, which asks the environment for ``action_masks`` itself."""

from __future__ import annotations

from typing import Any

from measure import main
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env


def train(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Train."""
    env = make_vec_env(env_id, n_envs=8, seed=0, env_kwargs=kwargs)
    # glue
    policy = "MultiInputPolicy"
    # end
    agent = MaskablePPO(policy, env, n_steps=128, batch_size=256, gamma=1.0, seed=0, device="cpu")
    return agent.learn(steps).num_timesteps


if __name__ == "__main__":
    main("sb3-contrib", train, __file__)
