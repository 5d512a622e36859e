"""Trains PPO on generated problems with five seeds, and reports its regret on other problems."""

import parenvs
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.play import Player
from parenvs.agents.learning.trainer import train

agents = []
for seed in range(5):
    config = TrainConfig(
        env_id="PipelinePlan-v0",
        env_kwargs={"rows": "ahead"},
        agent="ppo",
        seed=seed,
        steps=100_000,
    )
    agents.append(Player(train(config).algorithm, "PipelinePlan-v0"))
print(parenvs.evaluate_set(agents, "plan-test"))
