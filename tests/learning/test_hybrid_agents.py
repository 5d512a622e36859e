"""Agents of ``HybridPlan-v0``: networks, rollouts of three agents, teachers, playing together."""

import json

import numpy as np
import pytest

pytest.importorskip("sb3_contrib")
pytest.importorskip("pettingzoo")

import gymnasium as gym
import torch
from stable_baselines3.common.utils import obs_as_tensor

from parenvs.agents.learning.hybrid import imitation
from parenvs.agents.learning.hybrid import train as training
from parenvs.agents.learning.hybrid.imitation import Examples, examples, imitate, lessons, taught
from parenvs.agents.learning.hybrid.policy import agents_of
from parenvs.agents.learning.hybrid.rollouts import AgentRollouts
from parenvs.agents.learning.hybrid.train import fresh, load, play_together, save
from parenvs.agents.learning.vec_env import one_thread
from parenvs.envs import hybrid_v0
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.turns.actions import AGENTS, OFFSETS
from parenvs.tasks.hybrid.turns.episodes import Episodes
from parenvs.tasks.hybrid.turns.problems import setting_of
from parenvs.tasks.hybrid.turns.replay import Replay, replayed
from parenvs.tasks.hybrid.turns.rules import rules_of

RULES = rules_of("hybrid")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few environments and problems, so that agents are made at once."""
    monkeypatch.setattr(training, "ENVS", 4)
    monkeypatch.setattr(training, "POOL", 4)
    with one_thread():
        yield


def random_replays(name, count, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        replay = Replay([], Episodes.of(setting_of(name, RULES)))
        while not replay.episode.over[0]:
            action = int(rng.choice(np.flatnonzero(replay.episode.legal[0])))
            replay.choices.append(action - OFFSETS[replay.episode.turn[0]])
            replay.episode.act(action)
        yield replay


def test_replayed__makes_the_same_plan():
    found, setting = 0, setting_of("hybrid/1", RULES)
    for replay in random_replays("hybrid/1", 30):
        again = replayed(setting, replay.episode.plan(0))
        if again is not None:
            assert again.episode.plan(0).stages == replay.episode.plan(0).stages
            assert again.episode.length == replay.episode.length
            assert again.value == replay.value
            found += 1
    assert found > 20


def test_replayed__refuses_what_turns_cannot_make():
    setting, plan = (
        setting_of("hybrid/1", RULES),
        next(random_replays("hybrid/1", 1)).episode.plan(0),
    )
    assert replayed(setting, plan) is not None
    parts = {"micro_batch": plan.micro_batch, "chunks": plan.chunks, "schedule": plan.schedule}
    for changed in ({"micro_batch": 3}, {"context": 2}):
        other = setting.problem.plan(plan.stages, **{**parts, **changed})
        assert replayed(setting, other) is None
    half = setting.problem.plan(plan.stages[:1], **parts)
    assert replayed(setting, half) is None


@pytest.mark.thorough
def test_taught__is_no_worse_than_random_plans():
    setting = setting_of("hybrid/5", RULES)
    replay = taught(setting, 5.0)
    assert replay.value >= max(other.value for other in random_replays("hybrid/5", 30))
    hetero = setting_of("hetero-8/0", rules_of("hetero-8"))
    assert taught(hetero, 1.0).value > 0


def rollouts(turns, rewards, values, ends, last_over, lam=0.5):
    """A buffer of one environment with given turns."""
    space = gym.make("HybridPlan-v0", instance="hybrid/7").observation_space
    actions = gym.spaces.Discrete(261)
    buffer = AgentRollouts(len(turns), space, actions, "cpu", lam, 1.0, 1)
    for step, turn in enumerate(turns):
        seen = {key: np.zeros((1, *part.shape), np.float32) for key, part in space.items()}
        seen["turn"][0, turn] = 1
        begun = np.array([step > 0 and ends[step - 1]])
        buffer.add(seen, np.zeros((1, 1)), np.array([rewards[step]]), begun,
                   torch.tensor([values[step]]), torch.zeros(1))  # fmt: skip
    buffer.compute_returns_and_advantage(torch.zeros(1), np.array([last_over]))
    return buffer


def test_rollouts__each_agent_learns_from_its_own_turns():
    turns = [0, 1, 4, 5, 1, 4, 0, 1]  # data, pipeline, operator, data, pipeline, operator; anew
    rewards = [0.0, 0.25, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    values = [0.5, 0.2, 0.7, 0.3, 0.1, 0.6, 0.9, 0.8]
    ends = [False] * 5 + [True, False, False]
    buffer = rollouts(turns, rewards, values, ends, False)
    returns = buffer.returns[:, 0]
    # data: from turn 0 to turn 3 (reward 0.25), from there to the end (reward 1).
    second = 1.0 - 0.3
    first = 0.25 + 0.3 - 0.5 + 0.5 * second
    np.testing.assert_allclose(returns[[0, 3]], [0.5 + first, 1.0], rtol=1e-6)
    # pipeline: its own reward counts; operator: paid at the end.
    np.testing.assert_allclose(returns[4], 1.0, rtol=1e-6)
    np.testing.assert_allclose(returns[1], 0.2 + 0.25 + 0.1 - 0.2 + 0.5 * 0.9, rtol=1e-6)
    np.testing.assert_allclose(returns[5], 1.0, rtol=1e-6)
    # What the last turns lead to is not seen: nothing is learned from them.
    np.testing.assert_allclose(returns[6:], values[6:], rtol=1e-6)
    assert (buffer.advantages[6:] == 0).all()
    for own in ([0, 3], [1, 4], [2, 5]):
        assert abs(buffer.advantages[own].mean()) < 1e-6
    ended = rollouts(turns, rewards, values, ends, True)
    np.testing.assert_allclose(ended.returns[7], 0.0, atol=1e-6)


def seen_of(env, count=12):
    """Observations and masks of random play."""
    rng, found, masks = np.random.default_rng(0), [], []
    observation = env.reset()
    for _ in range(count):
        legal = np.stack(env.env_method("action_masks"))
        found.append({key: part.copy() for key, part in observation.items()})
        masks.append(legal)
        actions = np.where(legal, rng.random(legal.shape), -1).argmax(axis=1)
        observation = env.step(actions)[0]
    return {key: np.concatenate([x[key] for x in found]) for key in found[0]}, np.concatenate(masks)


def test_independent__no_weight_learns_from_two_agents():
    model = fresh("independent-ppo", "hybrid", 0)
    observations, masks = seen_of(model.env, 8)
    tensors = obs_as_tensor(observations, "cpu")
    agents = agents_of(tensors["turn"]).numpy()
    assert set(agents) == {0, 1, 2}
    touched = []
    for agent in range(len(AGENTS)):
        rows = np.flatnonzero(agents == agent)
        own = {key: part[rows] for key, part in tensors.items()}
        actions = torch.from_numpy(masks[rows].argmax(axis=1))
        values, logs, _ = model.policy.evaluate_actions(own, actions, masks[rows])
        model.policy.zero_grad()
        (values.sum() + logs.sum()).backward()
        grads = [
            torch.zeros_like(x).ravel() if x.grad is None else x.grad.ravel()
            for x in model.policy.parameters()
        ]
        touched.append(torch.cat(grads).abs() > 1e-6)
    assert all(own.sum() > 1000 for own in touched)
    assert torch.stack(touched).sum(dim=0).max() == 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ppo", "independent-ppo", "rainbow", "imitation"])
def test_agents__save_and_play_together(name, tmp_path):
    model = fresh(name, "hybrid", 1)
    save(model, tmp_path / "agent.zip")
    again = load(name, "hybrid", 2, tmp_path / "agent.zip")
    options = {"instance": "hybrid/7"}
    plan, value = play_together(again, hybrid_v0.env(**options))
    env = gym.make("HybridPlan-v0", **options)
    observation, info = env.reset()
    over, reward = False, 0.0
    while not over:
        mask = info["action_mask"].astype(bool)
        action, _ = model.predict(observation, action_masks=mask, deterministic=True)
        observation, reward, over, _, info = env.step(int(action))
    assert plan == env.unwrapped.plan()
    assert value == reward


@pytest.mark.thorough
def test_train__changes_weights_and_is_deterministic():
    runs = []
    for _ in range(2):
        model = training.train("shared-ppo", "hybrid", 0, 256)
        runs.append(torch.nn.utils.parameters_to_vector(model.policy.parameters()))
    assert torch.equal(*runs)
    start = fresh("shared-ppo", "hybrid", 0).policy.parameters()
    assert not torch.equal(runs[0], torch.nn.utils.parameters_to_vector(start))


@pytest.mark.thorough
def test_rainbow__learns_on_hybrid_plans(monkeypatch):
    settings = {**training.rainbow_settings(), "learning_starts": 40, "batch_size": 16}
    monkeypatch.setattr(training, "rainbow_settings", lambda: {**settings, "buffer_size": 200})
    model = training.train("rainbow", "hybrid", 0, 80)
    assert model._n_updates > 0


@pytest.mark.slow
def test_imitation__learns_what_is_taught(tmp_path, monkeypatch):
    file = tmp_path / "lessons.json"
    known = {f"hybrid/{k}": next(random_replays(f"hybrid/{k}", 1)).choices for k in range(3)}
    file.write_text(json.dumps(known))
    given = lessons("hybrid", 3, file)
    turns = examples("hybrid", given)
    assert isinstance(turns, Examples)
    assert turns.masks[np.arange(len(turns.actions)), turns.actions].all()
    with pytest.raises(ParenvsError, match="hybrid/0: illegal choice 999 in its lesson"):
        examples("hybrid", [imitation.Lesson("hybrid/0", (999,))])
    assert len(turns.actions) == sum(map(len, known.values()))
    monkeypatch.setattr(imitation, "HELD_OUT", 0.0)
    model = fresh("imitation", "hybrid", 0)
    before = imitate(model, turns, 0, passes=1)
    assert imitate(model, turns, 0, passes=40, batch=16, rate=4e-3) < before / 2


def test_imitation__refuses_other_files(tmp_path):
    file = tmp_path / "lessons.json"
    file.write_text("[1]")
    with pytest.raises(ParenvsError, match=r"lessons.json: no lessons"):
        lessons("hybrid", 1, file)
    with pytest.raises(ParenvsError, match="no lesson to learn from"):
        examples("hybrid", [])


def test_fresh__refuses_unknown_names():
    with pytest.raises(ParenvsError, match=r"unknown agent 'pp'.*ppo"):
        fresh("pp", "hybrid", 0)
