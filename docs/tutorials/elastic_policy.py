"""Plan on nodes that come and go.

On spot machines nodes leave and join. After each event the question is which plan comes next,
given what has to be moved. That is a Markov decision process, and this tutorial writes a policy
for it, and compares it with hindsight. The last part needs the extra `agents`.
"""

import gymnasium as gym
import numpy as np

import parenvs  # noqa: F401 (registers the environments)
from parenvs.agents.elastic.policies import Fastest, Hysteresis
from parenvs.tasks.elastic.problem import follow, hindsight
from parenvs.tasks.elastic.problems import load_elastic

STEPS = 12_000
"""Environment steps of the training; a run that is reported takes a million."""

# %% The problem
# A trace of 11 hours of spot nodes, and a model whose steps were measured on such nodes.

problem = load_elastic("p3", "gpt-1.5b")
course = problem.drawn(seed=0)
print(f"{problem.intervals} intervals, {course.nodes.min()} to {course.nodes.max()} nodes")

# %% A policy
# A policy chooses a plan at every interval. It sees how many nodes there are, which plan is in
# force and what happened to it. The one below changes only if it must, or if the gain of half
# an hour pays for the change.


class Patient(Fastest):
    """Changes if the samples gained in 30 intervals exceed those lost by the change."""

    name = "patient"

    def choose(self, moment, joined, left):
        """See ``parenvs.tasks.elastic.problem.Policy``."""
        fits = self.problem.fits(moment.nodes)
        earned = self.problem.earned[moment.event, moment.plan]
        rate = self.problem.library.rate
        total = earned + 30 * rate * self.problem.seconds
        return int(np.where(fits, total, -np.inf).argmax())


# %% Against hindsight
# The hindsight optimum knows the whole course beforehand; no policy exceeds it.

best = hindsight(problem, course).total
for policy in (Fastest(), Hysteresis(), Patient()):
    run = follow(problem, course, policy)
    print(f"{policy.name:10} {run.total / best:.3f} of what hindsight allows")

# %% As an environment
# The same problem for agents: an action is the index of a plan, or the last one, which keeps the
# plan and has a checkpoint written.

env = gym.make("ElasticPlan-v2", instance="p3", model="gpt-1.5b")
observation, info = env.reset(seed=0)
observation, reward, over, _, info = env.step(env.action_space.sample(info["action_mask"]))
print({key: value.shape for key, value in observation.items()})

# %% Train
# An agent begins with the rule of column 0, and learns on drawn courses. It is judged on
# `elastic-validation`, as a share of hindsight.

from parenvs.agents.learning.config import TrainConfig  # noqa: E402
from parenvs.agents.learning.trainer import train  # noqa: E402

config = TrainConfig(env_id="ElasticPlan-v2", agent="group", steps=STEPS)
print(f"group: {train(config).result.value:.3f} of hindsight on courses that it has not seen")
