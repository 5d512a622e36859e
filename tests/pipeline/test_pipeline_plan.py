import copy
import itertools
import json
import pickle

import gymnasium as gym
import numpy as np
import pytest
import toys
from cases import each
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from parenvs import judge, load_profile
from parenvs.cluster import Cluster
from parenvs.datasets.pipeline import sets as instance_sets
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.pipeline.game.plan import PipelinePlanEnv
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.wrappers import MaskInObservation

ID = "PipelinePlan-v0"
POINTS = 128


def make(**kwargs):
    return gym.make(ID, **kwargs).unwrapped


def play(env, rng, **reset):
    """A random legal episode: its rewards and infos."""
    observation, info = env.reset(**reset)
    rewards, over = [], False
    while not over:
        assert env.observation_space.contains(observation)
        assert np.array_equal(env.action_masks(), info["action_mask"])
        step = int(observation["step"])
        legal = np.flatnonzero(info["action_mask"])
        assert ((legal >= POINTS) == (step % 2 == 1)).all()  # turns
        observation, reward, over, truncated, info = env.step(int(rng.choice(legal)))
        assert not truncated
        rewards.append(reward)
    assert env.observation_space.contains(observation)
    return rewards


@pytest.fixture
def toy(tmp_path):
    return toys.balanced().kwargs(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"ranges": "outside"},
        {"family": "cnn"},
        {"instance": "t5-11b", "cluster": "C"},
        {"instance": "vgg-19", "cluster": "16x8:a100", "stages": 8},
        {"instance": "plan-test"},
    ],
    ids=str,
)
def test_episodes__end_with_what_the_judge_says(kwargs):
    env, rng = make(**kwargs), np.random.default_rng(0)
    for episode in range(12):
        rewards = play(env, rng, **({"seed": 5} if episode == 0 else {}))
        assert len(rewards) == 2 * (env.game.space.stages - 1) <= env.episode_steps
        assert rewards[:-1] == [0.0] * (len(rewards) - 1)
        report = judge(env.plan(), env.problem)
        assert report.legal, report.reasons  # memory is masked
        assert rewards[-1] == report.value
        assert 0 < rewards[-1] <= 1


def test_check_env():
    check_env(make(instance="t5-base"), skip_render_check=True)


def test_reset__seeds():
    one, two = make(), make()
    first = [one.reset(seed=3)[0]] + [one.reset()[0] for _ in range(3)]
    second = [two.reset(seed=3)[0]] + [two.reset()[0] for _ in range(3)]
    for a, b in zip(first, second, strict=True):
        assert all(np.array_equal(a[key], b[key]) for key in a)
    assert not np.array_equal(first[0]["chain"], first[1]["chain"])
    assert not np.array_equal(one.reset(seed=4)[0]["chain"], first[0]["chain"])


def test_repeat():
    env = make(repeat=3)
    chains = [env.reset(seed=1)[0]["chain"]] + [env.reset()[0]["chain"] for _ in range(6)]
    same = [np.array_equal(a, b) for a, b in itertools.pairwise(chains)]
    assert same == [True, True, False, True, True, False]
    assert np.array_equal(env.reset(seed=1)[0]["chain"], chains[0])  # a seed starts anew
    assert not np.array_equal(env.reset(seed=2)[0]["chain"], chains[0])


def test_options__for_one_episode():
    env = make()
    env.reset(seed=0)
    observation, _ = env.reset(options={"instance": "bert-48", "cluster": "B", "stages": 2})
    assert env.problem.profile.name == "bert-48"
    assert env.game.space.stages == 2
    assert env.problem.instance == "bert-48"
    assert play(env, np.random.default_rng(0), options={"instance": "t5-base"})
    assert env.problem.cluster == Cluster.parse("C")
    env.reset()
    assert env.problem.instance.startswith("generated-1/inside/any/")
    fixed = make(instance="t5-base", cluster="A")
    base, _ = fixed.reset()
    assert not np.array_equal(base["chain"], observation["chain"])
    fixed.reset(options={"instance": "bert-48"})
    assert fixed.problem.cluster == Cluster.parse("A")
    again, _ = fixed.reset()
    assert np.array_equal(again["chain"], base["chain"])


