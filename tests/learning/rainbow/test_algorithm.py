import csv
from copy import deepcopy
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
from cases import each

pytest.importorskip("sb3_contrib")

import torch
from mdp import GAMMA, MASKS, OFF, ON, OPTIMAL, Broken, TwoStates, agent, all_q, put_q
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import parenvs  # noqa: F401 (registers the environments)
from parenvs.agents.learning.rainbow.algorithm import Rainbow
from parenvs.agents.learning.rainbow.policy import NoisyLinear, project
from parenvs.agents.learning.train.best_plan import BestPlan
from parenvs.agents.learning.train.learners import PRESETS, preset, rainbow_settings
from parenvs.agents.learning.vec_env import make_env, one_thread
from parenvs.errors import ParenvsError

BOTH_SHAPES = pytest.mark.parametrize("dueling", [False, True])


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with one_thread():
        yield


def several(count, **options):
    return DummyVecEnv([lambda i=i: TwoStates(limit=3 + i, **options) for i in range(count)])


def store(model, steps):
    """Put (state, action, reward, next state, terminal, next mask) into the replay buffer."""
    one = np.eye(2, dtype=np.float32)
    for state, action, reward, after, terminal, mask in steps:
        model.replay_buffer.add(
            one[[state]], one[[after]], np.array([action]), np.array([reward]),
            np.array([terminal]), [{}],
        )  # fmt: skip
        model.replay_buffer.set_masks(MASKS[[state]], np.array([mask], dtype=bool))


def batch_of(model, *steps):
    store(model, steps)
    return model.replay_buffer.at(np.arange(1))


def targets(model, *steps):
    return model.targets(batch_of(model, *steps)).numpy()[0]


STEP = (0, 0, 0.25, 1, False, [1, 1, 0])
"""Action 2 is illegal in the next state."""


# Targets.


@BOTH_SHAPES
def test_target__max_over_legal_actions(dueling):
    model = agent(dueling=dueling)
    put_q(model.q_net, [[0, 0, 0], [8, 8, 8]])
    put_q(model.q_net_target, [[0, 0, 0], [-1, 2, 9]])
    assert targets(model, STEP) == pytest.approx([0.25 + GAMMA * 2])
    everything = (*STEP[:-1], [1, 1, 1])
    assert targets(agent_like(model), everything) == pytest.approx([0.25 + GAMMA * 9])


def agent_like(model):
    """A new agent with the same networks and an empty buffer."""
    other = agent(
        double_q=model.double_q, dueling=model.q_net.dueling, distributional=model.distributional
    )
    other.policy.load_state_dict(model.policy.state_dict())
    return other


@BOTH_SHAPES
def test_target__double_chooses_among_legal_actions(dueling):
    """Four answers: masked or not, double or not."""
    found = {}
    for double in (True, False):
        model = agent(double_q=double, dueling=dueling)
        put_q(model.q_net, [[0, 0, 0], [5, 1, 9]])
        put_q(model.q_net_target, [[0, 0, 0], [3, 7, 8]])
        found[double] = targets(model, STEP)[0]
        if double:
            everything = (*STEP[:-1], [1, 1, 1])
            assert targets(agent_like(model), everything)[0] == pytest.approx(0.25 + GAMMA * 8)
    assert found[True] == pytest.approx(0.25 + GAMMA * 3)
    assert found[False] == pytest.approx(0.25 + GAMMA * 7)


@BOTH_SHAPES
@pytest.mark.parametrize("double", [False, True])
def test_target__distribution_of_a_legal_action(dueling, double):
    """The atom 3 or 7, times a half, plus a quarter: 1.75 or 3.75, between two atoms."""
    model = agent(double_q=double, dueling=dueling, distributional=True)
    put_q(model.q_net, [[0, 0, 0], [5, 1, 9]])
    put_q(model.q_net_target, [[0, 0, 0], [3, 7, 8]])
    expected = np.zeros(21)
    low = 11 if double else 13
    expected[[low, low + 1]] = 0.25, 0.75
    assert targets(model, STEP) == pytest.approx(expected, abs=1e-5)
    everything = targets(agent_like(model), (*STEP[:-1], [1, 1, 1]))
    assert everything @ np.arange(-10, 11) == pytest.approx(4.25, abs=1e-4)


