"""The batched ``PipelinePlan-v0``: ``SyncVectorEnv`` of single ones, to the last bit."""

import pickle
from dataclasses import replace
from functools import partial

import batches
import gymnasium as gym
import numpy as np
import pytest
import toys
from batches import assert_same, drawn, modes, named
from cases import each, slow
from gymnasium.vector import AutoresetMode
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parenvs import Cluster, Pipeline, judge
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.pipeline.batch import PointBatch, computes
from parenvs.tasks.pipeline.game.plan import PipelinePlanVectorEnv
from parenvs.tasks.pipeline.game.tables import PlanProblem, PlanTables, reserved, rows_of
from parenvs.tasks.pipeline.points import PointSpace

FIXED = [
    {"instance": "t5-base", "cluster": "C"},
    {"instance": "t5-11b", "cluster": "16x8:a100", "stages": 8},  # units are servers
    {"instance": "vgg-19", "cluster": "1x12:a100", "stages": 2, "micro_batches": 3},
    {"instance": "plan-test/cnn-003"},
    {"instance": "vgg-19", "cluster": "C", "recompute": "none", "sync": "parameter-server"},
]
DRAWN = [
    {"repeat": 3},
    {"ranges": "outside", "repeat": 2, "family": "transformer"},
    {"instance": "plan-outside", "repeat": 2},
    {"instance": "plan-validation"},
]
both = partial(batches.both, PipelinePlanVectorEnv)


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
@pytest.mark.parametrize("kwargs", [FIXED[3], *slow(*FIXED[:3])], ids=named)
@modes
def test_vector__equals_single_ones(kwargs, mode):
    """Hundreds of episodes each, in step with each other and not."""
    batched, single = both(kwargs, 24, mode)
    rng = np.random.default_rng(0)
    assert_same(batched.reset(seed=1), single.reset(seed=1))
    ended = compare(batched, single, rng, 60)
    ended += compare(batched, single, rng, 60, illegal=0.1, resets=0.02)
    assert ended > 200


@pytest.mark.thorough
@pytest.mark.parametrize("kwargs", [DRAWN[0], DRAWN[3], *slow(*DRAWN[1:3])], ids=named)
@modes
def test_vector__draws_what_single_ones_draw(kwargs, mode):
    batched, single = both(kwargs, 5, mode)
    rng, ended = np.random.default_rng(0), 0
    for seed in (7, None, [3, None, 2**40, 0, 3]):
        assert_same(batched.reset(seed=seed), single.reset(seed=seed))
        ended += compare(batched, single, rng, 16, illegal=0.02, resets=0.01)
    assert ended > 15
    assert len(set(batched.get_attr("instance"))) > 1 or "family" in kwargs


@pytest.mark.thorough
@pytest.mark.parametrize("kwargs", [FIXED[3], *slow(FIXED[0], FIXED[4], DRAWN[0])], ids=named)
@modes
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
    assert set(batched.get_attr("instance")) != {"bert-48"}


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
    stages = batched.game.stages[0]
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
    """A random plan within the memory, by ``PointSpace``; masks on the way, as (kind, where)."""
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
    last, value = space.stages - 1, space.pipeline.values(*space.plan(points, units))
    problem, rows = PlanProblem(space), rows_of([space])
    several = PlanTables(reserved(rows, 3))
    several.put(np.array([1, 2]), rows)
    ways = [(problem.tables, 0), (several, np.array([2, 1, 1]))]
    if computes(space.pipeline):
        ways.append((PointBatch.stack([space, space]).take(np.array([1, 0])), np.array([1, 0, 1])))
    k = 3
    for dynamics, slots in ways:
        is_batch = isinstance(dynamics, PointBatch)
        for legal, (stage, *at) in seen:
            places = [np.full(k, x) for x in at]
            kind = dynamics.legal_units if len(at) == 3 else dynamics.legal_points
            for number in (stage, np.full(k, stage)):
                found = kind(number, *places, slots) if is_batch else kind(slots, number, *places)
                assert (found[:, : len(legal)] == legal).all()
                assert not found[:, len(legal) :].any()
        chosen = rng.integers(0, 9, (2, k, 7))  # what lies behind the last cut does not count
        chosen[0, :, :last], chosen[1, :, :last] = points, units
        figures = dynamics.figures(*chosen, slots) if is_batch else problem.figures(*chosen)
        assert_same(figures[2], np.full(k, value))


@pytest.mark.thorough
@given(toys.pipelines(least=3), st.integers(2, 6), st.integers(0, 2**32), st.booleans())
@settings(max_examples=80)
def test_dynamics__equal_space_and_judge(pipeline, stages, seed, plain):
    """On any pipeline; many press against the memory."""
    if plain:
        pipeline = replace(pipeline, recompute="full", sync="allreduce")
    try:
        space = PointSpace.build(pipeline.with_stages(stages))
    except InfeasibleError:
        assume(False)
    check_dynamics(space, np.random.default_rng(seed))


@each("shape", [(67, 3), (64, 2), (1, 64), (130, 1), (7, 30)])
def test_dynamics__of_large_clusters(shape):
    """Units of several servers, the last of them smaller."""
    rng, n = np.random.default_rng(0), 60
    device = Cluster.parse("A").device
    for memory in (2e9, 1e9, 3e8):
        cluster = Cluster(*shape, replace(device, memory_bytes=memory), 8e9, 1e9)
        profile = toys.chain(rng.random(n), rng.random(n), 1e8 * rng.random(n), 1e8 * rng.random(n))
        try:
            space = PointSpace.build(Pipeline(profile, cluster, 5))
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
        report = judge(batched.plan(index), batched.game.problem(index))
        assert rewards[index] == report.value > 0


@pytest.mark.thorough
@pytest.mark.parametrize("kwargs", [FIXED[0], DRAWN[3]], ids=named)
@modes
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
    """Less than the 300 kB that a ``PointSpace`` of 8 stages holds, and the bounds of the space."""
    sizes = []
    for count in (2, 12):
        env = PipelinePlanVectorEnv(count, **DRAWN[1])
        env.reset(seed=0)
        env.observation_space = None
        sizes.append(len(pickle.dumps(env)))
    assert (sizes[1] - sizes[0]) / 10 < 180e3
