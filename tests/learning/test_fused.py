"""``fused``: environments on tensors, with the policy in one loop."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("sb3_contrib")

from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.device import DeviceCartPole, Fused
from parenvs.agents.learning.play import Envs, Play, Share
from parenvs.agents.learning.team import Recipe
from parenvs.agents.learning.trainer import train
from parenvs.errors import ParenvsError

SETTINGS = {
    "ppo": {"envs": 6, "turns": 16, "turns_a_step": 32},
    "rainbow": {"envs": 6, "turns": 8, "first": 48, "minibatch": 16, "sync": 3},
    "group": {"envs": 6, "turns": 32, "copies": 2, "turns_a_step": 64},
}


class Short(DeviceCartPole):
    """Episodes are cut off soon."""

    limit = 25


@pytest.fixture(autouse=True)
def short():
    gym.register("Short-v0", vector_entry_point=Short)
    yield "Short-v0"
    del gym.registry["Short-v0"]


def test_cart__moves_as_gymnasium_s():
    env, ours = gym.make("CartPole-v1").unwrapped, DeviceCartPole(1)
    rng = np.random.default_rng(0)
    for _ in range(30):
        env.reset()
        env.state = states = rng.uniform(-1, 1, 4) * [2.3, 2.0, 0.2, 2.0]
        action = int(rng.integers(2))
        moved, paid, ended = ours.move(
            torch.tensor(states, dtype=torch.float32)[None], torch.tensor([action])
        )
        expected, reward, over, _, _ = env.step(action)
        assert np.allclose(moved[0], expected, atol=1e-5)
        assert (float(paid), bool(ended)) == (reward, over)


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(SETTINGS))
def test_fused__gives_the_weights_of_single(name, short):
    steps = 4 * SETTINGS[name]["envs"] * SETTINGS[name]["turns"]
    config = TrainConfig(env_id=short, agent=name, steps=steps, settings=SETTINGS[name])
    one, other = train(config), train(replace(config, distribution="fused"))
    assert one.result.episodes == other.result.episodes > 8 and one.curve == other.curve
    before = Recipe(config).agent(Recipe(config).look().lens)
    agents = (one.algorithm, other.algorithm, before)
    weights = list(zip(*(agent.net.parameters() for agent in agents), strict=True))
    assert all((a - b).abs().max() < 1e-5 for a, b, _ in weights)
    assert any(not torch.equal(b, c) for _, b, c in weights)


@pytest.mark.slow
def test_fused__on_several_devices_and_compiled(short):
    config = TrainConfig(env_id=short, agent="ppo", steps=384, settings=SETTINGS["ppo"])
    one = train(config)
    other = train(replace(config, distribution="fused", learners=2), engine="local")
    for a, b in zip(*(x.algorithm.net.parameters() for x in (one, other)), strict=True):
        assert (a - b).abs().max() < 1e-5
    recipe = Recipe(config)
    whole = torch.compile(fullgraph=True, backend="eager")  # as a whole, or not at all
    fused = Fused(Short(6), Share(0, 6, 6), compiled=whole)
    play = Play(Envs(TrainConfig(env_id=short), Share(0, 6, 6)))
    agent = recipe.agent(play.lens)
    for each in (fused, play):
        each.restart(0)
    found, expected = (each.collect(agent, 40, lambda play: None) for each in (fused, play))
    assert torch.equal(found.actions, expected.actions) and expected.ended.any()
    assert torch.allclose(found.rewards, expected.rewards, atol=1e-5)
    assert fused.returns == play.returns


def test_fused__refuses_other_environments():
    config = TrainConfig(env_id="Acrobot-v1", agent="ppo", distribution="fused")
    with pytest.raises(ParenvsError, match="Acrobot-v1: fused is for environments on tensors"):
        train(config)
