import copy
import json
import pickle
from functools import partial

import batches
import gymnasium as gym
import numpy as np
import pytest
from batches import assert_same, deface, drawn, forks, modes
from cases import each, slow
from drawn_orders import drawn as drawn_problem
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from parenvs import judge
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.order.game import MicroBatchOrderEnv, MicroBatchOrderVectorEnv
from parenvs.tasks.order.load import load_ordering
from parenvs.tasks.order.problem import Order
from parenvs.wrappers import MaskInObservation

ID = "MicroBatchOrder-v0"
NAME = "order-test/p4-m8-000"
both = partial(batches.both, MicroBatchOrderVectorEnv)


def make(**kwargs):
    return gym.make(ID, **kwargs).unwrapped


def play(env, rng, **reset):
    """A random legal episode: its rewards and the last info."""
    observation, info = env.reset(**reset)
    rewards, over = [], False
    while not over:
        assert env.observation_space.contains(observation)
        assert np.array_equal(env.action_masks(), info["action_mask"])
        legal = np.flatnonzero(info["action_mask"])
        assert len(legal) == env.problem.micro_batches - len(rewards)
        observation, reward, over, truncated, info = env.step(int(rng.choice(legal)))
        assert not truncated
        rewards.append(reward)
    assert env.observation_space.contains(observation)
    return rewards, info


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"tier": "p4-m8", "ranges": "outside"},
        {"tier": "p16-m64", "pool": 2},
        {"instance": "order-validation", "tier": "p8-m32"},
        {"instance": NAME},
    ],
)
def test_env__gymnasium_accepts_it(kwargs):
    check_env(make(**kwargs), skip_render_check=True)


@each("tier", ["p4-m8", "p8-m16", "p16-m32"])
def test_env__return_is_the_judges_value(tier):
    env, rng = make(tier=tier, pool=4), np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(4):
        rewards, info = play(env, rng)
        report = env.problem.report(env.plan())
        assert report.legal
        assert rewards[:-1] == [0.0] * (len(rewards) - 1)
        assert rewards[-1] == report.value  # to the last bit
        assert info["length_seconds"] == report.length_seconds
        assert 0 < rewards[-1] <= 1
        assert env.action_masks().all()


def test_env__a_saved_plan_is_worth_the_return(tmp_path):
    env = make(instance=NAME)
    rewards, _ = play(env, np.random.default_rng(1))
    env.plan().save(tmp_path / "order.json")
    assert judge(tmp_path / "order.json").value == rewards[-1]


def test_env__frontier_and_position_determine_the_rest():
    """Two orders of the same micro-batches with the same end look alike if their frontier is."""
    problem = Order(np.array([[1.0, 1.0, 2.0, 3.0]]), np.array([[2.0, 2.0, 1.0, 1.0]]))
    seen = []
    for order in ([0, 1], [1, 0]):
        env = make(problem=problem)
        env.reset()
        for action in order:
            observation, *_ = env.step(action)
        seen.append(observation)
    assert seen[0]["frontier"].tolist() == seen[1]["frontier"].tolist()
    assert seen[0]["position"].tolist()[:4] == [0, 1 / 64, -1, -1]
    assert seen[1]["position"].tolist()[:4] == [1 / 64, 0, -1, -1]


def test_env__observation_is_of_the_problem():
    problem = load_ordering(NAME)
    observation, info = make(instance=NAME).reset()
    unit = max(problem.forward.max(), problem.backward.max())
    for key, seconds in (
        ("forward_seconds", problem.forward),
        ("backward_seconds", problem.backward),
    ):
        shown = observation[key]
        assert np.array_equal(shown[:8, 12:], (seconds / unit).T.astype(np.float32))
        assert not shown[8:].any()
        assert not shown[:, :12].any()
    assert info["instance"] == NAME
    assert observation["numbers"][:2].tolist() == [4 / 16, 8 / 64]


@each("action", [-1, 8, 63, 64, 2**40])
def test_env__illegal_actions_end_the_episode(action):
    env = make(instance=NAME)
    env.reset()
    _, reward, over, _, info = env.step(action)
    assert (reward, over) == (-1.0, True)
    assert "length_seconds" not in info
    env.reset()
    env.step(3)
    assert env.step(3)[1:3] == (-1.0, True)


def test_env__reset_draws_under_the_seed():
    env = make(tier="p4-m8")
    names = []
    for seed in (5, None, 5, None):
        env.reset(seed=seed)
        names.append(env.problem.fingerprint)
    assert names[:2] == names[2:]
    assert names[0] != names[1]


def test_env__a_pool_is_the_same_everywhere():
    one, other = make(tier="p4-m8", pool=3), make(tier="p4-m8", pool=3)
    found = [set(), set()]
    for env, prints in zip((one, other), found, strict=True):
        for seed in range(12):
            env.reset(seed=seed + 100 * (env is other))
            prints.add(env.problem.fingerprint)
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_env__options_of_a_reset():
    env = make(tier="p4-m8")
    _, info = env.reset(options={"instance": "order-outside/p8-m16-001"})
    assert info["instance"] == env.problem.instance == "order-outside/p8-m16-001"
    assert info["action_mask"].sum() == 16
    env.reset()
    assert env.problem.micro_batches == 8
    for options in ({"instanc": NAME}, {"instance": "order-test"}, {"instance": 3}):
        with pytest.raises(ParenvsError) as error:
            env.reset(options=options)
        assert "\n" not in str(error.value)


@each(
    "kwargs",
    [{"tier": "p9"}, {"ranges": "in"}, {"pool": 0}, {"pool": 1.5}, {"instance": "order-best"}],
)
def test_env__bad_arguments(kwargs):
    with pytest.raises(ParenvsError) as error:
        make(**kwargs)
    assert "\n" not in str(error.value)


