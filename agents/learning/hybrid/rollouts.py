"""Rollouts of three agents that take turns: every agent learns from its own turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer

from parenvs.tasks.hybrid.turns.actions import AGENT_OF, AGENTS


class AgentRollouts(MaskableDictRolloutBuffer):
    """The rollout buffer of MaskablePPO, with the advantages of each agent along its own turns.

    To an agent, a step leads from one of its turns to its next one, or to the end of the episode;
    its reward is what all agents were paid meanwhile. ``gamma`` and ``gae_lambda`` count such
    steps. An agent's last turn in a rollout that does not see what it leads to teaches nothing.
    Advantages are normalised over each agent's own turns, so MaskablePPO's
    ``normalize_advantage`` has to be off.
    """

    def compute_returns_and_advantage(
        self, last_values: torch.Tensor, dones: np.ndarray[Any, Any]
    ) -> None:
        """Fill advantages and returns, (steps, n), see ``RolloutBuffer``."""
        agents = np.array(AGENT_OF)[self.observations["turn"].argmax(axis=-1)]
        ended = np.concatenate([self.episode_starts[1:], dones[None]]).astype(bool)
        taught = np.zeros(agents.shape, dtype=bool)
        # Of each agent's next turn: value, advantage, rewards up to it, whether it was seen.
        value, advantage, rewards = np.zeros((3, len(AGENTS), self.n_envs))
        seen, every = np.zeros((len(AGENTS), self.n_envs), dtype=bool), np.arange(self.n_envs)
        for step in reversed(range(self.buffer_size)):
            over = ended[step]
            value[:, over] = advantage[:, over] = rewards[:, over] = 0.0
            seen[:, over] = True
            rewards += self.rewards[step]
            own = agents[step], every
            error = rewards[own] + self.gamma * value[own] - self.values[step]
            found = error + self.gamma * self.gae_lambda * advantage[own]
            taught[step] = seen[own]
            self.advantages[step] = np.where(taught[step], found, 0.0)
            value[own], advantage[own] = self.values[step], self.advantages[step]
            rewards[own], seen[own] = 0.0, True
        self.returns = self.advantages + self.values
        for agent in range(len(AGENTS)):
            turns = taught & (agents == agent)
            if turns.any():
                chosen = self.advantages[turns]
                self.advantages[turns] = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
