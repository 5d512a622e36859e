"""PPO of Stable-Baselines3, its environments in processes of their own."""

from __future__ import annotations

from typing import Any

from measure import Tick, main
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv
from with_sb3 import AT_ONCE, learn


def train(env_id: str, kwargs: dict[str, Any], tick: Tick) -> None:
    """Train."""
    env = make_vec_env(
        env_id, n_envs=AT_ONCE, seed=0, env_kwargs=kwargs, vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"start_method": "fork"},
    )  # fmt: skip
    learn(env_id, env, tick)


if __name__ == "__main__":
    main("sb3-contrib", train, __file__)
