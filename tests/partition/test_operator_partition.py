"""The online partition environments: every question, mask, reward and refusal."""

import itertools
import json

import gymnasium as gym
import numpy as np
import partition_toys as toys
import pytest
from cases import each, slow
from partition_play import by_mask, equal, iter_of, mask_of, play

from parenvs import judge
from parenvs.agents.partition.exact import exact_partition
from parenvs.errors import ParenvsError

ID, BATCH = "OperatorPartition-v0", "DataParallel-v0"
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


def make(env_id=ID, **kwargs):
    return gym.make(env_id, **kwargs).unwrapped


@pytest.fixture
def mlp(tmp_path):
    """Arguments of an environment of the small step over two slow devices."""
    path = tmp_path / "mlp.txt"
    path.write_text(toys.MLP)
    return {"instance": str(path), "cluster": toys.toy_cluster(2)}


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


@pytest.mark.parametrize("name", ["vgg-19", *slow("bert-48")])
@pytest.mark.parametrize("scope", ["variables", "inputs"])
def test_mask_is_the_closure(scope, name):
    """With a mask and without linkage: it allows what contradicts nothing."""
    if scope == "variables":
        env = make(instance=name, linkage=False, masked=True)
    else:
        env = make(BATCH, instance=name)
    problem, rng = toys.shipped(name), np.random.default_rng(3)
    for _ in range(3):
        closure = toys.Closure(problem, scope)
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


ILLEGAL = [2, -1, 3, 10**6, np.int64(2), np.int64(-1), np.int32(7), 2**63, np.int64(-(2**63))]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vgg-19", "t5-base"])
@pytest.mark.parametrize("reward", REWARDS)
def test_data_parallel__every_episode(name, reward):
    """All answers to all questions: illegal exactly where the closure says so."""
    env = make(BATCH, instance=name, reward=reward, masked=False)
    problem = toys.shipped(name)
    count, complete = env.episode_steps, {}
    for actions in itertools.product((0, 1), repeat=count):
        closure = toys.Closure(problem, "inputs")
        observation, info = env.reset()
        assert (observation["decisions"] == -1).all()
        total, decided = 0.0, [-1] * len(closure.label)
        for action in actions:
            assert mask_of(env, info).all()
            dimension = int(env.game.space.questions[observation["position"]])
            allowed = closure.may(dimension)
            news = not closure.stuck[dimension] and closure.label[dimension] not in closure.known
            observation, paid, done, _, info = env.step(action)
            if action not in allowed:
                assert (paid, done) == (-1.0, True)
                break
            closure.decide(dimension, action)
            decided[dimension] = action
            assert observation["decisions"].tolist() == decided
            if reward == "paper":
                assert paid == (0.4 if action else 0.1)
            else:
                gain = problem.gain_seconds[closure.label[dimension]]
                expected = gain / problem.replicate_seconds if action and news else 0
                assert paid == pytest.approx(expected)
            total += paid
        else:
            assert done
            complete[actions] = total
            assert judge(env.plan(), problem).value_of(reward) == pytest.approx(total)
    assert complete
    best = exact_partition(env.game.space.problem).value
    assert max(complete.values()) == pytest.approx(best)
    sets = toys.independent_sets(problem, "inputs")
    assert len(complete) == len(sets)


def test_data_parallel__known_by_hand(mlp):
    """Batch x 0 and y 0, the input width x 1, the output width y 1: three classes."""
    env = make(BATCH, **mlp)
    observation, _ = env.reset()
    names = toys.Closure(env.game.space.problem, "inputs").names
    assert names == [("x", 0), ("x", 1), ("y", 0), ("y", 1)]
    assert [names[k] for k in env.game.space.questions] == [("x", 0), ("y", 0), ("x", 1), ("y", 1)]
    assert play(env, iter_of([1, 1, 0, 0])) == [0.4, 0.4, 0.1, 0.1]
    assert env.plan().partition == {"x": 0, "y": 0}
    assert play(env, iter_of([1, 0])) == [0.4, -1.0]
    assert play(env, iter_of([1, 1, 1])) == [0.4, 0.4, -1.0]
    assert play(env, iter_of([0, 1])) == [0.1, -1.0]
    assert play(env, iter_of([0, 0, 1, 1])) == [0.1, 0.1, 0.4, 0.4]
    assert env.plan().partition == {"x": 1, "y": 1}
    assert observation["stake"][0] == 0.5


def test_data_parallel__step_time_by_hand(mlp):
    env = make(BATCH, **mlp, reward="step_time")
    problem = env.game.space.problem
    batch = problem.gain_seconds[problem.chosen({"x": 0})][0] / problem.replicate_seconds
    questions = [
        toys.Closure(problem, "inputs").names[k] for k in env.game.space.questions.tolist()
    ]  # fmt: skip
    at = questions.index(("x", 0))
    rewards = play(env, by_what(env, {("x", 0), ("y", 0)}))
    assert rewards[at] == pytest.approx(batch)
    assert rewards[questions.index(("y", 0))] == 0  # the same class, earlier or later
    assert sum(rewards) == pytest.approx(batch)


def by_what(env, chosen):
    names = toys.Closure(env.game.space.problem, "inputs").names
    return iter_of([int(names[k] in chosen) for k in env.game.space.questions.tolist()])


