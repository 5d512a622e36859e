import copy
import itertools
import json
import pickle
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import toys
from cases import each, slow
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from second_writing import slow_features

from parenvs import judge, load_profile
from parenvs.agents.pipeline.exact import exact_candidates, exact_full
from parenvs.cluster import PRESETS, Cluster
from parenvs.errors import ParenvsError
from parenvs.shipped import PAPER
from parenvs.tasks.pipeline.cut import PipelineCutEnv
from parenvs.wrappers import MaskInObservation

ID = "PipelineCut-v0"
PROFILES = sorted(
    path
    for path in (Path(__file__).parents[3] / "shared" / "profiles").glob("*.csv")
    if path.stem != "pipedream_optimizer"
)
INSTANCES = [*PAPER, *map(str, PROFILES)]
PROBLEMS = [{"instance": name, "cluster": cluster} for name in INSTANCES for cluster in "ABC"]


def make(**kwargs):
    return gym.make(ID, **kwargs).unwrapped


@pytest.fixture(params=[toys.balanced(), toys.dense()], ids=["balanced", "dense"])
def toy(request):
    return request.param


@pytest.fixture
def env(tmp_path):
    """Three stages, 30 plans."""
    return make(**toys.balanced().kwargs(tmp_path), candidates="all")


def equal(a, b):
    """Whether two observations or infos are the same, types of arrays included."""
    assert a.keys() == b.keys()
    return all(
        np.asarray(a[key]).dtype == np.asarray(b[key]).dtype and np.array_equal(a[key], b[key])
        for key in a
    )


def masks(env, info):
    """The mask, which must be the same in every dialect."""
    mask = info["action_mask"]
    assert mask.dtype == np.int8
    assert mask.shape == (env.action_space.n,)
    assert mask.any()
    assert set(np.unique(mask)) <= {0, 1}
    assert env.action_masks().dtype == bool
    assert np.array_equal(env.action_masks(), mask)
    return mask


def play(env, rng, check=lambda *_: None):
    """A random legal episode; its return."""
    observation, info = env.reset()
    check(observation, info)
    total, done = 0.0, False
    while not done:
        action = env.action_space.sample(info["action_mask"])
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        observation, reward, done, truncated, info = env.step(action)
        assert type(reward) is float
        assert type(done) is bool
        assert truncated is False
        assert reward == 0 or done
        check(observation, info)
        total += reward
    return total


