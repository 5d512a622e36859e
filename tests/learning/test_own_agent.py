"""The example of an agent and an environment of one's own."""

from pathlib import Path

import gymnasium as gym
import pytest
import torch

pytest.importorskip("sb3_contrib")

import own_agent


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setattr("parenvs.agents.learning.algorithm._registered", {})
    yield
    del gym.registry["Corridor-v0"]


def weights(trained):
    return torch.cat([each.detach().flatten() for each in trained.algorithm.weights])


@pytest.mark.thorough
def test_example__learns_in_a_hundred_lines():
    (trained,) = own_agent.main("single", steps=4096)
    first, last = trained.curve[0][1], trained.curve[-1][1]
    assert last > 0.95 > 0.8 > first
    lines = Path(own_agent.__file__).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100


@pytest.mark.slow
def test_example__is_the_same_under_other_words():
    one, *others = own_agent.main("single", "actors", "learners", "server", steps=1024)
    expected = weights(one)
    assert (expected - weights(own_agent.main("single", steps=1)[0])).abs().max() > 1e-3
    for other in others:
        assert (weights(other) - expected).abs().max() < 1e-5