def test_sets():
    env = make(instance="plan-validation")
    env.reset(seed=0)
    assert env.problem.instance.startswith("plan-validation/")
    problem = instance_sets.load_set("plan-test")[17]
    named = make(instance=problem.name)
    named.reset()
    assert named.problem.profile.fingerprint == problem.pipeline.profile.fingerprint
    assert named.game.space.stages == problem.stages


def test_observation__of_a_known_chain(toy):
    """Every figure of the observation, by hand."""
    env = make(**toy)
    observation, _ = env.reset()
    pipeline, cluster = env.problem, env.problem.cluster
    n = len(pipeline.profile)
    profile = pipeline.profile
    seconds = np.cumsum(profile.forward + profile.backward)
    cut = np.append(profile.cut_bytes[:-1], 0) / cluster.inter_bw
    weights = 2 * np.cumsum(profile.parameter_bytes) / cluster.inter_bw
    scale = max(seconds.max(), cut.max(), weights.max())
    expected = np.stack([seconds, cut, weights]) / scale
    assert np.allclose(observation["chain"][:3, :n], expected)
    assert (observation["chain"][3] == (np.arange(POINTS) < n)).all()
    assert not observation["chain"][:, n:].any()
    topology = observation["topology"]
    d = cluster.devices
    assert not topology[d:].any()
    assert not topology[:, d:].any()
    for i, j in itertools.product(range(d), repeat=2):
        same = i // cluster.devices_per_server == j // cluster.devices_per_server
        bandwidth = cluster.intra_bw if same else cluster.inter_bw
        assert topology[i, j] == np.float32(bandwidth / max(cluster.intra_bw, cluster.inter_bw))
    numbers = observation["numbers"]
    assert numbers[0] == toy["stages"] / 8
    assert numbers[1] == np.float32(toy["micro_batches"] / 64)
    assert numbers[2] == d / 64
    limit = 0.9 * cluster.device.memory_bytes
    held = 2 * (limit / 2) / cluster.inter_bw / scale
    assert numbers[4] == pytest.approx(held / (1 + held), rel=1e-6)
    assert numbers[5] == pytest.approx(profile.backward.sum() / seconds[-1])
    assert (observation["plan"] == -1).all()


def test_plan__follows_the_choices(toy):
    env = make(**toy)
    _, info = env.reset()
    point = int(np.flatnonzero(info["action_mask"])[0])
    observation, *_, info = env.step(point)
    assert observation["plan"][0, 0] == np.float32(point / 128)
    assert observation["plan"][1, 0] == -1
    unit = int(np.flatnonzero(info["action_mask"])[0])
    observation, *_ = env.step(unit)
    assert observation["plan"][1, 0] == np.float32((unit - 128) / 64)
    assert env.plan().cuts == (point,)
    assert env.plan().device_cuts == (unit - 128,)


@pytest.mark.parametrize("action", [0, 127, 128, 191, 192, -1])
def test_illegal_actions__end_the_episode(toy, action):
    env = make(**toy)
    env.reset()
    *_, reward, over, _, info = env.step(action)
    assert (reward, over) == (-1.0, True)
    assert info["action_mask"].all()
    assert env.step(1)[1] == -1.0


def test_chains_of_few_pivots__are_not_stretched(toy):
    env = make(**toy)
    assert env.game.space.pivots.tolist() == list(range(len(env.problem.profile) + 1))


@each(
    ("cluster", "expected"),
    [
        ("8x8:v100", range(65)),
        ("9x8:v100", range(0, 73, 8)),
        ("64x8:v100", range(0, 513, 8)),
        ("65x8:v100", [*range(0, 520, 16), 520]),
        ("1x128:v100", range(0, 129, 2)),
        ("2x100:v100", [*range(0, 200, 4), 200]),
    ],
)
def test_units(cluster, expected):
    env = make(instance="t5-base", cluster=cluster, stages=2)
    assert env.game.space.devices.tolist() == list(expected)
    assert env.observation_space.contains(env.reset()[0])


