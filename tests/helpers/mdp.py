"""A decision process with two states, in which illegal actions look best, and agents for it."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from parenvs.agents.learning.rainbow.algorithm import Rainbow

MASKS = np.array([[True, True, False], [False, True, True]])
STEPS = {  # state, action: reward, next state, terminal
    (0, 0): (0.0, 1, False),
    (0, 1): (0.5, 0, False),
    (1, 1): (1.0, 1, True),
    (1, 2): (0.25, 0, False),
}
GAMMA = 0.5
OPTIMAL = {(0, 0): 0.5, (0, 1): 1.0, (1, 1): 1.0, (1, 2): 0.75}
"""Q-values with discount ``GAMMA``: V(0) = V(1) = 1. Staying in state 0 is best, for ever."""


class TwoStates(gym.Env):
    """Illegal actions raise. Truncated after ``limit`` steps, in any state."""

    def __init__(self, limit=7, dictionary=False, masked=True, start=0):
        self.action_space = spaces.Discrete(3)
        box = spaces.Box(0, 1, (2,), np.float32)
        self.dictionary, self.masked, self.limit, self.start = dictionary, masked, limit, start
        self.observation_space = (
            spaces.Dict({"one": box, "index": spaces.Discrete(2)}) if dictionary else box
        )
        self.state, self.taken, self.seen = start, 0, []

    def observe(self):
        one = np.eye(2, dtype=np.float32)[self.state]
        return {"one": one, "index": np.int64(self.state)} if self.dictionary else one

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.taken = self.start, 0
        return self.observe(), self.info()

    def step(self, action):
        assert MASKS[self.state][action], f"illegal action {action} in state {self.state}"
        self.seen.append((self.state, int(action)))
        reward, self.state, terminal = STEPS[self.state, int(action)]
        self.taken += 1
        truncated = not terminal and self.taken == self.limit
        return self.observe(), reward, terminal, truncated, self.info()

    def info(self):
        return {"action_mask": MASKS[self.state].astype(np.int8)}

    def action_masks(self):
        return MASKS[self.state]


class Broken(gym.Wrapper):
    """Gives the mask that it is told to."""

    def __init__(self, env, mask):
        super().__init__(env)
        self.mask = np.array(mask)

    def action_masks(self):
        return self.mask


OFF = {
    "double_q": False,
    "dueling": False,
    "prioritized": False,
    "n_steps": 1,
    "distributional": False,
    "noisy": False,
}
ON = {
    "double_q": True,
    "dueling": True,
    "prioritized": True,
    "n_steps": 3,
    "distributional": True,
    "noisy": True,
}


def agent(env=None, **options):
    """All switches off, and networks that are tables: one linear layer on one-hot states."""
    env = TwoStates() if env is None else env
    settings = {
        **OFF, "gamma": GAMMA, "learning_starts": 0, "batch_size": 16, "buffer_size": 500,
        "policy_kwargs": {"net_arch": []}, "seed": 0, "device": "cpu", "n_atoms": 21,
        "v_min": -10.0, "v_max": 10.0,
    }  # fmt: skip
    several = getattr(env, "envs", [env])
    if isinstance(several[0].observation_space, spaces.Dict):
        return Rainbow("MultiInputPolicy", env, **{**settings, **options})
    return Rainbow("MlpPolicy", env, **{**settings, **options})


def put(layer, table):
    """Make a linear layer give (2, outputs) numbers for the two states."""
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(np.array(table), dtype=torch.float32).T)
        layer.bias.zero_()


def put_q(network, table):
    """Make a network give the Q-values of a (2, 3) table.

    Distributions: nearly all probability is at one atom; the support is -10, -9, ..., 10.
    """
    table = np.array(table, dtype=float)
    if network.atoms > 1:
        atoms = np.rint(table + 10).astype(int)
        logits = (np.arange(21) == atoms[:, :, None]) * 50.0
        if not network.dueling:
            return put(network.q_net[0], logits.reshape(2, -1))
        put(network.value[0], logits.mean(axis=1))
        shift = np.random.default_rng(0).normal(size=(2, 1, 21))  # of no consequence
        return put(network.advantage[0], (logits + shift).reshape(2, -1))
    if not network.dueling:
        return put(network.q_net[0], table)
    # The network takes the mean over all actions off the advantages: 7 is of no consequence.
    put(network.value[0], table.mean(axis=1, keepdims=True))
    return put(network.advantage[0], table + np.array([[7.0], [-7.0]]))


def all_q(network):
    """(2, 3) Q-values of the two states."""
    with torch.no_grad():
        return network(torch.eye(2)).numpy()