def test_target__mask_after_the_aggregation():
    """The mean advantage is that of all actions; masking before would make Q another number."""
    model = agent(dueling=True)
    put_q(model.q_net_target, [[0, 0, 0], [-1, 2, 9]])
    with torch.no_grad():
        model.q_net_target.value[0].weight.fill_(1.0)
        advantage = model.q_net_target.advantage[0].weight[:, 1].numpy()
    expected = 1 + advantage[1] - advantage.mean()
    assert targets(model, STEP) == pytest.approx([0.25 + GAMMA * expected])


def test_target__mask_of_the_last_of_n_steps():
    """Each state on the way has another mask, and another best action by it."""
    steps = [
        (0, 0, 1.0, 1, False, [0, 0, 1]),
        (1, 2, 2.0, 0, False, [0, 1, 1]),
        (0, 0, 4.0, 1, False, [1, 0, 0]),
        (1, 2, 8.0, 0, False, [1, 1, 0]),
    ]
    q = np.array([[1.0, 2.0, 3.0], [5.0, 7.0, 11.0]])
    found = []
    for n_steps in (1, 2, 3):
        model = agent(n_steps=n_steps)
        put_q(model.q_net_target, q)
        found.append(targets(model, *steps)[0])
    assert found == pytest.approx([1 + 0.5 * 11, 1 + 1 + 0.25 * 3, 1 + 1 + 1 + 0.125 * 5])


def test_target__discount_of_the_steps_that_there_were():
    """A terminal state after two of five steps, and the end of what is stored."""
    model = agent(n_steps=5)
    put_q(model.q_net_target, [[3, 3, 3], [6, 6, 6]])
    ends = [(0, 0, 1.0, 1, False, [1, 1, 1]), (1, 1, 2.0, 0, True, [1, 1, 1])]
    assert targets(model, *ends, STEP) == pytest.approx([1 + 0.5 * 2])
    model = agent(n_steps=5)
    put_q(model.q_net_target, [[3, 3, 3], [6, 6, 6]])
    going_on = (1, 2, 2.0, 0, False, [1, 1, 1])
    assert targets(model, ends[0], going_on) == pytest.approx([1 + 0.5 * 2 + 0.25 * 3])


@each("mask", [[0, 0, 0], [1, 1, 1]])
@each("switches", [OFF, ON, {**OFF, "dueling": True, "double_q": True}])
def test_target__terminal_state(mask, switches):
    """The reward alone, whatever the networks say of the state, even where nothing is legal."""
    model = agent(**{**switches, "n_steps": 1, "noisy": False})
    put_q(model.q_net_target, [[9, 9, 9], [9, 9, 9]])
    found = targets(model, (1, 1, 2.0, 1, True, mask))
    if model.distributional:
        assert found == pytest.approx(np.eye(21)[12])
    else:
        assert found == pytest.approx([2.0])
    model.set_logger(configure(None, []))
    model.train(5, 8)
    assert np.isfinite(all_q(model.q_net)).all()


def test_project__against_a_loop():
    rng = np.random.default_rng(0)
    support = np.linspace(-2, 4, 7)
    probabilities = rng.dirichlet(np.ones(7), size=40)
    rewards, discounts = rng.normal(scale=3, size=(40, 1)), rng.choice([0, 0.5, 1], (40, 1))
    rewards[:10] = rng.integers(-3, 6, (10, 1))  # on the atoms
    expected = np.zeros((40, 7))
    for row in range(40):
        for atom in range(7):
            value = np.clip(rewards[row, 0] + discounts[row, 0] * support[atom], -2, 4)
            for place in range(7):
                near = max(0, 1 - abs(value - support[place]))
                expected[row, place] += near * probabilities[row, atom]
    tensors = (torch.tensor(x) for x in (probabilities, rewards, discounts, support))
    assert project(*tensors).numpy() == pytest.approx(expected, abs=1e-9)
    assert expected.sum(axis=1) == pytest.approx(1)


# Updates.


def one_update(model, *steps):
    model.set_logger(configure(None, []))
    store(model, steps)
    model.train(1, 1)
    return model.logger.name_to_value