def test_env__problems_that_are_too_large():
    with pytest.raises(InfeasibleError, match="at most 64 on 16"):
        make(problem=Order(np.ones((17, 4)), np.ones((17, 4))))


def test_env__file_of_ones_own(tmp_path):
    problem = drawn_problem(np.random.default_rng(0), 3, 5)
    path = tmp_path / "mine.json"
    arrays = {"forward": problem.forward.tolist(), "backward": problem.backward.tolist()}
    path.write_text(json.dumps({"schema": 1, **arrays}))
    rewards, _ = play(make(instance=str(path)), np.random.default_rng(0))
    assert len(rewards) == 5


def test_env__mask_in_the_observation():
    env = MaskInObservation(make(instance=NAME))
    observation, info = env.reset()
    assert np.array_equal(observation["action_mask"], info["action_mask"])


@pytest.mark.thorough
def test_env__render():
    env = make(instance=NAME, render_mode="ansi")
    env.reset()
    assert "no order yet" in env.render()
    env.step(2)
    assert env.render().splitlines()[2].startswith("order  2 0 1 3")
    env = make(instance=NAME, render_mode="rgb_array")
    env.reset()
    for action in range(8):
        env.step(action)
    assert env.render().shape == (800, 1280, 3)


@forks
def test_env__forks(fork):
    env, rng = make(tier="p4-m8", pool=3), np.random.default_rng(0)
    env.reset(seed=0)
    env.step(0)
    again = fork(env)
    for action in rng.permutation(np.arange(1, 8)):
        assert_same(env.step(action), again.step(action))
    assert env.plan() == again.plan()


def compare(batched, single, rng, steps, illegal=0.0, resets=0.0, options=None):
    """Play both alike, with partial resets now and then; episodes that ended."""
    envs = batched, single
    disabled, ended = batched.autoreset_mode == AutoresetMode.DISABLED, 0
    for _ in range(steps):
        masks = batched.action_masks()
        assert_same(masks, np.array(single.call("action_masks")))
        actions = drawn(masks, rng, illegal)
        outcome, expected = (env.step(actions) for env in envs)
        assert_same(outcome, expected)
        ended += int(outcome[2].sum())
        begin = outcome[2] & disabled
        begin |= rng.random(len(masks)) < resets
        if begin.any():
            asked = options if options and rng.random() < 0.5 else {}
            assert_same(*(env.reset(options={**asked, "reset_mask": begin}) for env in envs))
    assert batched.observation_space.contains(outcome[0])
    for index in range(batched.num_envs):
        assert batched.plan(index) == single.envs[index].plan()
    return ended


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kwargs",
    [
        {"tier": "p4-m8", "pool": 5},
        *slow({"instance": "order-test", "tier": "p8-m16"}),
        *slow({"instance": "order-outside/p16-m32-000"}),
    ],
    ids=batches.named,
)
@modes
def test_vector__equals_single_ones(kwargs, mode):
    batched, single = both(kwargs, 5, mode)
    rng, ended = np.random.default_rng(0), 0
    options = {"instance": "order-validation/p4-m8-001"}
    for seed in (7, None, [3, None, 2**40, 0, 3]):
        assert_same(batched.reset(seed=seed), single.reset(seed=seed))
        ended += compare(batched, single, rng, 34)
        ended += compare(batched, single, rng, 34, illegal=0.02, resets=0.02, options=options)
    assert ended > 15


def test_vector__new_problems_equal_those_of_single_ones():
    batched, single = both({"tier": "p4-m8"}, 3)
    assert_same(batched.reset(seed=2), single.reset(seed=2))
    assert compare(batched, single, np.random.default_rng(0), 20) == 6
    assert batched.np_random_seed == single.np_random_seed


def test_vector__what_it_hands_out_is_its_own():
    batched, single = both({"tier": "p4-m8", "pool": 3}, 4, "SameStep")
    outcome = batched.reset(seed=1)
    single.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(20):
        deface(outcome)
        actions = drawn(batched.action_masks(), rng)
        outcome = batched.step(actions)
        assert_same(outcome, single.step(actions))


def test_vector__views_are_read_only_and_equal():
    views, copies = (
        MicroBatchOrderVectorEnv(3, tier="p4-m8", pool=3, copy=copied) for copied in (False, True)
    )
    seen, expected = views.reset(seed=0)[0], copies.reset(seed=0)[0]
    assert_same(seen, expected)
    with pytest.raises(ValueError, match="read-only"):
        seen["forward_seconds"][:] = 0


def test_vector__a_wrong_option_changes_nothing():
    env = MicroBatchOrderVectorEnv(2, tier="p4-m8", pool=3)
    env.reset(seed=0)
    before = [env.game.problem(row).fingerprint for row in range(2)]
    with pytest.raises(ParenvsError):
        env.reset(seed=9, options={"instance": "order-test/none"})
    assert [env.game.problem(row).fingerprint for row in range(2)] == before
    assert env.np_random_seed == (0, 1)


def test_vector__gymnasium_makes_it_and_forks_are_alike():
    env = gym.make_vec(ID, num_envs=3, tier="p4-m8", pool=2, render_mode="ansi")
    assert isinstance(env, MicroBatchOrderVectorEnv)
    env.reset(seed=0)
    env.step(np.array([0, 1, 2]))
    for again in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        outcome = again.step(np.array([3, 3, 3]))
        assert not outcome[2].any()
    assert len(env.render()) == 3
    assert env.single is MicroBatchOrderEnv
