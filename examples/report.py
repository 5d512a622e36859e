"""Trains PPO on generated problems with five seeds, and reports its score on other problems."""

import parenvs
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.play import Player
from parenvs.agents.learning.trainer import train

env_id, rows = "PipelinePlan-v0", {"rows": "ahead"}
agents = []
for seed in range(5):
    config = TrainConfig(env_id=env_id, env_kwargs=rows, agent="ppo", seed=seed, steps=100_000)
    agents.append(Player(train(config).algorithm, env_id))
print(parenvs.evaluate_set(agents, "plan-test", settings=rows))
