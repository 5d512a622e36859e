"""PPO of RLlib with the module of its examples that masks actions."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from flat import Flat
from measure import ROOT, main

os.environ.update(RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_AUTH_MODE="disabled")
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.rl_modules.classes.action_masking_rlm import (
    ActionMaskingTorchRLModule,
)
from ray.tune.registry import register_env


def train(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Train, all in this process."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})  # fmt: skip
    # glue
    register_env(
        "flat",
        lambda c: Flat(gym.make(env_id, **kwargs), "observations", "action_mask", np.float32),
    )
    # end
    config = (
        PPOConfig()
        .environment("flat")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1)
        .learners(num_learners=0)
        .training(train_batch_size=1024, minibatch_size=256, num_epochs=4, gamma=1.0)
        # glue
        .rl_module(rl_module_spec=RLModuleSpec(module_class=ActionMaskingTorchRLModule))
        # end
    )
    agent, done = config.build_algo(), 0
    while done < steps:
        agent.train()
        done += 1024
    agent.stop()
    ray.shutdown()
    return done


if __name__ == "__main__":
    main("ray", train, __file__, flat=True)
