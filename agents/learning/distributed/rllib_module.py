"""What RLlib needs of this suite: native batches with masks, and the network of the PPO.

The network is that of ``MaskablePPO``, made by the same learner, so that its weights go both ways.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import (
    TARGET_NETWORK_ACTION_DIST_INPUTS,
    InferenceOnlyAPI,
    TargetNetworkAPI,
    ValueFunctionAPI,
)
from ray.rllib.core.rl_module.torch import TorchRLModule
from sb3_contrib import MaskablePPO

from parenvs.agents.learning.distributed.worker import LostError
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.learners import learner_of, plain

MASK = "action_mask"
"""Key of the masks in the observations."""


class MaskedBatch(gym.vector.VectorEnv[Any, Any, Any]):
    """A native batch whose observations have the masks, with scaled rewards and no infos.

    It keeps the episodes that have ended, which RLlib cuts where rollouts end.

    Args:
        config: the run's configuration.
        num_envs: number of environments.
    """

    def __init__(self, config: Config, num_envs: int) -> None:
        batch: Any = gym.make_vec(
            config.env_id,
            num_envs=num_envs,
            vectorization_mode="vector_entry_point",
            autoreset_mode=AutoresetMode.NEXT_STEP,
            mask_in_observation=True,
            **config.env_kwargs,
        )
        self.batch, self.num_envs, self.metadata = batch, num_envs, batch.metadata
        self.single_observation_space = batch.single_observation_space
        self.single_action_space = batch.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.scale = float(batch.largest_return)
        self._begun = np.zeros(num_envs, dtype=bool)
        self._running: list[list[int]] = [[] for _ in range(num_envs)]
        self._returns = np.zeros(num_envs)
        self._ended: list[tuple[float, list[int]]] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes; see Gymnasium."""
        observation, _ = self.batch.reset(seed=seed, options=options)
        self._running = [[] for _ in range(self.num_envs)]
        self._returns[:] = 0.0
        self._begun[:] = True
        return observation, {}

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step; see Gymnasium. What ended in the step before starts anew in this one."""
        observation, rewards, terminated, truncated, _ = self.batch.step(actions)
        for row in np.flatnonzero(self._begun).tolist():
            self._running[row].append(int(actions[row]))
        self._returns += rewards
        dones = terminated | truncated
        for row in np.flatnonzero(dones).tolist():
            self._ended.append((float(self._returns[row]), self._running[row]))
            self._running[row], self._returns[row] = [], 0.0
        self._begun = ~dones
        return observation, rewards / self.scale, terminated, truncated, {}

    def take(self) -> tuple[list[tuple[float, list[int]]], float]:
        """Return and actions of the episodes ended since the last call; the process's seconds."""
        ended, self._ended = self._ended, []
        return ended, time.process_time()


def make_batch(context: dict[str, Any]) -> Any:
    """Make a batch for RLlib.

    Args:
        context: ``config``, the run's configuration, and ``num_envs``.
    """
    import parenvs.envs  # noqa: F401  # registers the environments in RLlib's processes

    if "num_envs" not in context:
        raise LostError("RLlib asks for a single environment, which it does not play")
    return MaskedBatch(context["config"], context["num_envs"])


class MaskedModule(TorchRLModule, ValueFunctionAPI, TargetNetworkAPI, InferenceOnlyAPI):
    """The policy of ``MaskablePPO`` as a module of RLlib's new API stack, for APPO and IMPALA."""

    def setup(self) -> None:
        """Make the policy of the run's learner and seed."""
        config: Config = self.model_config["config"]
        spaces = dict(self.observation_space.spaces)
        del spaces[MASK]
        self.policy = policy_of(config, gym.spaces.Dict(spaces), self.action_space)

    def _forward(self, batch: dict[str, Any], **options: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: _logits(self.policy, batch[Columns.OBS])}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """(n,) values of the observations of a batch."""
        return self.policy.predict_values(_without_mask(batch[Columns.OBS])).squeeze(-1)

    def make_target_networks(self) -> None:
        """Make the policy that updates are held to."""
        self._target = make_target_network(self.policy)

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """The policy, and the one that updates are held to."""
        return [(self.policy, self._target)]

    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Logits of the policy that updates are held to."""
        return {TARGET_NETWORK_ACTION_DIST_INPUTS: _logits(self._target, batch[Columns.OBS])}

    def get_non_inference_attributes(self) -> list[str]:
        """What processes that only play do not need."""
        return ["_target"]


def policy_of(config: Config, observation_space: gym.Space[Any], action_space: Any) -> Any:
    """The policy of a run's ``MaskablePPO`` with its first weights."""
    learner = learner_of(config.agent)
    policy: Any = learner.policy(config.env_id)
    kind: Any = MaskablePPO.policy_aliases.get(policy, policy)
    options = learner.settings(plain(config.env_id), 1) | config.overrides
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return kind(
            observation_space, action_space, lambda _: 1e-3, **options.get("policy_kwargs", {})
        )


def _logits(policy: Any, observation: dict[str, Any]) -> torch.Tensor:
    """(n, c) log-probabilities; of illegal actions about the lowest number."""
    # The next action of an episode that has ended counts for nothing, but is drawn.
    mask = observation[MASK].bool()
    mask = mask | ~mask.any(dim=1, keepdim=True)
    return policy.get_distribution(_without_mask(observation), mask).distribution.logits


def _without_mask(observation: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in observation.items() if key != MASK}
