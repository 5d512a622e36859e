"""An agent of one's own, REINFORCE, in an environment of one's own, distributed by a word.

What ``Algorithm`` offers is all that it needs: ``step`` goes down the mean of its turns' losses,
``moments`` are of the turns of all learners. So ``--distribution`` changes nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces

from parenvs import register_agent
from parenvs.agents.learning.algorithm import Algorithm, Batch, Settings
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.net import log_policy
from parenvs.agents.learning.trainer import train


@dataclass(frozen=True, kw_only=True)
class ReinforceSettings(Settings):
    """Settings of REINFORCE, beside those that all agents have."""

    envs: int = 16
    turns: int = 32
    rate: float = 1e-2
    discount: float = 0.99


class Reinforce(Algorithm):
    """REINFORCE: the chances of actions rise with what the rest of their episode returned."""

    name = "reinforce"
    settings_class = ReinforceSettings
    settings: ReinforceSettings

    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        """Learn from the turns of all episodes that end in the batch."""
        self.slow(progress)
        returns = torch.zeros_like(batch.rewards)
        known = torch.zeros_like(batch.ended)
        coming, ends = returns[0].clone(), known[0].clone()
        for turn in range(len(returns) - 1, -1, -1):
            goes_on = self.settings.discount * (~batch.ended[turn]).float()
            coming = batch.rewards[turn] + goes_on * coming
            ends = ends | batch.ended[turn]
            returns[turn], known[turn] = coming, ends
        mean, deviation, count = self.moments(returns[known])
        if not count:
            return {}
        logs, _ = log_policy(self.net, batch.seen.at(known).to(self.device))
        own = logs.gather(1, batch.actions[known].to(self.device)[:, None])[:, 0]
        advantages = (returns[known] - mean) / (deviation + 1e-8)
        self.step(-advantages.to(self.device) * own)
        return {"return": mean}


class Corridor(gym.Env[int, int]):
    """Go right: 1 at the end of six places, and nothing after 20 turns."""

    observation_space, action_space = spaces.Discrete(6), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Begin in the first place."""
        super().reset(seed=seed)
        self.place = self.turn = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Go right by 1, left by 0."""
        self.place, self.turn = max(self.place + 2 * int(action) - 1, 0), self.turn + 1
        is_there = self.place == 5
        return self.place, float(is_there), is_there, self.turn == 20 and not is_there, {}


def main(*distributions: str, steps: int = 8192) -> list[Any]:
    """Train by each distribution; return what was trained."""
    gym.register("Corridor-v0", entry_point=Corridor)
    register_agent(Reinforce)
    trained = []
    for distribution in distributions:
        config = TrainConfig(
            env_id="Corridor-v0", agent="reinforce", steps=steps, distribution=distribution
        )
        trained.append(train(config))
        print(f"{distribution}: mean return {trained[-1].curve[-1][1]:.3f}")
    return trained


if __name__ == "__main__":
    main("single", "learners")
