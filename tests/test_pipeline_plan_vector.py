"""The batched ``PipelinePlan-v0``: ``SyncVectorEnv`` of single ones, to the last bit."""

import copy
import pickle
import time
import warnings
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import toys
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parenvs import Cluster, Pipeline, judge
from parenvs.envs.pipeline_plan import PipelinePlanEnv
from parenvs.envs.pipeline_plan_vector import PipelinePlanVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.judge import plan_values
from parenvs.plan_batch import PlanBatch
from parenvs.plan_space import PlanSpace
from parenvs.plan_tables import PlanTables

ID = "PipelinePlan-v0"
MODES = ("NextStep", "SameStep", "Disabled")
FIXED = [
    {"instance": "t5-base", "cluster": "C"},
    {"instance": "t5-11b", "cluster": "16x8:a100", "stages": 8},  # units are servers
    {"instance": "vgg-19", "cluster": "1x12:a100", "stages": 2, "micro_batches": 3},
    {"instance": "plan-test/cnn-003"},
]
DRAWN = [
    {"repeat": 3},
    {"ranges": "outside", "repeat": 2, "family": "transformer"},
    {"instance": "plan-outside", "repeat": 2},
    {"instance": "plan-validation"},
]


def named(kwargs):
    return "-".join(map(str, kwargs.values()))


def assert_same(one, other, where=""):
    """Equal structure, types, shapes and bytes."""
    if isinstance(one, (dict, tuple)):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, np.ndarray) and one.dtype == object:
        assert one.shape == other.shape
        for a, b in zip(one, other, strict=True):
            assert_same(a, b, where)
    else:
        assert type(one) is type(other), where
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        assert one.tobytes() == other.tobytes(), (where, one, other)


def both(kwargs, count, mode="NextStep", **more):
    """A batched environment and a ``SyncVectorEnv`` of single ones."""
    batched = PipelinePlanVectorEnv(count, autoreset_mode=mode, **more, **kwargs)
    single = SyncVectorEnv(
        [partial(PipelinePlanEnv, **kwargs)] * count, autoreset_mode=AutoresetMode(mode)
    )
    return batched, single


def drawn(masks, rng, illegal=0.0):
    """A uniform legal action of each environment, some of them replaced by any number."""
    actions = (rng.random(masks.shape) * masks).argmax(axis=1)
    other = rng.integers(-3, masks.shape[1] + 3, len(masks))
    return np.where(rng.random(len(masks)) < illegal, other, actions)


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


@pytest.mark.parametrize("kwargs", FIXED, ids=named)
@pytest.mark.parametrize("mode", MODES)
def test_vector__equals_single_ones(kwargs, mode):
    """Hundreds of episodes each, in step with each other and not."""
    batched, single = both(kwargs, 24, mode)
    rng = np.random.default_rng(0)
    assert_same(batched.reset(seed=1), single.reset(seed=1))
    ended = compare(batched, single, rng, 60)
    ended += compare(batched, single, rng, 60, illegal=0.1, resets=0.02)
    assert ended > 200


@pytest.mark.parametrize("kwargs", DRAWN, ids=named)
@pytest.mark.parametrize("mode", MODES)
def test_vector__draws_what_single_ones_draw(kwargs, mode):
    batched, single = both(kwargs, 5, mode)
    rng, ended = np.random.default_rng(0), 0
    for seed in (7, None, [3, None, 2**40, 0, 3]):
        assert_same(batched.reset(seed=seed), single.reset(seed=seed))
        ended += compare(batched, single, rng, 16, illegal=0.02, resets=0.01)
    assert ended > 15
    assert len({problem.instance for problem in batched.problems.of}) > 1 or "family" in kwargs


@pytest.mark.parametrize("kwargs", [FIXED[0], DRAWN[0]], ids=named)
@pytest.mark.parametrize("mode", MODES)
def test_vector__options(kwargs, mode):
    """One problem for an episode of some, or of all; then the own ones again."""
    batched, single = both(kwargs, 4, mode)
    rng, options = np.random.default_rng(0), {"instance": "bert-48", "cluster": "B", "stages": 2}
    assert_same(batched.reset(seed=1), single.reset(seed=1))
    compare(batched, single, rng, 25, illegal=0.05, resets=0.1, options=options)
    kept = dict(options)
    assert_same(batched.reset(options=options), single.reset(options=options))
    assert options == kept
    assert {batched.plan(i).instance for i in range(4)} == {"bert-48"}
    compare(batched, single, rng, 10, illegal=0.05)
    assert_same(batched.reset(), single.reset())
    compare(batched, single, rng, 10)
    assert {problem.instance for problem in batched.problems.of} != {"bert-48"}