def test_train__huber_loss_priority_and_metrics():
    model = agent(prioritized=True, alpha=1.0, exploration_initial_eps=0.3)
    put_q(model.q_net, [[1.5, 3, 99], [0, 0, 0]])
    put_q(model.q_net_target, [[0, 0, 0], [-1, 2, 9]])
    values = one_update(model, STEP)
    assert values["train/loss"] == pytest.approx(0.25**2 / 2)
    assert values["train/mean_q"] == 3  # of a legal action
    assert values["train/exploration_rate"] == 0.3
    assert values["train/n_updates"] == 1
    assert model.replay_buffer.tree[np.array([0])] == pytest.approx(0.25 + 1e-6)


def test_train__cross_entropy_and_priority():
    model = agent(distributional=True, prioritized=True, alpha=1.0)
    put_q(model.q_net_target, [[0, 0, 0], [-1, 2, 9]])
    batch = batch_of(model, STEP)
    with torch.no_grad():
        logits = model.q_net.outputs(batch.observations)[0, 0]
    expected = -(model.targets(batch)[0] * logits.log_softmax(0)).sum().item()
    model.set_logger(configure(None, []))
    model.train(1, 1)
    assert model.logger.name_to_value["train/loss"] == pytest.approx(expected, rel=1e-5)
    assert model.replay_buffer.tree[np.array([0])] == pytest.approx(expected, rel=1e-5)


def test_train__importance_weights():
    """Of two errors that differ, drawn as often as their priorities say."""
    sgd = {"net_arch": [], "optimizer_class": torch.optim.SGD}
    for beta in (0.0, 1.0):
        model = agent(prioritized=True, alpha=1.0, beta=beta, learning_rate=1.0, policy_kwargs=sgd)
        put_q(model.q_net, np.zeros((2, 3)))
        put_q(model.q_net_target, np.zeros((2, 3)))
        store(model, [(0, 0, 0.2, 1, True, [1] * 3), (1, 1, 0.6, 1, True, [1] * 3)])
        model.replay_buffer.update_priorities(np.arange(2), np.array([1.0, 3.0]))
        model.set_logger(configure(None, []))
        model.train(1, 4)  # one of the first, three of the second
        weights = np.array([1, 1 / 3]) if beta else np.ones(2)
        step = np.array([0.2, 0.6]) * weights * np.array([1, 3]) / 4
        gained = model.q_net.q_net[0].weight.detach().numpy()
        assert [gained[0, 0], gained[1, 1]] == pytest.approx(step, rel=1e-4)