@pytest.mark.thorough
@each("kwargs", PROBLEMS)
def test_pipeline_cut__check_env(kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*no plan fits the memory: t5-11b.*")
        check_env(make(**kwargs), skip_render_check=True)


@pytest.mark.slow
def test_pipeline_cut__check_env_with_rendering(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in (None, "ansi", "rgb_array"):
            check_env(make(**toys.balanced().kwargs(tmp_path), render_mode=mode))


@pytest.mark.thorough
@each("kwargs", PROBLEMS)
def test_pipeline_cut__return_is_the_judges_value(kwargs):
    """Random episodes, through ``plan()`` and ``judge()``, on the same instance loaded anew."""
    env, rng = make(**kwargs), np.random.default_rng(0)

    def check(observation, info):
        assert env.observation_space.contains(observation)
        masks(env, info)

    profile = load_profile(kwargs["instance"], Cluster.parse(kwargs["cluster"]))
    returns = set()
    for _ in range(15):
        total = play(env, rng, check)
        report = judge(env.plan(), profile)
        assert total == pytest.approx(report.value, rel=1e-12)
        assert total == -1 or 0 < total <= 1
        assert all("bytes on each device" in reason for reason in report.reasons)
        assert len(report.stages) == env.game.space.stages == PRESETS[kwargs["cluster"]].servers
        returns.add(total)
    if Path(kwargs["instance"]).stem == "t5-11b" and kwargs["cluster"] in "AB":
        assert returns == {-1.0}  # fits no partition
    else:
        assert max(returns) > 0


def test_pipeline_cut__settings_reach_the_judge(tmp_path):
    env = make(instance="vgg-19", cluster="B", stages=4, micro_batch=8, micro_batches=3)
    total = play(env, np.random.default_rng(0))
    plan = env.plan()
    assert (plan.instance, plan.micro_batch, plan.micro_batches) == ("vgg-19", 8, 3)
    assert len(plan.cuts) == 3
    assert total == pytest.approx(judge(plan, load_profile("vgg-19", plan.cluster, 8)).value)


def exhaust(env):
    """(return, plan) of every episode of legal actions."""
    found = []

    def walk(prefix):
        env.reset()
        reward, done = 0.0, False
        for action in prefix:
            _, reward, done, *_ = env.step(action)
        if done:
            found.append((reward, env.plan()))
            return
        for action in np.flatnonzero(env.action_masks()):
            walk([*prefix, int(action)])

    walk([])
    return found


@pytest.mark.parametrize("candidates", ["minima", "all"])
def test_pipeline_cut__known_optimum(toy, candidates, tmp_path):
    """Playing everything finds the optimum known by hand, and so does the exact solver."""
    env = make(**toy.kwargs(tmp_path), candidates=candidates)
    found = exhaust(env)
    best, plan = max(found, key=lambda x: x[0])
    assert best == pytest.approx(float(toy.value), rel=1e-14)
    assert (plan.cuts, plan.device_cuts) == (toy.cuts, toy.device_cuts)
    assert sorted(x for x, _ in found)[-2] < best - 1e-3  # the only one
    answer = exact_candidates(env.game.space)
    assert tuple(answer.plan.cuts) == toy.cuts
    assert tuple(answer.plan.device_cuts) == toy.device_cuts
    assert answer.cost == pytest.approx(float(toy.length), rel=1e-14)
    assert answer.status == "optimal"
    assert exact_full(env.problem.with_stages(toy.stages)).cost <= answer.cost * (1 + 1e-12)


def test_pipeline_cut__all_plans_of_the_toy(env):
    plans = {plan.cuts for _, plan in exhaust(env)}
    assert plans == set(itertools.product(range(1, 6), range(6, 12)))


def test_pipeline_cut__memory_is_judged_at_the_last_cut(tmp_path):
    kwargs = toys.balanced().kwargs(tmp_path)
    kwargs["cluster"] = toys.shape(1, 3, 8.0, 8.0, memory_bytes=12.0)  # 4 parameters, 2 copies
    env = make(**kwargs)
    actions = {int(p): i for i, p in enumerate(env.game.space.pivots)}
    for cuts, fits in (((4, 8), False), ((4, 6), False), ((2, 6), False)):
        env.reset()
        for p in cuts[:-1]:
            assert env.step(actions[p])[1] == 0
        observation, reward, done, truncated, _ = env.step(actions[cuts[-1]])
        assert (reward, done, truncated) == (-1, True, False)
        assert env.observation_space.contains(observation)
        assert judge(env.plan(), env.problem).legal == fits
        assert env.plan().cuts == cuts


@each("first", [[], [3]])
@each(
    "action",
    [0, np.int64(0), np.int32(0), -1, -2, 11, np.int64(11), 10**6, 2**63, np.int64(-(2**63))],
)
def test_pipeline_cut__illegal_actions(env, first, action):
    """They end the episode with -1, whatever they are, and never raise."""
    env.reset()
    for legal in first:
        env.step(legal)
    if not first and action == 0:
        action = type(action)(8)  # legal only as the second cut
    assert not (0 <= action < env.action_space.n and env.action_masks()[action])
    observation, reward, done, truncated, info = env.step(action)
    assert (reward, done, truncated) == (-1.0, True, False)
    assert type(reward) is float
    assert env.observation_space.contains(observation)
    assert observation["step"] == len(first)
    assert not observation["features"].any()
    assert masks(env, info).all()
    assert len(env.plan().cuts) == len(first)  # it is no part of the plan
    assert env.step(3)[1:4] == (-1.0, True, False)


@pytest.mark.parametrize("action", [3, 7, 0, -1, 10**6])
def test_pipeline_cut__steps_after_the_end(env, action):
    env.reset()
    env.step(3)
    observation, reward, done, _, info = env.step(7)
    assert done
    assert reward == pytest.approx(8 / 9)
    assert masks(env, info).all()
    assert not observation["features"].any()
    plan = env.plan()
    for _ in range(2):
        again, reward, done, truncated, info = env.step(action)
        assert (reward, done, truncated) == (-1.0, True, False)
        assert equal(again, observation)
        assert masks(env, info).all()
        assert env.plan() == plan
    observation, info = env.reset()
    assert observation["step"] == 0
    assert not masks(env, info).all()
    assert env.plan().cuts == ()


def test_pipeline_cut__actions_as_numpy_integers(env):
    for kind in (int, np.int64, np.int32, np.uint8):
        env.reset()
        env.step(kind(3))
        assert env.step(kind(7))[1] == pytest.approx(8 / 9)


def test_pipeline_cut__observation_by_hand(tmp_path):
    """The dense toy: features of p=3 and p=5 as its docstring computes them, over the maxima."""
    env = make(**toys.dense().kwargs(tmp_path), candidates="all")
    observation, info = env.reset()
    assert env.game.space.pivots.tolist() == [1, 2, 3, 4, 5]
    assert info["action_mask"].tolist() == [1] * 5
    assert observation["cuts"].tolist() == [-1]
    assert observation["step"] == 0
    longest_reduce = 2 * 69 * 3 / 4  # all parameters over all devices
    np.testing.assert_allclose(
        observation["features"][[2, 4]],
        [[16.5 / longest_reduce, 3 / 9, 1], [20 / 3 / longest_reduce, 3 / 9, 2 / (10 / 3)]],
        rtol=1e-6,
    )
    observation, *_ = env.step(4)
    assert observation["cuts"].tolist() == [np.float32(5 / 6)]
    assert observation["step"] == 1


def test_pipeline_cut__observation_follows_the_cuts(env):
    """Features are the pipeline's at the candidates that are legal now, zero elsewhere."""
    observation, _ = env.reset()
    # Maxima of the instance: 12 bytes reduced over 3 devices at 8 B/s, 8 bytes crossing.
    scale = np.array([2 * 12 * 2 / 3 / 8, 8 / 8, 1])
    for cut, action in enumerate((2, 8)):
        legal = env.action_masks()
        assert env.game.space.pivots[legal].tolist() == list([range(1, 6), range(6, 12)][cut])
        raw = slow_features(
            env.problem,
            np.array([3][:cut]),
            np.array([1][:cut]),
            env.game.space.pivots[legal],
            np.full(legal.sum(), cut + 1),
        )
        np.testing.assert_allclose(observation["features"][legal], raw / scale, rtol=1e-6)
        assert not observation["features"][~legal].any()
        assert raw[:, 1].max() == 1
        observation, *_ = env.step(action)
    assert observation["cuts"].tolist() == [0.25, 0.75]
    assert not observation["features"].any()


def test_pipeline_cut__nothing_is_shared(env):
    """What a caller writes into an observation or a mask does not come back."""
    for _ in range(2):
        observation, info = env.reset()
        kept = copy.deepcopy((observation, info))
        observation["features"][:] = 7
        info["action_mask"][:] = 0
        env.action_masks()[:] = False
        again, info = env.reset()
        assert equal(again, kept[0])
        assert equal(info, kept[1])
    info["action_mask"][:] = 1
    env.action_masks()[:] = True
    assert env.step(8)[1] == -1  # still illegal as the first cut


def test_pipeline_cut__determinism():
    first, second = (make(instance="vgg-19", cluster="C") for _ in range(2))
    a, b = first.reset(seed=1), second.reset(seed=2, options={})
    rng, done = np.random.default_rng(0), False
    for _ in range(5):
        a, b = first.reset(seed=1), second.reset()
        assert equal(a[0], b[0])
        assert equal(a[1], b[1])
        done = False
        while not done:
            action = int(rng.choice(np.flatnonzero(a[-1]["action_mask"])))
            a, b = first.step(action), second.step(action)
            assert equal(a[0], b[0])
            assert a[1:4] == b[1:4]
            assert equal(a[4], b[4])
            assert a[2] or a[4].keys() == {"action_mask"}
            done = a[2]


@each("wrapped", [False, True])
@each("fork", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_pipeline_cut__fork(fork, wrapped):
    """A copy in the middle of an episode goes on as the original, and leaves it alone."""
    env = gym.make(ID, instance="t5-base", cluster="C")
    env = env if wrapped else env.unwrapped
    plan, masks_ = env.get_wrapper_attr("plan"), env.get_wrapper_attr("action_masks")
    env.reset(seed=0)
    first = int(np.flatnonzero(masks_())[5])
    env.step(first)
    other = fork(env)
    before = masks_().copy()
    actions = []
    done, rng = False, np.random.default_rng(3)
    info = {"action_mask": other.get_wrapper_attr("action_masks")()}
    outcomes = []
    while not done:
        actions.append(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        observation, reward, done, _, info = other.step(actions[-1])
        outcomes.append((observation, reward, done, info))
    assert len(plan().cuts) == 1
    assert np.array_equal(masks_(), before)
    for action, (observation, reward, done, info) in zip(actions, outcomes, strict=True):
        mine = env.step(action)
        assert equal(mine[0], observation)
        assert mine[1:3] == (reward, done)
        assert equal(mine[4], info)
    assert plan() == other.get_wrapper_attr("plan")()


@each(
    "kwargs",
    [
        {"instance": "vgg-19", "cluster": "B"},
        {"instance": "t5-base", "cluster": "2x4:a100,100Gbps", "stages": 3, "radius": 1},
        {
            "instance": "vgg-19",
            "cluster": {**toys.shape(2, 4, 1e11, 1e9), "device": "h100"},
            "micro_batch": 4,
            "micro_batches": 8,
            "candidates": "all",
        },
    ],
)
def test_pipeline_cut__spec_round_trip(kwargs):
    env = gym.make(ID, **kwargs)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec.kwargs == json.loads(json.dumps(env.spec.kwargs))
    one, other = env.unwrapped, again.unwrapped
    assert one.problem.cluster == other.problem.cluster == Cluster.parse(kwargs["cluster"])
    assert one.game.space.pivots.tolist() == other.game.space.pivots.tolist()
    assert play(one, np.random.default_rng(0)) == play(other, np.random.default_rng(0))
    assert one.plan() == other.plan()


def test_pipeline_cut__module_prefix():
    assert gym.make(f"parenvs:{ID}", instance="vgg-19", cluster="A").reset()


@pytest.mark.parametrize("mode", ["sync", *slow("async")])
def test_pipeline_cut__vector(mode):
    """A masked vector environment: masks arrive batched, rewards are the judge's."""
    kwargs = {"instance": "vgg-19", "cluster": "B"}
    # Other tests of the process start threads (JAX, torch), with which a fork may hang.
    options = {"context": "spawn"} if mode == "async" else {}
    envs = gym.make_vec(ID, num_envs=2, vectorization_mode=mode, vector_kwargs=options, **kwargs)
    try:
        rng, single = np.random.default_rng(0), make(**kwargs)
        observation, info = envs.reset(seed=0)
        assert info["action_mask"].shape == (2, single.action_space.n)
        chosen = []
        for step in range(2):
            actions = np.array([rng.choice(np.flatnonzero(m)) for m in info["action_mask"]])
            chosen.append(actions)
            observation, rewards, done, truncated, info = envs.step(actions)
            assert done.tolist() == [step == 1] * 2
            assert not truncated.any()
        assert envs.observation_space.contains(observation)
        for i in range(2):
            single.reset()
            single.step(chosen[0][i])
            assert rewards[i] == single.step(chosen[1][i])[1]
        assert info["action_mask"].all()
        observation, rewards, done, _, info = envs.step(np.zeros(2, dtype=np.int64))  # autoreset
        assert not done.any()
        assert np.array_equal(info["action_mask"][0], single.reset()[1]["action_mask"])
    finally:
        envs.close()


def test_pipeline_cut__vector_of_masked_observations():
    envs = gym.make_vec(
        ID,
        num_envs=3,
        vectorization_mode="sync",
        wrappers=[MaskInObservation],
        instance="vgg-19",
        cluster="B",
    )
    observation, info = envs.reset()
    assert np.array_equal(observation["action_mask"], info["action_mask"])
    assert envs.observation_space.contains(observation)


@pytest.mark.parametrize("mode", ["ansi", *slow("rgb_array")])
def test_pipeline_cut__render(tmp_path, mode):
    env = make(**toys.balanced().kwargs(tmp_path), candidates="all", render_mode=mode)
    env.reset()
    pictures = [env.render()]
    for action in (3, 7):
        env.step(action)
        pictures.append(env.render())
    env.reset()
    env.step(10)
    pictures.append(env.render())  # after an illegal action, with nothing cut
    if mode == "ansi":
        assert all(isinstance(x, str) and x for x in pictures)
        assert len(set(pictures)) == 3
    else:
        for picture in pictures:
            assert picture.dtype == np.uint8
            assert picture.ndim == 3
            assert picture.shape[-1] == 3
        shape = {picture.shape for picture in pictures}
        assert len(shape) == 1  # a video needs frames of one size
        assert len({picture.tobytes() for picture in pictures}) == 3


def test_pipeline_cut__render_without_a_mode(env):
    env.reset()
    with pytest.warns(UserWarning, match="render_mode='ansi' or 'rgb_array'"):
        assert env.render() is None


@each(
    ("kwargs", "words"),
    [
        ({"instance": "t5-bse"}, "did you mean 't5-base'"),
        ({"cluster": "Z"}, "cluster 'Z' does not parse"),
        ({"stages": 1}, "at least 2 stages"),
        ({"stages": 33}, "only 32 devices"),
        ({"radius": -1}, "radius must be >= 0"),
        ({"candidates": "few"}, "candidates must be one of"),
        ({"micro_batches": 0}, "micro_batches must be"),
        ({"micro_batch": 0}, "micro_batch must be"),
    ],
)
def test_pipeline_cut__bad_arguments(kwargs, words):
    with pytest.raises(ParenvsError, match=words):
        make(**kwargs)


def test_pipeline_cut__unknown_render_mode():
    with pytest.raises(ValueError, match="render_mode must be one of"):
        PipelineCutEnv(instance="vgg-19", render_mode="human")
