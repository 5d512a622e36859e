"""MaskablePPO of sb3-contrib on the native batch."""

from __future__ import annotations

from typing import Any

from measure import main
from sb3_contrib import MaskablePPO

# glue
from parenvs.agents.learning.vec_env import make_env

# end


def train(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Train."""
    # glue
    env = make_env(env_id, kwargs, seed=0, envs=64)
    policy = "MultiInputPolicy"
    # end
    agent = MaskablePPO(policy, env, n_steps=16, batch_size=256, gamma=1.0, seed=0, device="cpu")
    return agent.learn(steps).num_timesteps


if __name__ == "__main__":
    main("sb3-contrib", train, __file__)