def test_train__beta_grows_to_one():
    model = agent(prioritized=True, beta=0.4)
    seen = []

    class Look(BaseCallback):
        def _on_rollout_start(self):
            seen.append(self.logger.name_to_value.get("train/beta"))

        def _on_step(self):
            return True

    model.learn(100, callback=Look(), log_interval=None)
    assert seen[1] == pytest.approx(0.4 + 0.6 * 0.01)
    assert np.diff(seen[1:]) == pytest.approx(0.006)
    assert model.logger.name_to_value["train/beta"] == pytest.approx(1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("n_steps", [1, 3])
def test_train__all_switches_off_is_dqn(n_steps, monkeypatch):
    """The same Q-values after the same updates from the same buffer."""
    options = {
        "learning_rate": 1e-3, "buffer_size": 300, "batch_size": 32, "gamma": 0.9, "seed": 1,
        "target_update_interval": 10, "n_steps": n_steps, "device": "cpu", "max_grad_norm": 0.05,
    }  # fmt: skip
    env = gym.make("CartPole-v1")
    dqn = DQN("MlpPolicy", env, **options)
    rainbow = Rainbow("MlpPolicy", env, **{**OFF, **options})
    rainbow.policy.load_state_dict(dqn.policy.state_dict())
    rng = np.random.default_rng(0)
    for _ in range(400):  # beyond the end of the buffer
        done, cut = rng.random() < 0.2, rng.random() < 0.5
        step = (
            rng.normal(size=(1, 4)), rng.normal(size=(1, 4)), rng.integers(2, size=1),
            rng.normal(size=1), np.array([done]), [{"TimeLimit.truncated": bool(done and cut)}],
        )  # fmt: skip
        dqn.replay_buffer.add(*step)
        rainbow.replay_buffer.add(*step)
    before = rainbow.q_net(torch.ones(1, 4)).detach().numpy()
    indices = rng.integers(300, size=(60, 32))
    draws = {DQN: iter(indices), Rainbow: iter(indices)}
    monkeypatch.setattr(
        dqn.replay_buffer, "sample",
        lambda n, env: dqn.replay_buffer._get_samples(next(draws[DQN])),
    )  # fmt: skip
    monkeypatch.setattr(
        rainbow.replay_buffer, "sample",
        lambda *_: rainbow.replay_buffer.at(next(draws[Rainbow])),
    )  # fmt: skip
    states = torch.tensor(rng.normal(size=(50, 4)), dtype=torch.float32)
    for model in (dqn, rainbow):
        model.set_logger(configure(None, []))
        for _ in range(60):
            model.train(1, 32)
            model._on_step()
    for one, other in ((dqn.q_net, rainbow.q_net), (dqn.q_net_target, rainbow.q_net_target)):
        with torch.no_grad():
            assert np.allclose(one(states), other(states), rtol=0, atol=1e-6)
    after = rainbow.q_net(torch.ones(1, 4)).detach().numpy()
    assert np.abs(after - before).max() > 0.01


ALL_SWITCHES = [
    {},
    {"double_q": True},
    {"dueling": True},
    {"prioritized": True},
    {"distributional": True, "v_min": -2.0, "v_max": 6.0},
    {**ON, "n_steps": 1, "noisy": False, "v_min": -2.0, "v_max": 6.0},
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "switches",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in ALL_SWITCHES[:-1]),
        ALL_SWITCHES[-1],
    ],
    ids=lambda x: ",".join(x) or "none",
)
def test_learn__finds_the_values_of_the_process(switches):
    """Illegal actions start with the highest value and are never tried: they must not matter."""
    model = agent(
        several(4, dictionary=bool(switches)), learning_rate=0.03, target_update_interval=20,
        exploration_final_eps=0.5, batch_size=32, **switches,
    )  # fmt: skip
    if model.distributional:
        with torch.no_grad():  # atom 5.2 for what is illegal
            layer = model.q_net.advantage[0] if model.q_net.dueling else model.q_net.q_net[0]
            layer.weight.view(3, 21, -1)[0, 18, 1] = layer.weight.view(3, 21, -1)[2, 18, 0] = 9
    elif not switches:
        put_q(model.q_net, [[0, 0, 5], [5, 0, 0]])
    model.q_net_target.load_state_dict(model.q_net.state_dict())
    model.learn(1600)
    inputs = torch.eye(2)
    if switches:
        inputs = {"one": inputs, "index": torch.tensor([[0], [1]])}
    q = model.q_net(inputs).detach().numpy()
    for (state, action), value in OPTIMAL.items():
        assert q[state, action] == pytest.approx(value, abs=0.12), (state, action)


# Exploration.


@pytest.mark.thorough
@pytest.mark.parametrize(("count", "noisy"), [(1, False), (5, True)])
def test_explore__never_leaves_the_mask(count, noisy):
    """The environments raise at an illegal action; the networks would choose nothing else."""
    model = agent(several(count), noisy=noisy, learning_starts=60, exploration_final_eps=0.3)
    with torch.no_grad():
        put_q(model.q_net, [[0, 0, 50], [50, 0, 0]])
    model.learn(60 + 100 * count, log_interval=None)
    for env in model.env.envs:
        assert {*env.seen} == set(OPTIMAL)
    assert len(env.seen) == 60 // count + 100


@pytest.mark.thorough
def test_explore__warm_up_draws_uniformly():
    env = TwoStates(limit=10**9)
    model = agent(env, learning_starts=3000)
    put_q(model.q_net, [[9, 0, 0], [0, 0, 9]])
    model.exploration_initial_eps = 0.0
    model.learn(3000, log_interval=None)
    for state in (0, 1):
        actions = [action for at, action in env.seen if at == state]
        assert np.bincount(actions, minlength=3)[MASKS[state]] == pytest.approx(
            len(actions) / 2, rel=0.1
        )


