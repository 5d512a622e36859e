"""The example of an agent and an environment of one's own."""

from pathlib import Path

import gymnasium as gym
import pytest
import torch
from cases import slow

pytest.importorskip("sb3_contrib")

import own_agent

from parenvs import register_agent
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.trainer import train
from parenvs.errors import ParenvsError


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


class Plain(own_agent.Reinforce):
    """Steps as in any loop of PyTorch, of which other learners hear nothing."""

    name = "plain"

    def step(self, losses):
        self.optimizer.zero_grad()
        losses.mean().backward()
        self.optimizer.step()


class Hidden(own_agent.Reinforce):
    """Changes weights by what one learner has played, without an optimizer."""

    name = "hidden"

    def learn(self, batch, progress):
        with torch.no_grad():
            self.weights[0].add_(batch.actions.double().mean().float())
        return {}


@pytest.mark.parametrize("word", ["learners", *slow("server")])
@pytest.mark.parametrize(
    ("kind", "words"),
    [(Plain, "call self.step"), (Hidden, "after 1 updates learners have different networks")],
)
def test_own_agent__what_other_learners_do_not_know_of_is_refused(word, kind, words):
    gym.register("Corridor-v0", entry_point=own_agent.Corridor)
    register_agent(kind)
    config = TrainConfig(
        env_id="Corridor-v0", agent=kind.name, steps=1024, distribution=word, learners=2
    )
    with pytest.raises(ParenvsError, match=f"{kind.name}: .*{words}"):
        train(config, engine="local")
