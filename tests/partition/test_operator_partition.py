"""OperatorPartition-v0: every question, mask, reward and refusal."""

import copy
import json
import pickle
import warnings

import gymnasium as gym
import numpy as np
import partition_toys as toys
import pytest
from cases import each, slow
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from partition_play import by_mask, equal, iter_of, mask_of, play

from parenvs import judge
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError
from parenvs.tasks.partition.game import OperatorPartitionEnv
from parenvs.wrappers import MaskInObservation

ID = "OperatorPartition-v0"
REWARDS = ("paper", "step_time")
SCOPE = {"paper": "variables", "step_time": "all"}
SETTINGS = [
    pytest.param({"linkage": linkage, "masked": masked, "reward": reward}, id=name)
    for linkage, masked, reward, name in (
        (True, False, "paper", "paper"),
        (True, True, "step_time", "seconds"),
        (False, True, "paper", "single-paper"),
        (False, True, "step_time", "single-seconds"),
        (False, False, "paper", "unmasked-paper"),
        (False, False, "step_time", "unmasked-seconds"),
    )
]


def make(**kwargs):
    return gym.make(ID, **kwargs).unwrapped


@pytest.fixture
def mlp(tmp_path):
    """Arguments of an environment of the small step over two slow devices."""
    path = tmp_path / "mlp.txt"
    path.write_text(toys.MLP)
    return {"instance": str(path), "cluster": toys.toy_cluster(2)}


@pytest.mark.thorough
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["vgg-19", "t5-base"])
def test_operator_partition__check_env(name, setting):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(instance=name, **setting), skip_render_check=True)


@pytest.mark.thorough
def test_operator_partition__check_env_with_rendering(mlp):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in (None, "ansi", "rgb_array"):
            check_env(make(**mlp, render_mode=mode))


@pytest.mark.thorough
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", toys.SHIPPED)
def test_operator_partition__random_episodes(name, setting):
    """Observations in their space; a conflict only without mask; the return is the judge's."""
    env, rng = make(instance=name, **setting), np.random.default_rng(0)
    problem, reward = toys.shipped(name), setting["reward"]
    free = setting["linkage"] or setting["masked"]
    spot = rng.integers(1, 40)

    def check(observation, info):
        if observation["position"] % spot < 2:
            assert env.observation_space.contains(observation)

    for ones in (0.5, 0.2, 0.9):
        rewards = play(env, by_mask(rng, ones), check)
        report = judge(env.plan(), problem)
        assert report.legal, report.reasons
        if free:
            assert sum(rewards) == pytest.approx(report.value_of(reward), abs=1e-9)
            assert float(env.game.space.problem.value(report.chosen)) == report.value_of(reward)
            assert -1.0 not in rewards
            if not setting["linkage"]:
                assert len(rewards) == env.episode_steps
        else:
            assert -1.0 not in rewards[:-1]
        if reward == "paper":
            assert set(np.round(rewards[:-1], 9)) <= {round(0.1 * k, 9) for k in range(10_000)}
        assert sum(rewards) <= env.largest_return + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [*range(4), *slow(*range(4, 12))])
