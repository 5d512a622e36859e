"""Trains PPO on the bank with five seeds, and reports its regret on a set of other problems."""

import parenvs
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.play import Player
from parenvs.agents.learning.trainer import train

agents = []
for seed in range(5):
    config = TrainConfig(env_id="PipelinePlan-v1", agent="ppo", seed=seed, steps=100_000)
    agents.append(Player(train(config).algorithm, "PipelinePlan-v1"))
print(parenvs.evaluate_set(agents, "plan-s16-test"))