@pytest.mark.parametrize(
    "setting", [*SETTINGS[:5], {"env_id": BATCH}, {"env_id": BATCH, "masked": False}]
)
@each("action", ILLEGAL)
def test_operator_partition__illegal_actions(action, setting):
    """They end the episode with -1 and never raise; nothing is decided by them."""
    env = make(instance="vgg-19", **setting)
    for first in (0, 2):
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
        for again in (0, 1, 2, -1):
            assert env.step(again)[1:4] == (-1.0, True, False)


def test_data_parallel__has_no_linkage():
    with pytest.raises(ParenvsError, match="linkage: DataParallel-v0 has none; leave it out"):
        make(BATCH, instance="vgg-19", linkage=True)


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
        ({"rules": "gspmd"}, "unknown rules"),
        ({"uneven": "drop"}, "unknown uneven"),
        ({"reward": "speed"}, "unknown reward"),
    ],
)
def test_operator_partition__bad_arguments(kwargs, words):
    with pytest.raises(ParenvsError, match=words):
        make(**{"instance": "vgg-19", **kwargs})


def paper_step(problem, label, decisions, dimension, choice):
    """What section 4.2 of the paper does with an answer: new decisions and the reward.

    The answer decides the dimensions linked to the one it is for; -1 if that cannot be.
    """
    linked = [k for k, other in enumerate(label) if other == label[dimension]]
    split = {label[k] for k, decision in enumerate(decisions) if decision == 1}
    alone = problem.graph.dims[problem.dimensions()[dimension]] == 1
    rivals = set(problem.classes.rivals(label[dimension]).tolist())
    if choice and (alone or problem.classes.blocked[label[dimension]] or split & rivals):
        return decisions, -1.0
    return [choice if k in linked else decision for k, decision in enumerate(decisions)], (
        0.4 if choice else 0.1
    ) * len(linked)


@pytest.mark.parametrize("seed", range(6))
def test_operator_partition__paper(seed):
    """State, order, rewards and conflicts of the paper (section 4.2), against a second writing."""
    problem, rng = toys.random_problem(seed, steps=14), np.random.default_rng(seed)
    env = make(problem=problem, paper=True)
    label = problem.classes.label[problem.dimensions()].tolist()
    order = env.game.space.questions.tolist()
    wide = problem.graph.dims[problem.dimensions()] > 1
    sizes = [label.count(label[k]) for k in order if wide[k]]
    assert sizes == sorted(sizes, reverse=True)
    assert sorted({label[k] for k in order}) == sorted(set(label))
    ends = set()
    for ones in (0.0, 0.3, 0.7, 1.0):
        for _ in range(8):
            observation, _ = env.reset()
            decisions, total, over = [-1] * len(label), 0.0, False
            while not over:
                assert observation.keys() == {"decisions", "position"}
                assert observation["decisions"].tolist() == decisions
                action = int(rng.random() < ones)
                dimension = order[observation["position"]]
                decisions, reward = paper_step(problem, label, decisions, dimension, action)
                observation, paid, over, _, info = env.step(action)
                assert info["action_mask"].all()
                assert paid == pytest.approx(reward)
                assert over == (reward < 0 or -1 not in decisions)
                total += paid
            ends.add(reward < 0)
            if reward > 0:
                assert total == pytest.approx(judge(env.plan(), problem).value)
    assert False in ends


def test_operator_partition__paper_conflicts(mlp):
    """What an answer excludes is still asked for, and partitioning it is a conflict."""
    env = make(**mlp, paper=True)
    env.reset()
    assert env.step(1)[1:3] == (pytest.approx(0.8), False)  # the hidden dimensions
    assert env.step(1)[1:3] == (-1.0, True)  # dimension 0 of w1, beside dimension 1


def test_operator_partition__second_search(mlp, tmp_path):
    """What a first plan partitions is decided; what it replicates is asked for again."""
    env = make(**mlp, paper=True)
    env.reset()
    rewards = [env.step(action)[1] for action in (0, 1, 0, 0)][:3]
    assert rewards == pytest.approx([0.2, 0.4, 0.1])
    env.plan().save(tmp_path / "first.json")
    again = make(**mlp, paper=True, first_plan=str(tmp_path / "first.json"))
    observation, _ = again.reset()
    assert sorted(observation["decisions"].tolist()) == [-1, -1, -1, 1]
    assert again.step(0)[1] == pytest.approx(0.4 + 0.2)
    assert again.step(1)[1:3] == (pytest.approx(0.4), True)
    assert again.plan().partition == {"w1": 0, "w2": 1}
    with pytest.raises(ParenvsError, match=r"first_plan: is for OperatorPartition-v0 with paper"):
        make(**mlp, first_plan=str(tmp_path / "first.json"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rows": "ahead"}, "paper: its task has neither rows nor linkage"),
        ({"linkage": False}, "paper: its task has neither rows nor linkage"),
        ({"reward": "step_time"}, "paper: its task has no reward 'step_time'"),
    ],
)
def test_operator_partition__paper_refuses(mlp, given, words):
    with pytest.raises(ParenvsError, match=words):
        make(**mlp, paper=True, **given)


def test_data_parallel__paper(mlp):
    """One dimension a step, no groups, nothing masked (section 4.3)."""
    env = make(BATCH, **mlp, paper=True)
    observation, info = env.reset()
    assert observation.keys() == {"decisions", "position"}
    assert info["action_mask"].tolist() == [1, 1]
    assert env.step(1)[1] == pytest.approx(0.4)
    # The batch of the other input is split, too, so that replicating it contradicts that.
    assert env.step(0)[1:3] == (-1.0, True)