def test_explore__every_environment_for_itself():
    model = agent()
    put_q(model.q_net, [[9, 0, 0], [0, 0, 9]])
    states = np.eye(2, dtype=np.float32)[np.tile([0, 1], 2000)]
    masks = MASKS[np.tile([0, 1], 2000)]
    model.exploration_rate = 0.4
    actions, _ = model.predict(states, action_masks=masks)
    assert masks[np.arange(4000), actions].all()
    greedy = actions == np.tile([0, 2], 2000)
    assert greedy.mean() == pytest.approx(0.8, abs=0.02)  # half of the explored are greedy too
    every, _ = model.predict(states)
    assert {*every[::2]} == {*every[1::2]} == {0, 1, 2}
    best, _ = model.predict(states, deterministic=True, action_masks=masks)
    assert (best == np.tile([0, 2], 2000)).all()


@pytest.mark.thorough
def test_explore__epsilon_falls_and_starts_anew():
    model = agent(exploration_fraction=0.5, exploration_initial_eps=0.8)
    assert model.exploration_rate == 0.8
    rates = []
    for _ in range(2):
        model.learn(100, callback=lambda x, _: rates.append(x["self"].exploration_rate) or True)
    assert rates[:3] == pytest.approx([0.8, 0.8 - 0.78 / 50, 0.8 - 2 * 0.78 / 50])
    assert rates[50:100] == pytest.approx(np.full(50, 0.02))
    assert rates[100:] == rates[:100]
    model.learn(100, reset_num_timesteps=False, callback=lambda x, _: False)
    assert model.exploration_rate == pytest.approx(0.02)


def test_noisy__layers():
    rng = np.random.default_rng(0)
    layer = NoisyLinear(400, 300)
    x = torch.ones(1, 400)
    mean = layer(x)
    assert torch.equal(mean, torch.nn.functional.linear(x, layer.weight, layer.bias))
    layer.draw(rng)
    assert not torch.equal(layer(x), mean)
    noise = torch.outer(layer.noise_out, layer.noise_in)
    weight, bias = layer.weight + 0.025 * noise, layer.bias + 0.025 * layer.noise_out
    assert torch.allclose(layer(x), torch.nn.functional.linear(x, weight, bias), atol=1e-5)
    raw = layer.noise_in.numpy()
    normal = np.sign(raw) * raw**2
    assert normal.mean() == pytest.approx(0, abs=0.15)
    assert normal.std() == pytest.approx(1, abs=0.15)
    layer(x).sum().backward()
    assert layer.weight_sigma.grad.abs().sum() > 0
    layer.silence()
    assert torch.equal(layer(x), mean)


def test_noisy__explores_without_epsilon():
    model = agent(noisy=True, exploration_initial_eps=0.7)
    assert model.exploration_rate == 0
    state = np.eye(2, dtype=np.float32)[:1]
    put_q(model.q_net, [[0.1, 0, 0], [0, 0, 0]])

    found = {True: set(), False: set()}
    for _ in range(40):
        for deterministic in (False, True):
            action, _ = model.predict(state, deterministic=deterministic, action_masks=MASKS[0])
            found[deterministic].add(int(action[0]))
    assert found == {False: {0, 1}, True: {0}}
    assert model.learn(40).exploration_rate == 0


def test_noisy__updates_draw_for_both_networks():
    model = agent(noisy=True)
    sigma = model.q_net.q_net[0].weight_sigma.detach().clone()
    one_update(model, STEP)
    online, target = (net.q_net[0].noise_out.clone() for net in (model.q_net, model.q_net_target))
    assert (online != 0).all() and (target != 0).all() and (online != target).all()
    assert not torch.equal(model.q_net.q_net[0].weight_sigma, sigma)
    model.train(1, 1)
    assert (model.q_net.q_net[0].noise_out != online).all()
    assert (model.q_net_target.q_net[0].noise_out != target).all()


# Environments.


