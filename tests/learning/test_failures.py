"""An environment that raises is made anew, and after four times a line ends the training."""

import gymnasium as gym
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

pytest.importorskip("sb3_contrib")

from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.trainer import train
from parenvs.errors import ParenvsError


def test_environments__that_raise_begin_anew_or_end_in_a_line():
    left = [0]

    class Failing(CartPoleEnv):
        def step(self, action):
            if left[0] and self.np_random.random() < 0.1:
                left[0] -= 1
                raise ZeroDivisionError("once in a while")
            return super().step(action)

    gym.register("Failing-v0", Failing, max_episode_steps=500)
    config = TrainConfig(env_id="Failing-v0", steps=256, settings={"envs": 8, "turns": 16})
    expected, left[0] = train(config).algorithm.net.state_dict(), 2
    found = train(config).algorithm.net.state_dict()
    assert left == [0] and all(torch.equal(found[x], expected[x]) for x in found)
    left[0] = 99
    with pytest.raises(ParenvsError, match=r"ZeroDivisionError: once .*, the 5th time since the"):
        train(config)
