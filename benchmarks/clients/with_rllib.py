"""PPO of RLlib's new stack on the native batch, with the network of ``parenvs train``."""

from __future__ import annotations

import os
from typing import Any

import torch
from measure import BATCH, ENVS, EPOCHS, MINIBATCH, TURNS, WIDTHS, Tick, discount, main, masked

os.environ.update(RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_AUTH_MODE="disabled")
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule

from parenvs.agents.learning.net import Lens, RowsNet, Seen, log_policy


# glue
class Rows(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]
    """The network of ``parenvs train``, which rates rows; its one forward gives values, too."""

    def setup(self) -> None:
        """Make the network."""
        self.net = RowsNet(Lens(self.observation_space, self.action_space))

    def _forward(self, batch: dict[str, Any], **more: Any) -> dict[str, torch.Tensor]:
        logs, values = log_policy(self.net, self._seen(batch))
        return {Columns.ACTION_DIST_INPUTS: logs, Columns.EMBEDDINGS: values}

    def _forward_exploration(self, batch: dict[str, Any], **more: Any) -> dict[str, torch.Tensor]:
        logs, _ = log_policy(self.net, self._seen(batch))
        return {Columns.ACTION_DIST_INPUTS: logs}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """Return the values of turns."""
        return log_policy(self.net, self._seen(batch))[1] if embeddings is None else embeddings

    def _seen(self, batch: dict[str, Any]) -> Seen:
        seen = batch[Columns.OBS]
        return Seen(seen["actions"], seen["context"], seen["action_mask"].bool())


# end


def train(env_id: str, kwargs: dict[str, Any], tick: Tick) -> None:
    """Train, all in this process."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    plain = DefaultModelConfig(fcnet_hiddens=WIDTHS, fcnet_activation="tanh", vf_share_layers=False)
    spec = RLModuleSpec(module_class=Rows) if masked(env_id) else RLModuleSpec(model_config=plain)
    config = (
        PPOConfig()
        .environment(env_id, env_config=kwargs)
        .env_runners(
            num_env_runners=0, num_envs_per_env_runner=ENVS, rollout_fragment_length=TURNS,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .learners(num_learners=0)
        .rl_module(rl_module_spec=spec)
        .training(
            train_batch_size_per_learner=BATCH, minibatch_size=MINIBATCH, num_epochs=EPOCHS,
            gamma=discount(env_id), lambda_=0.95, clip_param=0.2, use_kl_loss=False, grad_clip=0.5,
            vf_loss_coeff=0.5, entropy_coeff=0.003, lr=1e-3,
        )
    )  # fmt: skip
    agent, done = config.build_algo(), 0
    while True:
        agent.train()
        # The first turn of an episode, in which nothing is played, is not counted.
        done = int(agent.env_runner.num_env_steps_sampled_lifetime)
        tick(done)


if __name__ == "__main__":
    main("ray", train, __file__)
