"""``HybridPlan-v0`` for one agent."""

import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from cases import each
from gymnasium.utils.env_checker import check_env

import parenvs
from parenvs.core.game import EVERY
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.game import HybridPlanVectorEnv
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.hybrid.turns.actions import ACTIONS, OFFSETS, SIZES, TURNS

SMALL = {"instance": "hybrid/7"}


def played(env, rng, seed=None, options=None):
    """Play an episode of random legal actions: its steps, as observation, action, reward, info."""
    observation, info = env.reset(seed=seed, options=options)
    steps, over = [], False
    while not over:
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        before = observation
        observation, reward, over, truncated, info = env.step(action)
        assert not truncated
        steps.append((before, action, reward, info))
    return steps


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"pool": 5},
        SMALL,
        {"cluster": "hetero", "pool": 2},
        {"instance": "llama3-8b", "cluster": "2x8:h100", "batch": 64, "mask": "completable"},
        {"instance": "gpt-1.5b", "cluster": "3x4:v100", "batch": 96, "server_order": "free"},
    ],
    ids=["drawn", "named", "hetero", "completable", "free order"],
)
def test_env__passes_gymnasiums_check(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("HybridPlan-v0", **options).unwrapped, skip_render_check=True)


@pytest.mark.slow
def test_env__passes_stable_baselines_check():
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(gym.make("HybridPlan-v0", **SMALL).unwrapped)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{"pool": 6}, {"instance": "hetero-8", "pool": 4}, {"instance": "hybrid-test"}]
)
def test_return__is_the_judges(options):
    env, rng = gym.make("HybridPlan-v0", **options), np.random.default_rng(0)
    fitting = 0
    for episode in range(25):
        steps = played(env, rng, seed=episode)
        plan, problem = env.unwrapped.plan(), env.unwrapped.problem
        report, info = parenvs.judge(plan, problem), steps[-1][3]
        assert info["instance"] == plan.instance == problem.instance
        assert info["length_seconds"] == report.step.length
        assert info["excess_bytes"] == report.held.total.max() - problem.memory_limit
        value = problem.bound_seconds / report.step.length if report.legal else -1.0
        assert steps[-1][2] == value <= 1
        assert all(reward == 0 for _, _, reward, _ in steps[:-1])
        fitting += report.legal
    assert fitting
    assert parenvs.judge(plan).step.length == report.step.length  # found by its name


@pytest.mark.slow
def test_completable__never_ends_over_memory():
    env = gym.make("HybridPlan-v0", instance="llama3-70b", cluster="8x8:h100", batch=64,
                   mask="completable")  # fmt: skip
    rng = np.random.default_rng(0)
    assert all(played(env, rng)[-1][2] > 0 for _ in range(3))
    loose = gym.make("HybridPlan-v0", instance="llama3-70b", cluster="8x8:h100", batch=64)
    assert all(played(loose, rng)[-1][2] == -1 for _ in range(8))


def test_illegal_actions__end_the_episode():
    env = gym.make("HybridPlan-v0", **SMALL).unwrapped
    _, info = env.reset()
    for action in (OFFSETS[1], -1, ACTIONS):
        env.reset()
        _, reward, over, truncated, info = env.step(action)
        assert (reward, over, truncated) == (-1.0, True, False)
        assert info["action_mask"].all()
        assert "length_seconds" not in info
    assert env.step(0)[1:3] == (-1.0, True)


@each("action", [0.7, "1", None])
def test_actions__must_be_whole(action):
    env = gym.make("HybridPlan-v0", **SMALL).unwrapped
    env.reset()
    with pytest.raises(ParenvsError, match="whole number"):
        env.step(action)


def test_observation__tells_the_plan_so_far():
    env, rng = gym.make("HybridPlan-v0", **SMALL), np.random.default_rng(3)
    steps = played(env, rng)
    plan, problem = env.unwrapped.plan(), env.unwrapped.problem
    last = {key: part[0] for key, part in env.unwrapped.game.observation(EVERY).items()}
    size = len(problem.model) // plan.chunks
    ends = [stage.layers[0][1] / size for stage in plan.stages]
    assert last["stages"][: len(ends), 0] == pytest.approx(ends)
    assert last["stages"][: len(ends), 3].sum() == pytest.approx(
        sum(stage.devices for stage in plan.stages) / problem.cluster.devices
    )
    assert last["stages"][: len(ends), 4] == pytest.approx(
        [np.log2(stage.tp) / 3 for stage in plan.stages]
    )
    assert last["progress"][5] == 0
    used = sum(stage.devices for stage in plan.stages) / 8
    assert last["cluster"][:, 3].sum() == pytest.approx(used)
    assert not last["turn"].any()
    for observation, action, _, _ in steps:
        turn = int(observation["turn"].argmax())
        assert OFFSETS[turn] <= action < OFFSETS[turn] + SIZES[turn]
        assert observation["turn"].sum() == 1
    assert len(TURNS) == 6


