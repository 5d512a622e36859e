"""DataParallel-v0: one dimension of a batch input at a time."""

import itertools

import gymnasium as gym
import numpy as np
import partition_toys as toys
import pytest
from cases import each
from partition_play import equal, iter_of, mask_of

from parenvs import judge
from parenvs.agents.partition.exact import exact_partition

ID = "DataParallel-v0"
REWARDS = ("paper", "step_time")


def make(**kwargs):
    return gym.make(ID, **kwargs).unwrapped


@pytest.fixture
def mlp(tmp_path):
    """Arguments of an environment of the small step over two slow devices."""
    path = tmp_path / "mlp.txt"
    path.write_text(toys.MLP)
    return {"instance": str(path), "cluster": toys.toy_cluster(2)}


def play(env, choose, check=lambda *_: None):
    observation, info = env.reset()
    check(observation, info)
    rewards, done = [], False
    while not done:
        observation, reward, done, truncated, info = env.step(choose(mask_of(env, info)))
        assert type(reward) is float
        assert truncated is False
        check(observation, info)
        rewards.append(reward)
    return rewards


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vgg-19", "t5-base"])
@pytest.mark.parametrize("reward", REWARDS)
def test_data_parallel__every_episode(name, reward):
    """All answers to all questions: illegal exactly where the closure says so."""
    env, problem = make(instance=name, reward=reward, masked=False), toys.shipped(name)
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
    env = make(**mlp)
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
    env = make(**mlp, reward="step_time")
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


@each("masked", [True, False])
@each("first", [0, 2])
@each("action", [2, -1, 10**6, np.int64(2), np.int64(-1), 2**63])
def test_data_parallel__illegal_actions(action, first, masked):
    env = make(instance="vgg-19", masked=masked)
    observation, _ = env.reset()
    for _ in range(first):
        observation, *_ = env.step(0)
    after, reward, done, truncated, info = env.step(action)
    assert (reward, done, truncated) == (-1.0, True, False)
    assert equal(after, observation)
    assert mask_of(env, info).all()
    for again in (0, 1, 2, -1):
        assert env.step(again)[1:4] == (-1.0, True, False)
