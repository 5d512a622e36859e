"""MaskablePPO of sb3-contrib on the native batch."""

from __future__ import annotations

from typing import Any

from measure import ENVS, Tick, main, masked
from stable_baselines3.common.env_util import make_vec_env
from with_sb3 import learn

# glue
from parenvs.agents.learning.sb3 import make_env

# end


def train(env_id: str, kwargs: dict[str, Any], tick: Tick) -> None:
    """Train."""
    env: Any = None
    # glue
    if masked(env_id):
        env = make_env(env_id, kwargs, seed=0, envs=ENVS)
    # end
    env = env or make_vec_env(env_id, n_envs=ENVS, seed=0, env_kwargs=kwargs)
    learn(env_id, env, tick)


if __name__ == "__main__":
    main("sb3-contrib", train, __file__)
