import gymnasium as gym
import numpy as np
import pytest
import toys
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from parenvs.wrappers import MaskInObservation


@pytest.fixture
def env(tmp_path):
    return MaskInObservation(gym.make("PipelineCut-v0", **toys.balanced().kwargs(tmp_path)))


def test_wrappers__spec_round_trip(env):
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert isinstance(again, MaskInObservation)
    assert again.observation_space == env.observation_space
    assert again.reset()[0].keys() == env.reset()[0].keys()


def test_wrappers__mask_in_observation(env):
    space = env.observation_space["action_mask"]
    assert space == spaces.Box(0, 1, (5,), np.int8)
    observation, info = env.reset(seed=0)
    assert observation["action_mask"].tolist() == [1, 1, 0, 0, 0]
    for action, mask, done in ((1, [0, 0, 1, 1, 1], False), (3, [1] * 5, True)):
        assert np.array_equal(observation["action_mask"], info["action_mask"])
        assert env.observation_space.contains(observation)
        assert observation.keys() == {"features", "cuts", "step", "action_mask"}
        observation, reward, terminated, _, info = env.step(action)
        assert observation["action_mask"].tolist() == mask
        assert env.action_masks().tolist() == list(map(bool, mask))
        assert terminated == done
    assert reward == pytest.approx(8 / 9)


def test_wrappers__mask_in_observation_copies(env):
    observation, info = env.reset()
    observation["action_mask"][:] = 1
    assert info["action_mask"].tolist() == [1, 1, 0, 0, 0]
    assert env.action_masks().tolist() == [True, True, False, False, False]
    observation, *_, info = env.step(0)
    before = info["action_mask"].tolist()
    observation["action_mask"][:] = 7
    assert info["action_mask"].tolist() == before
    assert env.step(0)[1] == -1


def test_wrappers__mask_in_observation_refuses_other_spaces():
    with pytest.raises(TypeError, match="Dict observation"):
        MaskInObservation(gym.make("CartPole-v1"))