def test_operator_partition__random_programs(tmp_path, seed):
    """Every setting and rule set on small graphs that nobody chose; plans go through a file."""
    rng = np.random.default_rng(seed)
    path = tmp_path / "random.txt"
    problem = None
    while problem is None or not len(problem.decidable("variables")):
        text = toys.random_text(rng, 12)
        rules = str(rng.choice(["shardy", "automap"]))
        problem = toys.problem_of(text, 2, rules)
    path.write_text(text)
    for setting in SETTINGS:
        kwargs = setting.values[0]
        env = make(instance=str(path), cluster=toys.toy_cluster(2), rules=rules, **kwargs)
        for _ in range(4):
            rewards = play(env, by_mask(rng, 0.7))
            plan = env.plan()
            plan.save(tmp_path / "plan.json")
            report = judge(type(plan).from_json(json.loads((tmp_path / "plan.json").read_text())),
                           env.game.space.problem.graph)  # fmt: skip
            assert report.legal
            if rewards[-1] != -1:
                value = report.value_of(kwargs["reward"])
                assert sum(rewards) == pytest.approx(value, abs=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("name", ["vgg-19", "t5-base", *slow("bert-48")])
def test_operator_partition__decisions_follow_the_closure(name, reward):
    """After each step with linkage: the class 1, what it excludes 0, what is stuck 0."""
    env, rng = make(instance=name, reward=reward), np.random.default_rng(1)
    problem = toys.shipped(name)
    for _ in range(3):
        closure = toys.Closure(problem, SCOPE[reward])
        observation, _ = env.reset()
        assert observation["decisions"].tolist() == closure.decisions()
        before, done, first = closure.decisions(), False, True
        while not done:
            dimension = int(env.game.space.questions[observation["position"]])
            assert closure.may(dimension) == {0, 1}  # nothing that is known is asked for
            action = int(rng.random() < 0.5)
            closure.decide(dimension, action)
            observation, paid, done, _, _ = env.step(action)
            after = closure.decisions()
            assert observation["decisions"].tolist() == after
            assert observation["decisions"].dtype == np.int8
            if reward == "paper":  # what the step settled, and at first what was stuck
                news = [b for a, b in zip(before, after, strict=True) if a == -1 and b != -1]
                stuck = sum(closure.stuck) if first else 0
                split = sum(news)
                expected = 0.4 * split + 0.1 * (len(news) - split) + 0.1 * stuck
                assert paid == pytest.approx(expected)
            else:
                gain = problem.gain_seconds[closure.label[dimension]]
                expected = action * gain / problem.replicate_seconds
                assert paid == pytest.approx(expected, abs=1e-12)
            before, first = after, False
        assert -1 not in after


def test_operator_partition__blocked_dimensions_are_paid_on_the_first_step():
    env = make(instance="t5-base", rules="automap")
    observation, _ = env.reset()
    stuck = int((observation["decisions"] == 0).sum())
    assert stuck > 100
    assert (observation["decisions"] != 1).all()
    size = len(env.game.space.members[0])
    assert env.step(0)[1] == pytest.approx(0.1 * (stuck + size))
    env.reset()
    others = len(env.game.space.rival_members[0])
    assert env.step(1)[1] == pytest.approx(0.1 * (stuck + others) + 0.4 * size)


@pytest.mark.thorough
@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("name", ["vgg-19", *slow("t5-base")])
def test_operator_partition__first_contradiction(name, reward):
    """Without linkage or mask: -1 at the first answer that contradicts the earlier ones."""
    env = make(instance=name, reward=reward, linkage=False)
    problem, rng = toys.shipped(name), np.random.default_rng(2)
    lengths = []
    for trial in range(60 if name == "vgg-19" else 15):
        closure = toys.Closure(problem, SCOPE[reward])
        observation, info = env.reset()
        assert (observation["decisions"] == -1).all()
        decided, done, careful = [-1] * len(closure.label), False, trial % 3
        while not done:
            assert mask_of(env, info).tolist() == [1, 1]
            dimension = int(env.game.space.questions[observation["position"]])
            allowed = closure.may(dimension)
            action = int(rng.random() < 0.4)
            if careful and rng.random() < 0.97:
                action = action if action in allowed else 1 - action
            observation, paid, done, _, info = env.step(action)
            if action not in allowed:
                assert (paid, done) == (-1.0, True)
                break
            new = closure.label[dimension] not in closure.known and not closure.stuck[dimension]
            closure.decide(dimension, action)
            decided[dimension] = action
            assert observation["decisions"].tolist() == decided
            if reward == "paper":
                assert paid == (0.4 if action else 0.1)
            else:
                gain = problem.gain_seconds[closure.label[dimension]] / problem.replicate_seconds
                assert paid == pytest.approx(gain if new and action else 0)
        lengths.append(int(observation["position"]))
        assert judge(env.plan(), problem).legal
    assert len(set(lengths)) > 3


@pytest.mark.parametrize("name", ["vgg-19", *slow("bert-48")])
def test_operator_partition__mask_is_the_closure(name):
    """With a mask and without linkage: it allows what contradicts nothing."""
    env = make(instance=name, linkage=False, masked=True)
    problem, rng = toys.shipped(name), np.random.default_rng(3)
    for _ in range(3):
        closure = toys.Closure(problem, "variables")
        observation, info = env.reset()
        done = False
        while not done:
            dimension = int(env.game.space.questions[observation["position"]])
            mask = mask_of(env, info)
            assert set(np.flatnonzero(mask).tolist()) == closure.may(dimension)
            action = by_mask(rng)(mask)
            closure.decide(dimension, action)
            observation, _, done, _, info = env.step(action)
        assert observation["decisions"].tolist() == closure.decisions()
        assert mask_of(env, info).all()


def test_operator_partition__known_by_hand(mlp):
    """Hidden: both of its dimensions, the others go. Else both others: as much."""
    env = make(**mlp)
    assert play(env, lambda mask: 1) == [pytest.approx(0.8 + 0.2)]
    assert env.plan().partition == {"w1": 1, "w2": 0}
    rewards = play(env, iter_of([0, 1, 1]))
    assert rewards == [pytest.approx(x) for x in (0.2, 0.4, 0.4)]
    assert env.plan().partition == {"w1": 0, "w2": 1}
    rewards = play(env, iter_of([0, 0, 1]))
    assert rewards == [pytest.approx(x) for x in (0.2, 0.1, 0.4)]
    env = make(**mlp, linkage=False)
    assert play(env, iter_of([1, 1, 0, 0])) == [0.4, 0.4, 0.1, 0.1]
    assert play(env, iter_of([1, 0])) == [0.4, -1.0]
    assert play(env, iter_of([1, 1, 1])) == [0.4, 0.4, -1.0]
    assert play(env, iter_of([0, 0, 1, 1])) == [0.1, 0.1, 0.4, 0.4]


@pytest.mark.parametrize("reward", REWARDS)
def test_operator_partition__playing_everything_finds_the_optimum(mlp, reward):
    env = make(**mlp, reward=reward)
    found = {}

    def walk(prefix):
        rewards, done = [], False
        env.reset()
        for action in prefix:
            _, paid, done, *_ = env.step(action)
            rewards.append(paid)
        if done:
            found[tuple(prefix)] = sum(rewards)
            return
        walk([*prefix, 0])
        walk([*prefix, 1])

    walk([])
    problem = env.game.space.problem
    assert len(found) == len(toys.independent_sets(problem, SCOPE[reward]))
    answer = exact_partition(problem)
    assert max(found.values()) == pytest.approx(answer.value)


ONES = {  # instance, rules: constant action 1 under the paper's reward
    ("vgg-19", "shardy"): 8.9 + 0.3 * 29,
    ("vgg-19", "automap"): 8.9 + 0.3 * 27,
    ("t5-base", "shardy"): 56.2 + 0.3 * 343,
    ("t5-base", "automap"): 56.2 + 0.3 * 218,
    ("bert-48", "shardy"): None,
    ("t5-3b", "automap"): None,
}


@pytest.mark.parametrize(("name", "rules"), [*([*ONES][:4]), *slow(*([*ONES][4:]))])
def test_operator_partition__constant_action_one(name, rules):
    """It is optimal under the paper's reward on these."""
    env = make(instance=name, rules=rules)
    total = sum(play(env, lambda mask: 1))
    best = exact_partition(env.game.space.problem).value
    assert total == pytest.approx(best if ONES[name, rules] is None else ONES[name, rules])
    assert total == pytest.approx(best)
    nothing = play(env, lambda mask: 0)
    assert sum(nothing) == pytest.approx(0.1 * len(env.game.space.dimensions))
    assert len(nothing) == env.episode_steps
    assert env.plan().partition == {}


def test_operator_partition__step_time_is_harder():
    """There, on T5-base under automap or VGG, the optimum is not simply everything."""
    env = make(instance="vgg-19", rules="automap", reward="step_time")
    ones = sum(play(env, lambda mask: 1))
    best = exact_partition(env.game.space.problem).value
    assert ones < best - 1e-3


ILLEGAL = [2, -1, 3, 10**6, np.int64(2), np.int64(-1), np.int32(7), 2**63, np.int64(-(2**63))]


@pytest.mark.parametrize("setting", SETTINGS[:5])
@each("first", [0, 3])
@each("action", ILLEGAL)
def test_operator_partition__illegal_actions(action, first, setting):
    """They end the episode with -1 and never raise; nothing is decided by them."""
    env = make(instance="vgg-19", **setting)
    observation, _ = env.reset()
    for _ in range(first):
        observation, *_ = env.step(0)
    plan = env.plan()
    after, reward, done, truncated, info = env.step(action)
    assert (reward, done, truncated) == (-1.0, True, False)
    assert type(reward) is float
    assert equal(after, observation)
    assert env.observation_space.contains(after)
    assert mask_of(env, info).all()
    assert env.plan() == plan
    assert env.step(1)[1:4] == (-1.0, True, False)


@pytest.mark.parametrize("setting", SETTINGS[:5])
@each("action", [0, 1, 2, -1])
def test_operator_partition__steps_after_the_end(action, setting):
    env = make(instance="vgg-19", **{**setting, "masked": True})
    play(env, by_mask(np.random.default_rng(0)))
    plan = env.plan()
    for _ in range(2):
        observation, reward, done, truncated, info = env.step(action)
        assert (reward, done, truncated) == (-1.0, True, False)
        assert env.observation_space.contains(observation)
        assert observation["position"] == env.episode_steps
        assert not observation["stake"].any()
        assert mask_of(env, info).all()
        assert env.plan() == plan
    observation, _ = env.reset()
    assert observation["position"] == 0
    assert env.plan().partition == {}


def test_operator_partition__actions_as_numpy_integers(mlp):
    env = make(**mlp)
    for kind in (int, np.int64, np.int32, np.uint8, bool, np.array):
        env.reset()
        assert env.step(kind(1))[1] == pytest.approx(1.0)


def test_operator_partition__nothing_is_shared():
    """What a caller writes into an observation or a mask does not come back."""
    env = make(instance="vgg-19", linkage=False, masked=True)
    for _ in range(2):
        observation, info = env.reset()
        kept = copy.deepcopy((observation, info))
        observation["decisions"][:] = 1
        observation["stake"][:] = 1
        info["action_mask"][:] = 0
        env.action_masks()[:] = False
        again, info = env.reset()
        assert equal(again, kept[0])
        assert equal(info, kept[1])
    observation, *_ = env.step(1)
    observation["decisions"][:] = 0
    assert env.plan().partition != {}


@pytest.mark.thorough
@pytest.mark.parametrize("setting", SETTINGS)
def test_operator_partition__determinism(setting):
    """Equal steps give equal observations and infos, whatever the seed."""
    one, other = (make(instance="t5-base", **setting) for _ in range(2))
    rng = np.random.default_rng(0)
    for _ in range(2):
        a, b = one.reset(seed=1), other.reset(seed=2, options={})
        done = False
        while not done:
            assert equal(a[0], b[0])
            assert equal(a[-1], b[-1])
            action = by_mask(rng)(a[-1]["action_mask"])
            a, b = one.step(action), other.step(action)
            assert a[1:4] == b[1:4]
            done = a[2]
        assert one.plan() == other.plan()


def test_operator_partition__seed_sets_the_generator():
    env = make(instance="vgg-19")
    draws = []
    for _ in range(2):
        env.reset(seed=5)
        draws.append(env.np_random.random())
    assert draws[0] == draws[1]


@each("wrapped", [False, True])
@each("linkage", [False, True])
@each("fork", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_operator_partition__fork(fork, linkage, wrapped):
    """A copy in the middle of an episode goes on as the original, and leaves it alone."""
    env = gym.make(ID, instance="vgg-19", linkage=linkage, masked=True)
    env = env if wrapped else env.unwrapped
    plan, masks = env.get_wrapper_attr("plan"), env.get_wrapper_attr("action_masks")
    env.reset(seed=0)
    env.step(1)
    other = fork(env)
    before, kept, rng = plan(), masks().copy(), np.random.default_rng(3)
    mask, done, actions, outcomes = other.get_wrapper_attr("action_masks")(), False, [], []
    while not done:
        actions.append(by_mask(rng)(mask))
        observation, reward, done, _, info = other.step(actions[-1])
        mask = info["action_mask"]
        outcomes.append((observation, reward, done, info))
    assert plan() == before
    assert np.array_equal(masks(), kept)
    for action, (observation, reward, done, info) in zip(actions, outcomes, strict=True):
        mine = env.step(action)
        assert equal(mine[0], observation)
        assert mine[1:3] == (reward, done)
        assert equal(mine[4], info)
    assert plan() == other.get_wrapper_attr("plan")()


def test_operator_partition__copies_share_what_never_changes():
    env = make(instance="t5-base")
    assert copy.deepcopy(env).game.space is env.game.space
    assert make(instance="t5-base").game.space is env.game.space


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kwargs",
    [
        {"instance": "vgg-19"},
        {"instance": "vgg-19", "devices": 4, "linkage": False, "masked": True},
        {"instance": "t5-base", "cluster": "A", "rules": "automap", "uneven": "forbid"},
        {"instance": "vgg-19", "cluster": "2x4:a100,100Gbps", "reward": "step_time"},
        {"instance": "vgg-19", "cluster": toys.toy_cluster(3)},
    ],
)
def test_operator_partition__spec_round_trip(kwargs):
    env = gym.make(ID, **kwargs)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec.kwargs == json.loads(json.dumps(env.spec.kwargs))
    one, other = env.unwrapped, again.unwrapped
    assert one.game.space is other.game.space
    assert one.game.space.problem.rules == kwargs.get("rules", "shardy")
    assert one.game.space.problem.uneven == kwargs.get("uneven", "pad")
    if "cluster" in kwargs:
        assert one.game.space.problem.cluster == Cluster.parse(kwargs["cluster"])
    else:
        assert one.game.space.problem.cluster == Cluster.parse(f"1x{kwargs.get('devices', 8)}:v100")
    rewards = [play(e, by_mask(np.random.default_rng(0))) for e in (one, other)]
    assert rewards[0] == rewards[1]
    assert one.plan() == other.plan()
    plan = one.plan()
    assert (plan.instance, plan.cluster) == (kwargs["instance"], one.game.space.problem.cluster)
    assert (plan.rules, plan.uneven) == (
        one.game.space.problem.rules,
        one.game.space.problem.uneven,
    )
    assert judge(plan, one.game.space.problem.graph).legal


def test_operator_partition__module_prefix():
    assert gym.make(f"parenvs:{ID}", instance="vgg-19").reset()


@pytest.mark.parametrize("linkage", [True, False])
def test_operator_partition__vector(linkage):
    """Masks arrive batched, rewards are those of single environments."""
    kwargs = {"instance": "vgg-19", "linkage": linkage, "masked": True}
    envs = gym.make_vec(ID, num_envs=2, vectorization_mode="sync", **kwargs)
    singles = [make(**kwargs) for _ in range(2)]
    rng = np.random.default_rng(0)
    _, info = envs.reset(seed=0)
    for env in singles:
        env.reset()
    for _ in range(12):
        assert info["action_mask"].shape == (2, 2)
        actions = np.array([by_mask(rng)(mask) for mask in info["action_mask"]])
        observation, rewards, done, _, info = envs.step(actions)
        assert envs.observation_space.contains(observation)
        for k, env in enumerate(singles):
            alone = env.step(actions[k])
            assert rewards[k] == alone[1]
            assert done[k] == alone[2]
            assert np.array_equal(observation["decisions"][k], alone[0]["decisions"])
        if done.any():
            break
    envs.close()


def test_operator_partition__mask_in_observation():
    env = MaskInObservation(gym.make(ID, instance="vgg-19", linkage=False, masked=True))
    observation, info = env.reset()
    done = False
    while not done:
        assert np.array_equal(observation["action_mask"], info["action_mask"])
        assert env.observation_space.contains(observation)
        action = by_mask(np.random.default_rng(0))(observation["action_mask"])
        observation, _, done, _, info = env.step(action)
    envs = gym.make_vec(
        ID, num_envs=3, vectorization_mode="sync", wrappers=[MaskInObservation], instance="vgg-19"
    )
    observation, info = envs.reset()
    assert np.array_equal(observation["action_mask"], info["action_mask"])


@pytest.mark.slow
@pytest.mark.parametrize("linkage", [True, False])
def test_operator_partition__maskable_ppo(linkage):
    ppo = pytest.importorskip("sb3_contrib").MaskablePPO
    env = gym.make(ID, instance="vgg-19", linkage=linkage, masked=not linkage)
    model = ppo("MultiInputPolicy", env, n_steps=32, batch_size=16, n_epochs=1, seed=0)
    model.learn(64)
    observation, info = env.reset()
    action, _ = model.predict(observation, action_masks=info["action_mask"])
    assert action in (0, 1)


@pytest.mark.parametrize("mode", ["ansi", *slow("rgb_array")])
@pytest.mark.parametrize("linkage", [True, False])
def test_operator_partition__render(mode, linkage):
    """At the start, on the way, at the end and after a conflict; no two alike."""
    env = make(instance="vgg-19", linkage=linkage, render_mode=mode)
    env.reset()
    pictures = [env.render()]
    for action in (1, 0 if linkage else 1):
        env.step(action)
        pictures.append(env.render())
    env.step(-1)
    pictures.append(env.render())
    if mode == "ansi":
        assert all(isinstance(x, str) and x for x in pictures)
    else:
        assert {picture.shape for picture in pictures} == {(800, 1280, 3)}
        assert {picture.dtype for picture in pictures} == {np.dtype(np.uint8)}
        pictures = [picture.tobytes() for picture in pictures]
    assert pictures[0] != pictures[1]


def test_operator_partition__render_without_a_mode(mlp):
    env = make(**mlp)
    env.reset()
    with pytest.warns(UserWarning, match="render_mode='ansi' or 'rgb_array'"):
        assert env.render() is None


def test_operator_partition__undecided(mlp):
    env = make(**mlp)
    env.reset()
    assert env.undecided() == {"w1", "w2"}
    env.step(0)
    assert env.undecided() == {"w1", "w2"}
    env.step(1)
    assert env.undecided() == {"w2"}
    env.step(1)
    assert env.undecided() == set()


def test_operator_partition__a_variable_that_nothing_reads(tmp_path):
    """Its dimensions exclude each other all the same: the return is the judge's."""
    path = tmp_path / "unused.txt"
    shape = "f32[4,6]{1,0}"
    text = toys.module(
        {"params__u__": shape, "params__w__": shape, "batch__x__": "f32[8,4]{1,0}"},
        [],
        "op.1 = f32[8,6]{1,0} dot(batch__x__.1, params__w__.1), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}",
    )  # fmt: skip
    path.write_text(text)
    env = make(instance=str(path), devices=2)
    for seed in range(5):
        total = sum(play(env, by_mask(np.random.default_rng(seed), 0.8)))
        assert total == pytest.approx(judge(env.plan(), env.game.space.problem).value)


@each(
    ("kwargs", "words"),
    [
        ({"instance": "t5-bse"}, "did you mean 't5-base'"),
        ({"instance": "none.npz"}, "no such file"),
        ({"cluster": "Z"}, "cluster 'Z' does not parse"),
        ({"devices": 1}, "devices: partitioning needs at least 2"),
        ({"devices": 0}, "devices: partitioning needs at least 2"),
        ({"devices": "many"}, "devices"),
        ({"cluster": "1x1:v100"}, "devices: partitioning needs at least 2"),
        ({"cluster": "A", "devices": 4}, "devices: 4 asked for, but the cluster has 16"),
        ({"rules": "gspmd"}, "rules must be one of"),
        ({"uneven": "drop"}, "uneven one of"),
        ({"reward": "speed"}, "reward must be one of"),
    ],
)
def test_operator_partition__bad_arguments(kwargs, words):
    with pytest.raises(ParenvsError, match=words):
        make(**{"instance": "vgg-19", **kwargs})


def test_operator_partition__unknown_render_mode():
    with pytest.raises(ValueError, match="render_mode must be one of"):
        OperatorPartitionEnv(instance="vgg-19", render_mode="human")