def test_store__masks_of_both_states():
    """Also where the episode is truncated and the next one has begun in another state."""
    model = agent(several(3, start=1), learning_starts=10**6, seed=3)
    model.learn(300)
    buffer = model.replay_buffer
    rows, kinds = buffer.size(), set()
    for row in range(rows):
        for i in range(3):
            before = buffer.observations[row, i].argmax()
            after = buffer.next_observations[row, i].argmax()
            assert (buffer.masks[row, i] == MASKS[before]).all()
            terminal = buffer.dones[row, i] and not buffer.timeouts[row, i]
            expected = np.ones(3, dtype=bool) if terminal else MASKS[after]
            assert (buffer.next_masks[row, i] == expected).all()
            kinds.add((int(after), bool(buffer.dones[row, i]), bool(terminal)))
    assert kinds == {(0, False, False), (1, False, False), (0, True, False), (1, True, False),
                     (1, True, True)}  # fmt: skip


def test_learn__again_does_not_join_episodes():
    model = agent(several(2), n_steps=3)
    model.learn(8)
    last = model.replay_buffer.size() - 1
    model.learn(8)
    assert (model.replay_buffer.timeouts[last] == 1).all()
    assert (model.replay_buffer.timeouts.sum(axis=0) < model.replay_buffer.size() / 2).all()
    going_on = agent(several(2, masked=True), n_steps=3)
    going_on.learn(2)
    going_on.learn(2, reset_num_timesteps=False)
    assert (going_on.replay_buffer.timeouts[:2] == 0).all()


def test_predict__shapes():
    model = agent(TwoStates(dictionary=True))
    states = {"one": np.eye(2, dtype=np.float32), "index": np.array([0, 1])}
    one = {"one": np.eye(2, dtype=np.float32)[0], "index": np.int64(0)}
    for deterministic in (True, False):
        found, state = model.predict(states, deterministic=deterministic, action_masks=MASKS)
        assert found.shape == (2,) and state is None
        assert MASKS[[0, 1], found].all()
        for mask in (MASKS[0], MASKS[:1], MASKS[0].tolist(), MASKS[0].astype(np.int8)):
            found, _ = model.predict(one, deterministic=deterministic, action_masks=mask)
            assert found.shape == () and MASKS[0][found]
        assert model.predict(one, deterministic=deterministic)[0].shape == ()
    for mask, words in ((np.ones(4), "should be"), (np.zeros(3), "no action")):
        with pytest.raises(ParenvsError, match=words):
            model.predict(one, action_masks=mask)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "env_id", "kwargs"),
    [
        ("tuned", "PipelineCut-v0", {"instance": "vgg-19", "cluster": "B"}),
        ("paper", "OperatorPartition-v0", {"instance": "vgg-19"}),
        ("tuned", "DataParallel-v0", {"instance": "vgg-19"}),
    ],
)
def test_suite__learns_and_is_evaluated(env_id, kwargs, name):
    env = make_env(env_id, kwargs, 0, envs=3)
    model = Rainbow("MultiInputPolicy", env, **preset(name, learning_starts=60), seed=0)
    tracker = BestPlan(scale=env.get_attr("largest_return")[0])
    model.learn(240, callback=tracker)
    assert tracker.best_return > -1  # no action was illegal
    single = make_env(env_id, kwargs, 0, envs=1)
    mean, _ = evaluate_policy(model, single, 2, warn=False)
    assert mean > -1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "switches", [OFF, *(pytest.param(x, marks=pytest.mark.slow) for x in (ON, PRESETS["tuned"]))]
)
def test_cartpole__without_masks(switches):
    model = Rainbow("MlpPolicy", "CartPole-v1", **{**switches, "learning_starts": 50, "seed": 0})
    model.learn(250)
    assert model.replay_buffer.next_masks.all()
    assert model._n_updates == 200


def test_vec_normalize():
    """The buffer keeps what the environment says, and batches are normalised."""
    env = VecNormalize(several(2), norm_obs=True, norm_reward=True)
    model = agent(env, n_steps=2)
    model.learn(60)
    stored = model.replay_buffer.observations[:30]
    assert set(np.unique(stored)) == {0.0, 1.0}
    batch = model.replay_buffer.at(np.arange(60), env)
    assert not np.isin(batch.observations.numpy(), [0.0, 1.0]).any()
    normal = env.normalize_obs(stored.reshape(60, 2))
    assert np.allclose(batch.observations.numpy(), normal, atol=1e-6)


