"""The support of C51: what lies beyond it is told, and rewards seen can make it."""

import warnings

import numpy as np
import pytest
from cases import each

pytest.importorskip("sb3_contrib")

import torch
from mdp import GAMMA, TwoStates, agent
from stable_baselines3.common.vec_env import DummyVecEnv

from parenvs.agents.learning.rainbow import algorithm
from parenvs.agents.learning.rainbow.algorithm import Rainbow, longest, returns_within
from parenvs.agents.learning.rainbow.policy import beyond
from parenvs.errors import ParenvsError


@each(
    ("rewards", "gamma", "horizon", "bounds"),
    [
        ([-1.0, 0.0], 0.99, 500, (-(1 - 0.99**500) / 0.01, 0.0)),  # Acrobot
        ([-1.0, 0.0], 1.0, 500, (-500.0, 0.0)),
        ([1.0], 0.5, np.inf, (0.0, 2.0)),
        ([-1.0, 0.4], 0.0, 7, (-1.0, 0.4)),
        ([0.0], 0.9, 10, (-1.0, 1.0)),  # nothing was seen to tell
    ],
)
def test_returns_within__by_hand(rewards, gamma, horizon, bounds):
    assert returns_within(np.array(rewards), gamma, horizon) == pytest.approx(bounds)


def test_longest__episodes_of_each_environment():
    ends = np.array([[0, 1], [0, 0], [1, 0], [0, 0], [1, 0]])
    assert longest(ends) == 4  # the second environment's goes on
    assert longest(ends[:3]) == 3


def test_beyond__half_a_distance_is_near():
    """Atoms -1, 0, 1; what is moved by 0.4 stays, by 0.6 the last one leaves, by 3 all do."""
    support = torch.linspace(-1, 1, 3)
    chances = torch.tensor([[0.2, 0.3, 0.5]] * 4)
    moves = torch.tensor([[0.4], [0.6], [3.0], [-0.6]])
    each = [beyond(chances[[k]], moves[[k]], torch.ones(1, 1), support) for k in range(4)]
    assert each == pytest.approx([0, 0.5, 1, 0.2])
    assert beyond(chances, moves, torch.ones(4, 1), support) == pytest.approx(np.mean(each))


def seen(model):
    """Smallest and greatest reward in the buffer, and 0."""
    rewards = model.replay_buffer.rewards[: model.replay_buffer.size()]
    return min(0.0, rewards.min()), max(0.0, rewards.max())


def test_learn__takes_the_support_of_the_rewards_seen(tmp_path):
    """By the longest episode without a limit of the environment; it is saved with the agent."""
    model = agent(
        TwoStates(limit=5),
        distributional=True,
        learning_starts=30,
        gamma=1.0,
        v_min=None,
        v_max=None,
    )
    model.learn(40)
    low, high = seen(model)
    support = model.q_net.support
    assert support[[0, -1]].tolist() == pytest.approx([5 * low, 5 * high])
    assert torch.equal(support, model.q_net_target.support)
    model.save(tmp_path / "model")
    again = Rainbow.load(tmp_path / "model", env=TwoStates(limit=5))
    assert torch.equal(again.q_net.support, support)
    again.learn(40)  # the same for good
    assert torch.equal(again.q_net.support, support)
    half = agent(
        TwoStates(limit=5), distributional=True, learning_starts=30, v_min=-9.0, v_max=None
    )
    half.learn(40)
    assert half.q_net.support[0] == -9
    assert half.q_net.support[-1] == pytest.approx(seen(half)[1] / (1 - GAMMA))  # no limit
    wrong = agent(
        TwoStates(limit=5), distributional=True, learning_starts=30, v_min=99.0, v_max=None
    )
    with pytest.raises(ParenvsError, match="give v_min and v_max"):
        wrong.learn(40)


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "warned"), [(0.01, True), (50.0, False)])
def test_learn__warns_once_of_targets_beyond_the_support(monkeypatch, width, warned):
    monkeypatch.setattr(algorithm, "WATCHED", 10)
    model = agent(
        DummyVecEnv([lambda: TwoStates(limit=5)]), distributional=True, v_min=-width, v_max=width
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.learn(120)
    lines = [str(x.message) for x in said if "support of C51" in str(x.message)]
    assert len(lines) == warned
    if warned:
        assert "of the targets lie outside" in lines[0] and "-0.01 to 0.01" in lines[0]
