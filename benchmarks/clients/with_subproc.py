"""MaskablePPO of sb3-contrib, its environments in processes of their own."""

from __future__ import annotations

from typing import Any

from measure import main
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv


def train(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Train; processes are forked, so that what they take is counted when they have ended."""
    env = make_vec_env(
        env_id, n_envs=8, seed=0, env_kwargs=kwargs, vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"start_method": "fork"},
    )  # fmt: skip
    # glue
    policy = "MultiInputPolicy"
    # end
    agent = MaskablePPO(policy, env, n_steps=128, batch_size=256, gamma=1.0, seed=0, device="cpu")
    done = agent.learn(steps).num_timesteps
    env.close()
    return done


if __name__ == "__main__":
    main("sb3-contrib", train, __file__)