def test_log__metrics(tmp_path):
    model = agent(prioritized=True)
    model.set_logger(configure(str(tmp_path), ["csv", "tensorboard"]))
    model.learn(100)
    with (tmp_path / "progress.csv").open() as stream:
        last = list(csv.DictReader(stream))[-1]
    for key in ("loss", "beta", "exploration_rate", "mean_q", "learning_rate", "n_updates"):
        assert np.isfinite(float(last[f"train/{key}"])), key
    for key in ("ep_rew_mean", "ep_len_mean", "exploration_rate"):
        assert np.isfinite(float(last[f"rollout/{key}"])), key
    assert list(tmp_path.glob("events.out.tfevents*"))


# Saving.


def state_of(model):
    """Everything that training changes."""
    state = {f"policy/{k}": v.numpy() for k, v in model.policy.state_dict().items()}
    for i, moments in model.policy.optimizer.state_dict()["state"].items():
        state |= {f"optimiser/{i}/{k}": np.asarray(v) for k, v in moments.items()}
    buffer = model.replay_buffer
    for name in ("observations", "next_observations"):
        state |= {f"{name}/{k}": v for k, v in getattr(buffer, name).items()}
    for name in ("actions", "rewards", "dones", "timeouts", "masks", "next_masks", "pos"):
        state[name] = np.asarray(getattr(buffer, name))
    if buffer.tree is not None:
        state |= {"tree": buffer.tree._nodes, "greatest": np.array(buffer.greatest)}
    for name in ("num_timesteps", "exploration_rate", "_n_updates", "_n_calls", "_episode_num"):
        state[name] = np.array(getattr(model, name))
    state["random"] = np.array(str(model._rng.bit_generator.state))
    return state


def same(one, other):
    one, other = state_of(one), state_of(other)
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


PIPELINE = ("PipelineCut-v0", {"instance": "vgg-19", "cluster": "B", "stages": 5})
SAVED = {"learning_starts": 40, "buffer_size": 150, "batch_size": 16, "seed": 4, "device": "cpu"}


class Save(BaseCallback):
    """Saves at the beginning of a rollout, in the middle of episodes."""

    def __init__(self, folder, at, tracker):
        super().__init__()
        self.folder, self.at, self.tracker, self.state = folder, at, tracker, None

    def _on_rollout_start(self):
        if self.num_timesteps == self.at:
            self.model.save(self.folder / "model.zip")
            self.model.save_replay_buffer(self.folder / "buffer.pkl")
            self.state = deepcopy(self.tracker.state())

    def _on_step(self):
        return True


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("switches", "at"),
    [
        (OFF, 246),
        *(
            pytest.param(switches, at, marks=pytest.mark.slow)
            for switches, at in ((OFF, 30), *product((ON, PRESETS["paper"]), (30, 246)))
        ),
    ],
)
def test_save__training_goes_on_as_if_not_interrupted(tmp_path, switches, at):
    tracker = BestPlan()
    whole = Rainbow("MultiInputPolicy", make_env(*PIPELINE, 0, envs=3), **{**switches, **SAVED})
    save = Save(tmp_path, at, tracker)
    whole.learn(360, callback=[tracker, save])
    torch.manual_seed(99)
    np.random.seed(99)
    env = make_env(*PIPELINE, 7, envs=3)
    model = Rainbow.load(tmp_path / "model.zip", env=env, device="cpu")
    assert not same(model, whole)
    model.load_replay_buffer(tmp_path / "buffer.pkl")
    tracker = BestPlan()
    tracker.restore(save.state)
    assert any(tracker._running)
    tracker.replay(env, model)
    model.learn(360 - at, callback=[tracker], reset_num_timesteps=False)
    assert same(model, whole)


