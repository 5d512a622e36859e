"""Train PPO on generated problems.

An agent that plans should plan problems that it has not seen. `PipelinePlan-v0` generates them.
This tutorial trains PPO on it, and measures it on a set that is kept for choosing settings. It
needs the extra `agents`.
"""

import gymnasium as gym
import numpy as np

import parenvs
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.play import Player
from parenvs.agents.learning.trainer import progress, train

STEPS = 6_000
"""Environment steps; a run that is reported takes 100,000 or more."""

# %% One episode by hand
# Each step chooses where the next stage begins, first in the chain, then among the devices. Feature
# 0 of an action compares the plans that follow if the rest is cut into even shares.

env = gym.make("PipelinePlan-v0", rows="ahead")
observation, info = env.reset(seed=0)
print("problem:", info["instance"])
over, steps = False, 0
while not over:
    legal = np.flatnonzero(info["action_mask"])
    action = legal[observation["actions"][legal, 0].argmax()]
    observation, reward, over, _, info = env.step(action)
    steps += 1
print(f"{steps} choices: {info['cost']:.3f} s per step, efficiency {reward:.3f}")

# %% Train
# `train` takes care of native batches, masks and the network, and says how far it is. The same from
# the command line: `parenvs train pipeline --seed 0 --steps 100000 --out runs/ppo-0`.

config = TrainConfig(
    env_id="PipelinePlan-v0", env_kwargs={"rows": "ahead"}, agent="ppo", seed=0, steps=STEPS
)
agent = Player(train(config, say=progress).algorithm, config.env_id)

# %% Measure
# `evaluate_set` plays every problem of a set once, by the best actions of the policy. The
# score of a plan is the optimum's step time over its own. Choose settings on
# `plan-validation`, and report `plan-test` once, at the end.

learned = parenvs.evaluate_set(agent, "plan-validation", settings={"rows": "ahead"})
print("PPO: ", learned)

# %% Compare
# A figure alone says little. The even cut is what people take who do not plan.

even = parenvs.evaluate_set("even", "plan-validation")
print("even:", even)
better = learned.improvement_over(even)[0]
print(f"PPO has the smaller gap on {better:.0%} of the problems")
