"""Trains PPO on generated problems with five seeds, and reports its regret on a thousand others."""

import parenvs
from parenvs.agents.learning.train import Config, train

agents = []
for seed in range(5):
    config = Config("PipelinePlan-v0", {"draw": 2}, seed=seed, steps=100_000)
    result, agent = train(config)
    agents.append(agent)
print(parenvs.evaluate_set(agents, "plan-test"))
