"""Two agents that are paid 1 each where both do what the first one sees; one leaves early."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from parenvs.envs.env import ParallelVectorEnv


class Pairs(ParallelEnv):
    """``one`` sees a number from 0 to 2 and ``two`` its first bit alone, masked or not."""

    metadata = {"name": "pairs"}  # noqa: RUF012
    possible_agents = ["one", "two"]  # noqa: RUF012

    def __init__(self, cut=False, leaves=True):
        self.cut, self.leaves, self.agents = cut, leaves, []

    def observation_space(self, agent):
        return spaces.Discrete(3) if agent == "one" else spaces.Dict(
            {"bit": spaces.Box(0, 1, (1,)), "action_mask": spaces.Box(0, 1, (2,), np.int8)}
        )  # fmt: skip

    def action_space(self, agent):
        return spaces.Discrete(3, start=5) if agent == "one" else spaces.Discrete(2)

    def _seen(self):
        mask = np.array([1, self.turn != 1], np.int8)
        two = {"bit": np.array([self.number % 2], np.float32), "action_mask": mask}
        return {"one": self.number, "two": two}

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.turn = list(self.possible_agents), 0
        self.number = int(self.rng.integers(3))
        return self._seen(), {"one": {}, "two": {}}

    def step(self, actions):
        right = actions["one"] - 5 == self.number
        right &= "two" not in actions or self.turn == 1 or actions["two"] == self.number % 2
        rewards = dict.fromkeys(self.agents, float(right))
        self.turn, agents = self.turn + 1, self.agents
        self.number = int(self.rng.integers(3))
        over = {"one": self.turn == 4, "two": self.turn == (3 if self.leaves else 4)}
        ended = {name: over[name] and not (self.cut and self.turn == 4) for name in agents}
        cut = {name: over[name] and not ended[name] for name in agents}
        self.agents = [name for name in agents if not over[name]]
        seen = self._seen()
        return {name: seen[name] for name in agents}, rewards, ended, cut, {x: {} for x in agents}


def register():
    """Make ``Pairs-v0`` known."""
    gym.register("Pairs-v0", vector_entry_point=partial(ParallelVectorEnv, Pairs))