@pytest.mark.thorough
def test_save__predicts_the_same_without_the_buffer(tmp_path):
    env = make_env(*PIPELINE, 0, envs=3)
    model = Rainbow("MultiInputPolicy", env, **{**ON, **SAVED}).learn(120)
    model.save(tmp_path / "model")
    for other_env in (None, make_env(*PIPELINE, 0, envs=2)):
        again = Rainbow.load(tmp_path / "model", env=other_env)
        observation, masks = env.reset(), np.stack(env.env_method("action_masks"))
        for deterministic in (True, False):
            found = []
            for either in (model, again):
                either.set_random_seed(5)
                found.append(
                    either.predict(observation, deterministic=deterministic, action_masks=masks)
                )
            assert (found[0][0] == found[1][0]).all()
        assert again.replay_buffer.size() == 0
        assert (again.n_steps, again.prioritized, again.noisy) == (3, True, True)
    again.learn(60, reset_num_timesteps=False)
    assert again.num_timesteps == 180
    assert again.replay_buffer.n_steps == 3


def test_save__policy_alone(tmp_path):
    model = agent(**ON)
    model.policy.save(tmp_path / "policy")
    again = type(model.policy).load(tmp_path / "policy")
    assert np.array_equal(all_q(model.q_net), all_q(again.q_net))


@pytest.mark.slow
def test_seed__decides():
    def run(seed, disturbed):
        np.random.seed(disturbed)
        env = make_env(*PIPELINE, 0, envs=2)
        return Rainbow("MultiInputPolicy", env, **{**ON, **SAVED, "seed": seed}).learn(100)

    assert same(run(1, 0), run(1, 1))
    assert not same(run(1, 0), run(2, 0))


# Bad input.


def test_refuses__actions():
    for env_id in ("Pendulum-v1", "MountainCarContinuous-v0"):
        with pytest.raises(ParenvsError, match=rf"{env_id}: Rainbow needs Discrete.*not Box"):
            Rainbow("MlpPolicy", env_id)
    env = gym.make("CartPole-v1")
    env.action_space = gym.spaces.Discrete(2, start=1)
    with pytest.raises(ParenvsError, match="CartPole-v1: Rainbow needs Discrete actions from 0"):
        Rainbow("MlpPolicy", DummyVecEnv([lambda: env]))


@each(
    ("mask", "words"),
    [
        ([True, True, True], r"shape \(3,\); it should be \(2,\)"),
        (True, r"shape \(\); it should be \(2,\)"),
        ([False, False], "allows no action"),
    ],
)
def test_refuses__masks(mask, words):
    """At the first step, before anything is done with the environment."""
    env = DummyVecEnv([lambda: Broken(gym.make("CartPole-v1"), mask)])
    model = Rainbow("MlpPolicy", env)
    with pytest.raises(ParenvsError, match=f"CartPole-v1: .*{words}"):
        model.learn(10)
    assert model.num_timesteps == 0


def test_refuses__truncation_without_a_mask():
    env = Broken(gym.make("CartPole-v1", max_episode_steps=3), [True, True])
    with pytest.raises(ParenvsError, match=r"CartPole-v1: truncated without info\['action_mask'\]"):
        Rainbow("MlpPolicy", env).learn(10)


@each(
    "wrong",
    [{"n_steps": 0}, {"alpha": -1}, {"beta": 1.5}, {"n_atoms": 1}, {"v_min": 3.0, "v_max": 3.0}],
)
def test_refuses__arguments(wrong):
    with pytest.raises(ParenvsError, match=f"impossible {next(iter(wrong))}="):
        agent(**wrong)


def test_preset():
    assert preset("paper", gamma=0.7) == {**PRESETS["paper"], "gamma": 0.7}
    assert PRESETS["paper"]["gamma"] == 0.6
    with pytest.raises(ParenvsError, match=r"unknown preset 'papr' \(did you mean 'paper'\?\)"):
        preset("papr")


def test_settings__pipelines_explore_for_longer():
    partition = rainbow_settings("tuned", "OperatorPartition-v0", 10)
    pipeline = rainbow_settings("tuned", "PipelineCut-v0", 3)
    assert pipeline["gamma"] == partition["gamma"] == 1.0
    assert rainbow_settings("tuned", "DataParallel-v0", 3)["gamma"] == 0.99
    assert pipeline["exploration_fraction"] > partition["exploration_fraction"]
    assert rainbow_settings("paper", "PipelineCut-v0", 3)["gamma"] == 0.6
