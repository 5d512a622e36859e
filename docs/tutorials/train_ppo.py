"""Train PPO on generated problems.

An agent that plans should plan problems that it has not seen. `PipelinePlan-v0` draws a new
problem at every reset. This tutorial trains PPO on drawn problems, and measures it on a
set that is kept for choosing settings. It needs the extra `agents`.
"""

import gymnasium as gym

import parenvs
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.player import Player
from parenvs.agents.learning.trainer import progress, train

STEPS = 20_000
"""Environment steps; a run that is reported takes 100,000 or more."""

# %% One episode by hand
# The environment asks for a cut, then for devices, in turn. The mask leaves exactly the choices
# from which a legal plan can still be completed, so even random play never fails.

env = gym.make("PipelinePlan-v0", draw=2)  # problems by number, the same for every user
observation, info = env.reset(seed=0)
print("problem:", info["instance"])
over, steps = False, 0
while not over:
    action = env.action_space.sample(info["action_mask"])
    observation, reward, over, _, info = env.step(action)
    steps += 1
print(f"{steps} steps, then the reward: {reward:.3f} of a step without bubbles")

# %% Train
# `train` takes care of native batches, masks and the network, and says how far it is. The same from
# the command line: `parenvs train pipeline --seed 0 --steps 20000 --out runs/ppo-0`.

config = TrainConfig(
    env_id="PipelinePlan-v0", env_kwargs={"draw": 2}, agent="ppo", seed=0, steps=STEPS
)
agent = Player(train(config, say=progress).algorithm, config.env_id)

# %% Measure
# `evaluate_set` plays every problem of a set once, by the best actions of the policy. The
# regret is the share of the proven optimum's return that is missing. Choose settings on
# `plan-validation`, and report `plan-test` once, at the end.

learnt = parenvs.evaluate_set(agent, "plan-validation")
print("PPO: ", learnt)

# %% Compare
# A figure alone says little. The even cut is what people take who do not plan.

even = parenvs.evaluate_set("even", "plan-validation")
print("even:", even)
better = learnt.improvement_over(even)[0]
print(f"PPO has the smaller regret on {better:.0%} of the problems")
