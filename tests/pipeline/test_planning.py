"""``PipelinePlan-v0``: masks by trying all plans, rewards as the evaluator has them, batches."""

import itertools
import warnings

import brute_force as bf
import gymnasium as gym
import numpy as np
import pytest
import toys
from batches import MODES, assert_alike, both
from cases import each
from gymnasium.utils.env_checker import check_env

from parenvs import judge
from parenvs.agents.pipeline.exact import exact_points
from parenvs.cluster import Cluster
from parenvs.datasets.pipeline import problems
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.pipeline.planning import PipelinePlanningEnv, PipelinePlanningVectorEnv
from parenvs.tasks.pipeline.problem import Pipeline

ID = "PipelinePlan-v0"
POINTS, UNITS = 128, 64


def make(**kwargs):
    return gym.make(ID, **kwargs).unwrapped


def play(env, choose, **reset):
    """An episode of legal actions: its observations, rewards and last info."""
    observation, info = env.reset(**reset)
    seen, rewards, over = [observation], [], False
    while not over:
        assert np.array_equal(env.action_masks(), info["action_mask"])
        legal = np.flatnonzero(info["action_mask"])
        observation, reward, over, _, info = env.step(int(choose(observation, legal)))
        seen.append(observation)
        rewards.append(reward)
    return seen, rewards, info


def chance(seed):
    rng = np.random.default_rng(seed)
    return lambda _, legal: rng.choice(legal)


@pytest.fixture
def toy(tmp_path):
    return toys.balanced().kwargs(tmp_path)


@pytest.mark.thorough
@each("number", range(30))
def test_masks__admit_exactly_the_plans_that_fit(number):
    """Every prefix of a legal plan, and nothing else, is reached by legal actions."""
    pipeline, stages = bf.random_pipeline(np.random.default_rng([number, 11]))
    pipeline = pipeline.with_stages(min(stages, 3))
    cuts, devices = bf.all_plans(pipeline, pipeline.stages)
    fits = pipeline.excess_bytes(cuts, devices) <= 0
    choices = np.stack([cuts, POINTS + devices], axis=-1).reshape(len(cuts), -1)[fits].tolist()
    if not choices:
        with pytest.raises(InfeasibleError, match="fits the memory"):
            PipelinePlanningEnv(problem=pipeline)
        return
    follow = {}
    for plan in choices:
        for k, action in enumerate(plan):
            follow.setdefault(tuple(plan[:k]), set()).add(action)
    env = PipelinePlanningEnv(problem=pipeline)
    for prefix, actions in follow.items():
        _, info = env.reset()
        for action in prefix:
            *_, info = env.step(action)
        assert set(np.flatnonzero(info["action_mask"]).tolist()) == actions


@pytest.mark.thorough
@each(
    "kwargs",
    [
        {},
        {"ranges": "outside", "repeat": 1},
        {"family": "binomial", "repeat": 2},
        {"instance": "t5-11b", "cluster": "C"},
        {"instance": "vgg-19", "cluster": "16x8:a100", "stages": 8},
        {"instance": "plan-test", "rows": "ahead"},
    ],
)
def test_rewards__are_those_of_the_evaluated_plan(kwargs):
    env, choose = make(**kwargs), chance(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)
    for episode in range(5):
        seed = {"seed": 5} if episode == 0 else {}
        seen, rewards, info = play(env, choose, **seed)
        assert all(env.observation_space.contains(x) for x in seen)
        assert len(rewards) == 2 * (env.problem.stages - 1) <= env.episode_steps
        report = judge(env.plan(), env.problem)
        assert report.legal, report.reasons
        assert rewards == [0.0] * (len(rewards) - 1) + [report.value]
        assert info["cost"] == report.length_seconds
        fullest = max(stage.memory_bytes for stage in report.stages)
        assert info["excess_bytes"] == fullest - env.problem.memory_limit <= 0
        assert ("gap" in info) == ("reference" in info) == (kwargs.get("instance") == "plan-test")


def test_check_env__of_stable_baselines3():
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    for rows in (None, "ahead"):
        checker.check_env(make(instance="vgg-19", rows=rows), warn=False)


def test_optimum__has_no_gap():
    name = problems.load_set("plan-validation")[3].name
    env = make(instance=name)
    answer = exact_points(env.game.space_of(0))
    points = np.searchsorted(env.game.space_of(0).pivots, answer.plan.cuts)
    units = np.searchsorted(env.game.space_of(0).devices, answer.plan.device_cuts)
    actions = iter(np.stack([points, POINTS + units], axis=1).ravel().tolist())
    _, rewards, info = play(env, lambda *_: next(actions))
    assert rewards[-1] == problems.optimum_of(name)
    assert info["gap"] == pytest.approx(0, abs=1e-12)
    assert info["reference"] == info["bound"] == pytest.approx(answer.cost, rel=1e-12)
    env.reset()
    *_, info = env.step(-1)
    assert not {"gap", "cost"} & info.keys()


@each("action", [0, 127, 128, 191, 192, -1])
def test_illegal_actions__end_the_episode(toy, action):
    env = make(**toy)
    env.reset()
    *_, reward, over, _, info = env.step(action)
    assert (reward, over) == (-1.0, True) and info["action_mask"].all()
    assert env.step(1)[1] == -1.0


