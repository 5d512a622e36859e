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


class Alone(own_agent.Reinforce):
    """Takes the statistics of the turns of one learner."""

    name = "alone"

    def moments(self, values):
        return float(values.mean()), float(values.std()), len(values)


class Buffered(own_agent.Reinforce):
    """Changes a buffer that a server does not hear of."""

    name = "buffered"

    def network(self):
        net = super().network()
        net.register_buffer("seen", torch.zeros(()))
        return net

    def learn(self, batch, progress):
        self.net.seen += 1.0
        return super().learn(batch, progress)


DIFFERENT, NOT_ONE = "after 1 updates learners have different networks", "is not that of one who"


@pytest.mark.parametrize(
    ("word", "kind", "words"),
    [("learners", Plain, "call self.step"), ("learners", Hidden, DIFFERENT),
     ("learners", Alone, NOT_ONE),
     *slow(("server", Plain, "call self.step"), ("server", Hidden, DIFFERENT),
           ("server", Alone, NOT_ONE), ("server", Buffered, NOT_ONE),
           ("stale", Hidden, DIFFERENT))],
)  # fmt: skip
def test_own_agent__what_other_learners_do_not_know_of_is_refused(word, kind, words):
    gym.register("Corridor-v0", entry_point=own_agent.Corridor)
    register_agent(kind)
    more = {"distribution": word}
    if word == "stale":
        more = {"distribution": "server", "staleness": 2}
    config = TrainConfig(env_id="Corridor-v0", agent=kind.name, steps=1024, learners=2, **more)
    with pytest.raises(ParenvsError, match=f"{kind.name}: .*{words}"):
        train(config, engine="local")