def test_vector__options_that_are_wrong_change_nothing():
    batched, _ = both(FIXED[0], 2)
    before = batched.reset()
    for options, words in (
        ({"instace": "t5-base"}, "did you mean 'instance'"),
        ({"instance": "plan-test"}, "must name"),
        ({"instance": "t5-11b", "cluster": "A"}, "fits the memory"),
    ):
        with pytest.raises(ParenvsError, match=words):
            batched.reset(seed=3, options=options)
    assert_same(batched.reset(), before)
    assert batched.np_random_seed != (3, 4)


@pytest.mark.parametrize("kwargs", [FIXED[0], DRAWN[0]], ids=named)
def test_vector__before_the_first_reset(kwargs):
    """All show the same problem; those without a seed draw what they want from then on."""
    batched, single = both(kwargs, 3)
    stages = batched.problems.stages[0]
    compare(batched, single, np.random.default_rng(0), 2 * stages - 2)
    assert np.isfinite(batched.step(np.zeros(3, dtype=np.int64))[0]["chain"]).all()


def test_vector__seeds():
    batched, single = both(DRAWN[3], 3)
    for seed in (5, [8, None, 9], None):
        assert_same(batched.reset(seed=seed), single.reset(seed=seed))
        assert batched.np_random_seed == single.np_random_seed
        states = [[g.bit_generator.state for g in env.np_random] for env in (batched, single)]
        assert states[0] == states[1]
    mask = np.array([False, True, False])
    for env in (batched, single):  # the others keep their generators
        env.reset(seed=[1, 2, 3], options={"reset_mask": mask})
    assert batched.np_random_seed == single.np_random_seed == (8, 2, 9)
    with pytest.raises(ValueError, match="3 seeds are needed"):
        batched.reset(seed=[1, 2])
    for seed in (-1, [1, -1, 2], [1, 1.5, 2]):
        with pytest.raises(gym.error.Error):
            batched.reset(seed=seed)


def chance(space, rng):
    """A random plan within the memory, by ``PlanSpace``; masks on the way, as (kind, where)."""
    points, units, seen = [0], [0], []
    for stage in range(space.stages - 1):
        legal = space.legal_points(stage, points[-1], units[-1])[:-1]
        seen.append((legal, (stage, points[-1], units[-1])))
        points.append(int(rng.choice(np.flatnonzero(legal))))
        legal = space.legal_units(stage, points[-2], units[-1], points[-1])[:-1]
        seen.append((legal, (stage, points[-2], units[-1], points[-1])))
        units.append(int(rng.choice(np.flatnonzero(legal))))
    return points[1:], units[1:], seen


def check_dynamics(space, rng):
    """Tables and batches against the space and the judge, at every step of a random plan."""
    points, units, seen = chance(space, rng)
    last, value = space.stages - 1, plan_values(space.pipeline, *space.plan(points, units))
    batch = PlanBatch.stack([space, space]).take(np.array([1, 0]))
    for dynamics in (PlanTables(space), batch):
        for rows in (np.array([1, 0, 1]), np.array([1])):
            k = len(rows)
            for legal, (stage, *at) in seen:
                places = [np.full(k, x) for x in at]
                kind = dynamics.legal_units if len(at) == 3 else dynamics.legal_points
                for number in (stage, np.full(k, stage)):
                    found = kind(number, *places, rows=rows)
                    assert (found[:, : len(legal)] == legal).all()
                    assert not found[:, len(legal) :].any()
            chosen = rng.integers(0, 9, (2, 7, k))  # what lies behind the last cut does not count
            chosen[0, :last], chosen[1, :last] = np.array(points)[:, None], np.array(units)[:, None]
            assert_same(dynamics.values(*chosen, rows), np.full(k, value))