def test_observation__of_a_known_chain(toy):
    """Every figure of the observation, by hand."""
    env = make(**toy)
    observation, info = env.reset()
    profile, cluster = env.problem.profile, env.problem.cluster
    n, d = len(profile), cluster.devices
    seconds = np.cumsum(profile.forward + profile.backward)
    cut = np.append(profile.cut_bytes[:-1], 0) / cluster.inter_bw
    weights = 2 * np.cumsum(profile.parameter_bytes) / cluster.inter_bw
    scale = max(seconds.max(), cut.max(), weights.max())
    assert np.allclose(observation["chain"][:3, :n], np.stack([seconds, cut, weights]) / scale)
    assert (observation["chain"][3] == (np.arange(POINTS) < n)).all()
    assert not observation["chain"][:, n:].any()
    topology = observation["topology"]
    assert not topology[d:].any() and not topology[:, d:].any()
    for i, j in itertools.product(range(d), repeat=2):
        same = i // cluster.devices_per_server == j // cluster.devices_per_server
        bandwidth = cluster.intra_bw if same else cluster.inter_bw
        assert topology[i, j] == np.float32(bandwidth / max(cluster.intra_bw, cluster.inter_bw))
    numbers = observation["numbers"]
    assert numbers[0] == toy["stages"] / 8 and numbers[2] == d / UNITS
    assert numbers[1] == np.float32(toy["micro_batches"] / 64)
    held = 2 * (0.9 * cluster.device.memory_bytes / 2) / cluster.inter_bw / scale
    assert numbers[4] == pytest.approx(held / (1 + held), rel=1e-6)
    assert numbers[5] == pytest.approx(profile.backward.sum() / seconds[-1])
    assert (observation["plan"] == -1).all() and observation["step"] == 0
    point = int(np.flatnonzero(info["action_mask"])[0])
    *_, info = env.step(point)
    unit = int(np.flatnonzero(info["action_mask"])[0])
    observation, *_ = env.step(unit)
    chosen = [np.float32(point / POINTS), np.float32((unit - POINTS) / UNITS)]
    assert observation["plan"][:, 0].tolist() == chosen and observation["step"] == 2
    assert env.plan().cuts == (point,) and env.plan().device_cuts == (unit - POINTS,)


def test_repeat__plays_each_generated_problem_as_often():
    env = make(repeat=3)
    names = [env.reset(seed=1)[1]["instance"]] + [env.reset()[1]["instance"] for _ in range(6)]
    assert [a == b for a, b in itertools.pairwise(names)] == [True, True, False, True, True, False]
    assert env.reset(seed=1)[1]["instance"] == names[0]  # a seed starts anew
    assert env.reset(options={"instance": "vgg-19"})[1]["instance"] == "vgg-19"
    assert [env.reset()[1]["instance"] for _ in range(3)] == [names[0], names[0], names[3]]
    assert env.reset(seed=2)[1]["instance"] != names[0]
    again = make(instance=names[3])
    assert np.array_equal(again.reset()[0]["chain"], make(instance=names[3]).reset()[0]["chain"])


@pytest.mark.thorough
@each("mode", MODES)
@each(
    "kwargs",
    [
        {"repeat": 2},
        {"instance": "plan-outside", "rows": "bare"},
        {"instance": "vgg-19", "recompute": "none", "tied": "held", "rows": "ahead"},
    ],
)
def test_batches__are_single_environments_to_the_last_bit(kwargs, mode):
    batched, single = both(PipelinePlanningVectorEnv, kwargs, 3, mode)
    resets = {13: {"instance": "vgg-19", "stages": 3}}
    assert_alike(batched, single, mode, np.random.default_rng(0), 25, resets=resets)


def test_rows__the_heuristic_is_better_than_chance():
    env = make(instance="plan-validation", rows="ahead")
    returns = {"heuristic": 0.0, "chance": 0.0}
    for seed in range(8):
        best = lambda seen, legal: legal[seen["actions"][legal, 0].argmax()]  # noqa: E731
        returns["heuristic"] += sum(play(env, best, seed=seed)[1])
        returns["chance"] += sum(play(env, chance(seed), seed=seed)[1])
    assert returns["heuristic"] > 1.3 * returns["chance"]


def test_rows__are_finite_where_the_last_pivots_take_no_time():
    profile = toys.chain([1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0] * 4, [1.0] * 4)
    env = PipelinePlanningEnv(problem=Pipeline(profile, Cluster.parse("1x4:v100"), 4), rows="ahead")
    with np.errstate(all="raise"):
        seen, rewards, _ = play(env, lambda _, legal: legal[-1])
    assert all(np.isfinite(x["actions"]).all() for x in seen) and 0 < rewards[-1] <= 1


@each(
    ("kwargs", "words"),
    [
        ({"family": "cn"}, "did you mean 'cnn'"),
        ({"ranges": "all"}, "unknown ranges 'all'"),
        ({"repeat": 0}, "repeat must be >= 1"),
        ({"instance": "t5-base", "repeat": 2}, "repeat: no problems are generated here"),
        ({"cluster": "A"}, "cluster: generated problems have settings of their own"),
        ({"instance": "plan-test/cnn-003", "stages": 3}, "stages: .* has settings of its own"),
        ({"order": "sequential"}, "order: 'sequential' plays a set"),
        ({"instance": "t5-bas"}, "did you mean 't5-base'"),
        ({"instance": "t5-base", "stages": 9}, "at most 8"),
        ({"instance": "plan-s16-test"}, "16 stages asked for; PipelinePlan-v0 has at most 8"),
        ({"instance": "t5-base", "stages": 1}, "at least 2"),
        ({"instance": "t5-11b", "cluster": "A"}, "fits the memory"),
        ({"instance": "plan-test/cnn-9999"}, "plan-test"),
    ],
)
def test_arguments__are_checked(kwargs, words):
    with pytest.raises(ParenvsError, match=words):
        make(**kwargs)


def test_options__are_checked():
    env = make(problem=toys.balanced().pipeline)
    with pytest.raises(ParenvsError, match="did you mean 'instance'"):
        env.reset(options={"instace": "t5-base"})
    with pytest.raises(ParenvsError, match="must name"):
        env.reset(options={"stages": 3})