def test_drawn__depends_on_the_seed_alone():
    envs = [gym.make("HybridPlan-v0", pool=1000) for _ in range(2)]
    names = [[env.reset(seed=9 if k == 0 else None)[1]["instance"] for k in range(5)]
             for env in envs]  # fmt: skip
    assert names[0] == names[1]
    assert len(set(names[0])) == 5
    runs = [played(env, np.random.default_rng(0), seed=4) for env in envs]
    assert [step[1:3] for step in runs[0]] == [step[1:3] for step in runs[1]]


def test_order__of_a_set():
    """Single environments play it one after the other, those of a batch take turns."""
    kwargs = {"instance": "hetero-8-outside", "order": "sequential"}
    env, batch = gym.make("HybridPlan-v0", **kwargs), HybridPlanVectorEnv(3, **kwargs)
    shipped = [problem.instance for problem in problem_sets()["hetero-8-outside"]]
    names = [env.reset(seed=0 if k == 0 else None)[1]["instance"] for k in range(9)]
    assert names == [*shipped, shipped[0]]
    assert env.reset(seed=0)[1]["instance"] == names[0]
    assert [*batch.reset(seed=0)[1]["instance"], *batch.reset()[1]["instance"]] == names[:6]


def test_family__of_a_generator():
    env = gym.make("HybridPlan-v0", family="llama", pool=9, order="sequential")
    assert [env.reset()[1]["instance"] for _ in range(4)] == [
        "hybrid/1", "hybrid/4", "hybrid/7", "hybrid/1",
    ]  # fmt: skip


def test_options__play_one_episode_of_another_problem():
    env = gym.make("HybridPlan-v0", **SMALL)
    assert env.reset(options={"instance": "hybrid/8"})[1]["instance"] == "hybrid/8"
    assert env.reset()[1]["instance"] == "hybrid/7"
    named = {"instance": "gpt-1.5b", "cluster": "2x8:a100", "batch": 64}
    assert env.reset(options=named)[1]["instance"] == "gpt-1.5b"
    with pytest.raises(ParenvsError, match="unknown 'instnce'"):
        env.reset(options={"instnce": "hybrid/8"})
    with pytest.raises(ParenvsError, match="give 'instance'"):
        env.reset(options={"batch": 8})


@each(
    ("arguments", "message"),
    [
        ({"mask": "all"}, "mask must be one of legal, completable, not 'all'"),
        ({"server_order": "any"}, "server_order must be one of fixed, free, not 'any'"),
        ({"order": "any"}, "order must be one of random, sequential, not 'any'"),
        ({"order": "free", "server_order": "fixed"}, "'free' means server_order, which is 'fixed'"),
        ({"order": "sequential", "instance": "hybrid/7"}, "order: one problem is played"),
        ({"family": "gpt", "instance": "hybrid/7"}, "family: one problem is played"),
        ({"family": "gtp"}, "family: hybrid has no 'gtp' .did you mean 'gpt'"),
        ({"pool": 0}, "pool must be a whole number from 1, not 0"),
        ({"batch": 64}, "batch: problems of hybrid have settings of their own"),
        ({"instance": "hybrid-test", "cluster": "A"}, "cluster: problems of hybrid-test"),
        ({"instance": "nothing"}, "unknown instance 'nothing'"),
        ({"instance": "llama3-8b"}, "needs batch"),
        ({"instance": "hybrid/x"}, "hybrid/x"),
        ({"problem": 3}, "problem must be a parenvs.Hybrid, not 3"),
    ],
)
def test_arguments__are_refused_by_name(arguments, message):
    with pytest.raises(ParenvsError, match=message):
        gym.make("HybridPlan-v0", **arguments)


def test_arguments__order_of_servers():
    """``order="free"`` alone is short for ``server_order``, as nothing else can be meant."""
    for given in ({"order": "free"}, {"server_order": "free"}):
        env = gym.make("HybridPlan-v0", cluster="hetero", **given).unwrapped
        assert (env.game.rules.order, env.game.source.sequential) == ("free", False)
        assert env.instance.startswith("hetero-32/")


def test_problem__of_ones_own_and_pickled():
    problem = parenvs.problem("llama2-7b", "2x8:a100", task="hybrid", batch=64)
    env = gym.make("HybridPlan-v0", problem=problem).unwrapped
    again = pickle.loads(pickle.dumps(env))
    runs = [played(e, np.random.default_rng(0), seed=0) for e in (env, again)]
    assert [step[1:3] for step in runs[0]] == [step[1:3] for step in runs[1]]


@pytest.mark.thorough
def test_render__shows_the_plan_as_it_grows():
    env = gym.make("HybridPlan-v0", render_mode="ansi", **SMALL)
    rng, texts = np.random.default_rng(1), []
    _, info = env.reset()
    over = False
    while not over:
        texts.append(env.render())
        _, _, over, _, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
    assert len(set(texts)) > 2
    assert all(isinstance(text, str) for text in texts)
    picture = gym.make("HybridPlan-v0", render_mode="rgb_array", **SMALL)
    picture.reset()
    assert picture.render().shape == (800, 1280, 3)