@given(toys.pipelines(least=3), st.integers(2, 6), st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_dynamics__equal_space_and_judge(pipeline, stages, seed):
    """On any pipeline; many press against the memory."""
    pipeline = replace(pipeline, recompute="full", sync="allreduce")
    try:
        space = PlanSpace.build(pipeline, stages)
    except InfeasibleError:
        assume(False)
    check_dynamics(space, np.random.default_rng(seed))


@pytest.mark.parametrize("shape", [(67, 3), (64, 2), (1, 64), (130, 1), (7, 30)])
def test_dynamics__of_large_clusters(shape):
    """Units of several servers, the last of them smaller."""
    rng, n = np.random.default_rng(0), 60
    device = Cluster.parse("A").device
    for memory in (2e9, 1e9, 3e8):
        cluster = Cluster(*shape, replace(device, memory_bytes=memory), 8e9, 1e9)
        profile = toys.chain(rng.random(n), rng.random(n), 1e8 * rng.random(n), 1e8 * rng.random(n))
        try:
            space = PlanSpace.build(Pipeline(profile, cluster), 5)
        except InfeasibleError:
            continue
        for _ in range(10):
            check_dynamics(space, rng)


def test_vector__rewards_are_the_judges():
    batched = PipelinePlanVectorEnv(40, **FIXED[0])
    rng, infos = np.random.default_rng(0), batched.reset()[1]
    for _ in range(6):
        _, rewards, terminated, _, infos = batched.step(drawn(infos["action_mask"], rng))
    assert terminated.all()
    assert len(set(rewards)) > 30
    for index in range(40):
        report = judge(batched.plan(index), batched.problems.of[index].pipeline)
        assert rewards[index] == report.value > 0


@pytest.mark.parametrize("illegal", [0.0, 0.1])
def test_vector__kinds_of_actions(illegal):
    kwargs, rng = FIXED[2], np.random.default_rng(0)
    for kind in (np.int64, np.int32, np.int16, np.float64, object, list):
        batched, single = both(kwargs, 6)
        batched.reset()
        single.reset()
        for _ in range(12):
            actions = drawn(batched.action_masks(), rng, illegal)
            asked = actions.tolist() if kind is list else actions.astype(kind)
            assert_same(batched.step(asked), single.step(actions))


@pytest.mark.parametrize("action", [2**70, 2**64 - 1, 2**63, -(2**63), 10**6, 192, -1])
def test_vector__actions_far_off(action):
    batched, single = PipelinePlanVectorEnv(2, **FIXED[0]), PipelinePlanEnv(**FIXED[0])
    point = int(np.flatnonzero(batched.reset()[1]["action_mask"][1])[0])
    single.reset()
    observation, rewards, terminated, _, infos = batched.step([action, point])
    assert rewards.tolist() == [-1.0, 0.0]
    assert terminated.tolist() == [True, False]
    expected = single.step(action)
    assert_same({key: value[0] for key, value in observation.items()}, expected[0])
    assert_same(infos["action_mask"][0], expected[4]["action_mask"])
    batched.step([action, 0])  # what is asked of an episode that is over does not count
    assert batched.action_masks()[0].any()


def test_vector__over_without_autoreset():
    batched, single = both(FIXED[0], 2, "Disabled")
    for env in batched, single:
        env.reset()
        env.step(np.array([191, 191]))
        with pytest.raises(AssertionError):
            env.step(np.array([0, 0]))
    with pytest.raises(AssertionError, match=r"\[0, 1\] are over"):
        batched.step(np.array([0, 0]))
    batched.reset(options={"reset_mask": np.array([True, True])})
    assert batched.step(np.array([191, 191]))[2].all()


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (None, TypeError),
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
def test_vector__bad_reset_masks(mask, error):
    with pytest.raises(error, match="reset_mask"):
        PipelinePlanVectorEnv(2, **FIXED[0]).reset(options={"reset_mask": mask})


def test_vector__bad_arguments():
    with pytest.raises(ValueError, match="num_envs"):
        PipelinePlanVectorEnv(0, **FIXED[0])
    with pytest.raises(ValueError, match="AutoresetMode"):
        PipelinePlanVectorEnv(1, autoreset_mode="Sometimes", **FIXED[0])
    with pytest.raises(ParenvsError, match="did you mean"):
        PipelinePlanVectorEnv(1, instance="vgg-91")
    with pytest.raises(ValueError, match="3 actions are needed"):
        PipelinePlanVectorEnv(3, **FIXED[0]).step(np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize("fork", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kwargs", [FIXED[0], DRAWN[0]], ids=named)
def test_vector__fork(fork, mode, kwargs):
    """A copy in the middle of episodes goes on as the original, and leaves it alone."""
    env, rng = PipelinePlanVectorEnv(4, autoreset_mode=mode, **kwargs), np.random.default_rng(0)
    env.reset(seed=3)
    env.step(drawn(env.action_masks(), rng))
    other, before = fork(env), env.action_masks()
    actions, expected = [], []
    for _ in range(1 if mode == "Disabled" else 12):
        actions.append(drawn(other.action_masks(), rng))
        expected.append(other.step(actions[-1]))
    assert_same(env.action_masks(), before)
    for action, outcome in zip(actions, expected, strict=True):
        assert_same(env.step(action), outcome)


@pytest.mark.parametrize("kwargs", [FIXED[0], DRAWN[3]], ids=named)
@pytest.mark.parametrize("mode", MODES[:2])
def test_vector__nothing_is_shared(mode, kwargs):
    """What a caller writes into what it got does not come back."""
    env, twin = (PipelinePlanVectorEnv(3, autoreset_mode=mode, **kwargs) for _ in range(2))
    rng, some = np.random.default_rng(0), {"reset_mask": np.array([True, False, False])}
    env.reset(seed=0)
    twin.reset(seed=0)
    for _ in range(9):
        actions = drawn(env.action_masks(), rng, 0.1)
        outcome = env.step(actions)
        assert_same(outcome, twin.step(actions))
        env.action_masks()[:] = True
        deface(outcome)
        outcome = env.reset(options=some)
        assert_same(outcome, twin.reset(options=some))
        deface(outcome)


def deface(thing):
    for value in thing.values() if isinstance(thing, dict) else thing:
        if isinstance(value, (dict, tuple)):
            deface(value)
        elif isinstance(value, np.ndarray) and value.dtype == object:
            deface(tuple(x for x in value if x is not None))
        elif isinstance(value, np.ndarray):
            assert value.flags.writeable
            value[...] = 1


@pytest.mark.parametrize("kwargs", [FIXED[0], DRAWN[3]], ids=named)
@pytest.mark.parametrize("mode", MODES)
def test_vector__without_copies(mode, kwargs):
    """The same numbers, but most of them are views."""
    env, twin = (
        PipelinePlanVectorEnv(5, autoreset_mode=mode, copy=copy_, **kwargs)
        for copy_ in (False, True)
    )
    rng, arrays = np.random.default_rng(0), set()
    env.reset(seed=0)
    twin.reset(seed=0)
    for _ in range(20):
        actions = drawn(env.action_masks(), rng, 0.05)
        outcome = env.step(actions)
        assert_same(outcome, twin.step(actions))
        arrays.add(outcome[0]["topology"].ctypes.data)
        with pytest.raises(ValueError, match="read-only"):
            outcome[0]["chain"][:] = 0
        if mode == "Disabled" and outcome[2].any():
            for one in env, twin:
                one.reset(options={"reset_mask": outcome[2]})
    assert len(arrays) == 1


def test_vector__keeps_little_of_drawn_problems():
    """Less than the 300 kB that a ``PlanSpace`` of 8 stages holds, and the bounds of the space."""
    sizes = []
    for count in (2, 12):
        env = PipelinePlanVectorEnv(count, **DRAWN[1])
        env.reset(seed=0)
        env.observation_space = None
        sizes.append(len(pickle.dumps(env)))
    assert (sizes[1] - sizes[0]) / 10 < 150e3


@pytest.mark.parametrize("mode", [None, "vector_entry_point", "sync"])
def test_vector__make_vec(mode):
    kwargs = {"instance": "vgg-19", "cluster": "B", "stages": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gym.make_vec(ID, num_envs=4, vectorization_mode=mode, **kwargs)
    assert isinstance(envs, SyncVectorEnv if mode == "sync" else PipelinePlanVectorEnv)
    assert envs.num_envs == 4
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    reference = SyncVectorEnv([partial(PipelinePlanEnv, **kwargs)] * 4)
    for name in ("observation_space", "single_observation_space", "action_space"):
        assert getattr(envs, name) == getattr(reference, name)
    assert envs.single_action_space == reference.single_action_space
    assert_same(envs.reset(seed=0), reference.reset(seed=0))
    again = gym.make_vec(envs.spec)
    assert type(again) is type(envs)
    assert again.num_envs == 4
    envs.close()
    assert envs.closed


def test_vector__make_vec_with_arguments():
    before = dict(PipelinePlanEnv.metadata)
    envs = gym.make_vec(
        f"parenvs:{ID}", num_envs=2, autoreset_mode="SameStep", copy=False, **FIXED[0]
    )
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert PipelinePlanEnv.metadata == before
    envs.reset()
    infos = envs.step(np.array([191, 191]))[-1]
    assert infos["_final_obs"].all()
    assert envs.single_observation_space.contains(infos["final_obs"][0])


def test_vector__wrappers():
    """Statistics of episodes, and infos as a list, are those of single environments."""
    rng = np.random.default_rng(0)
    batched, single = (RecordEpisodeStatistics(env) for env in both(FIXED[0], 3))
    batched.reset()
    single.reset()
    ended = 0
    for _ in range(21):
        actions = drawn(batched.unwrapped.action_masks(), rng)
        mine, theirs = (env.step(actions)[-1] for env in (batched, single))
        assert ("episode" in mine) == ("episode" in theirs)
        if "episode" in mine:
            assert_same(mine["episode"]["r"], theirs["episode"]["r"])
            assert_same(mine["episode"]["l"], theirs["episode"]["l"])
            ended += 1
    assert ended == 3
    mine, theirs = (DictInfoToList(env).reset()[1] for env in both(FIXED[0], 3))
    for one, other in zip(mine, theirs, strict=True):
        assert_same(one, other)


def test_vector__render():
    kwargs = {**FIXED[0], "render_mode": "ansi"}
    batched, single = both(kwargs, 2)
    rng = np.random.default_rng(0)
    batched.reset()
    single.reset()
    for _ in range(4):
        assert batched.render() == single.render()
        actions = drawn(batched.action_masks(), rng)
        batched.step(actions)
        single.step(actions)
    assert len(set(batched.render())) == 2
    with pytest.warns(UserWarning, match="render_mode='ansi' or 'rgb_array'"):
        assert PipelinePlanVectorEnv(2, **FIXED[0]).render() is None


# Speed: ratios in one process, a third of what was measured, so that a busy machine passes.


def seconds(action, times):
    begin = time.process_time()
    for _ in range(times):
        action()
    return (time.process_time() - begin) / times


def ratio(one, other, times):
    """How many times as long ``other`` takes: the best of several turns."""
    one(), other()
    turns = [(seconds(one, times), seconds(other, times)) for _ in range(7)]
    return min(turn[1] for turn in turns) / min(turn[0] for turn in turns)


def player(envs, steps):
    """A function that plays so many steps from a reset on; actions are drawn before."""
    rng, infos = np.random.default_rng(0), envs.reset(seed=0)[1]
    actions = []
    for _ in range(steps):
        legal = infos.get("action_mask", np.ones((envs.num_envs, 2)))
        actions.append(drawn(legal, rng))
        infos = envs.step(actions[-1])[-1]

    def play():
        envs.reset(seed=0)
        for action in actions:
            envs.step(action)

    return play


def test_vector__speed_against_single():
    """Steps of eight at once over those of one alone: 10 when measured."""
    single, actions = gym.make(ID, **FIXED[0]), []
    rng, (_, info) = np.random.default_rng(0), single.reset()
    for _ in range(6):
        actions.append(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        info = single.step(actions[-1])[-1]

    def alone():
        single.reset()
        for action in actions:
            single.step(action)

    envs = gym.make_vec(ID, num_envs=8, **FIXED[0])
    assert 8 * ratio(player(envs, 6), alone, 20) > 3


@pytest.mark.parametrize(("count", "asked"), [(8, 0.4), (64, 0.2), (1024, 0.04)])
def test_vector__speed_against_cartpole(count, asked):
    """With 18 kB of observations against 16 bytes; 1.4, 0.6 and 0.15 when measured."""
    mode = "vector_entry_point"
    cartpole, envs = (
        gym.make_vec(name, num_envs=count, vectorization_mode=mode, **kwargs)
        for name, kwargs in (("CartPole-v1", {}), (ID, FIXED[0]))
    )
    assert ratio(player(envs, 21), player(cartpole, 21), 3) > asked