def test_memory__nothing_fits():
    with pytest.raises(InfeasibleError, match="fits the memory"):
        make(instance="t5-11b", cluster="A")
    env = make()
    with pytest.raises(InfeasibleError, match="fits the memory"):
        env.reset(options={"instance": "t5-11b", "cluster": "A"})


def test_all_weight_in_one_pivot(tmp_path):
    chain = toys.chain([1.0] * 4, [1.0] * 4, [1.0] * 4, [0.0, 5.0, 0.0, 0.0])
    chain.to_csv(tmp_path / "one.csv")
    with pytest.raises(InfeasibleError, match="1 pivots hold variables"):
        make(instance=str(tmp_path / "one.csv"), cluster="A")
    chain = toys.chain([0.0, 9.0, 0.0, 0.0], [0.0] * 4, [1.0] * 4, [1.0] * 4)
    chain.to_csv(tmp_path / "work.csv")
    env = make(instance=str(tmp_path / "work.csv"), cluster="A")
    assert play(env, np.random.default_rng(0))[-1] > 0


def test_nan(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(
        "name,forward_ms,backward_ms,cut_bytes,parameter_bytes\na,1,1,1,1\nb,nan,1,1,1\n"
    )
    with pytest.raises(ParenvsError, match=r"bad.csv.*line 3.*forward_ms"):
        make(instance=str(path))


@each(
    ("kwargs", "words"),
    [
        ({"family": "cn"}, "did you mean 'cnn'"),
        ({"ranges": "all"}, "ranges must be one of"),
        ({"repeat": 0}, "repeat must be >= 1"),
        ({"instance": "t5-bas"}, "did you mean 't5-base'"),
        ({"instance": "t5-base", "stages": 9}, "at most 8"),
        ({"instance": "t5-base", "stages": 1}, "at least 2"),
        ({"instance": "plan-test/cnn-9999"}, "plan-test"),
    ],
)
def test_arguments__are_checked(kwargs, words):
    with pytest.raises(ParenvsError, match=words):
        make(**kwargs)


def test_options__are_checked():
    env = make()
    with pytest.raises(ParenvsError, match="did you mean 'instance'"):
        env.reset(options={"instace": "t5-base"})
    with pytest.raises(ParenvsError, match="must name"):
        env.reset(options={"stages": 3})
    with pytest.raises(ValueError, match="render_mode"):
        PipelinePlanEnv(render_mode="human")


def test_forks_and_specs(toy):
    env = make(**toy)
    env.reset()
    env.step(int(np.flatnonzero(env.action_masks())[0]))
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert np.array_equal(other.action_masks(), env.action_masks())
    spec = gym.make(ID, instance="t5-base", stages=3).spec
    again = gym.make(EnvSpec.from_json(spec.to_json()))
    assert again.unwrapped.game.space.stages == 3
    assert json.loads(spec.to_json())["kwargs"] == {"instance": "t5-base", "stages": 3}


def test_wrapper_and_render(toy):
    env = MaskInObservation(gym.make(ID, **toy))
    observation, info = env.reset()
    assert np.array_equal(observation["action_mask"], info["action_mask"])
    shown = make(render_mode="ansi", **toy)
    shown.reset()
    assert "toy" in shown.render() or "balanced" in shown.render()
    play(shown, np.random.default_rng(0))
    assert shown.render()


def test_points__cost_little():
    """A plan of points is one of pivots: same judge, same figures."""
    env = make(instance="t5-3b", cluster="C")
    play(env, np.random.default_rng(0))
    cluster = Cluster.parse("C")
    pipeline = Pipeline(load_profile("t5-3b", cluster), cluster)
    assert judge(env.plan(), pipeline).value == judge(env.plan(), env.problem).value
    assert len(env.game.space.pivots) <= POINTS + 1
