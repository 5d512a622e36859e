"""A limit of memory in the partition environments: returns are the judge's, batches the same."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from partition_play import by_mask, iter_of, play

import parenvs
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.planners import random_search
from parenvs.errors import InfeasibleError, ParenvsError, TimeLimitError
from parenvs.tasks.partition.game import PartitionSpace

OPERATOR, BATCH = "OperatorPartition-v0", "DataParallel-v0"
LIMIT = 3.5e9
"""Bytes that some plans of VGG-19 keep to and others do not."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kwargs",
    [
        {"reward": "paper"},
        {"reward": "step_time", "linkage": False, "masked": True},
        {"reward": "step_time", "micro_batch": 32, "micro_batches": 2},
    ],
)
def test_limit__returns_are_those_of_the_judge(kwargs):
    limited = {"instance": "vgg-19", "memory_limit": LIMIT, **kwargs}
    env = gym.make(OPERATOR, **limited).unwrapped
    free = gym.make(OPERATOR, **{**limited, "memory_limit": None}).unwrapped
    rng, seen = np.random.default_rng(0), set()
    for episode in range(12):
        actions = []
        choose = by_mask(rng, ones=[0.3, 0.7, 0.95][episode % 3])
        rewards = play_with(env, lambda mask, c=choose, a=actions: a.append(c(mask)) or a[-1])
        plan = env.plan()
        report = env.problem.report(plan)
        assert report.legal == (report.memory.peak <= LIMIT) == report.fits
        assert sum(rewards) == pytest.approx(report.value, abs=1e-9)
        others = play(free, iter_of(actions))
        assert others[:-1] == rewards[:-1]  # only the last step knows
        assert (others[-1] == rewards[-1]) == report.legal
        assert report.legal or sum(rewards) == pytest.approx(-1, abs=1e-9)
        assert episode or parenvs.judge(plan).legal == report.legal
        seen.add(report.legal)
    assert seen == {True, False}


def play_with(env, choose):
    """An episode by the mask; the last info tells the bytes over the limit."""
    _, info = env.reset()
    rewards, done = [], False
    while not done:
        _, reward, done, _, info = env.step(choose(info["action_mask"]))
        rewards.append(reward)
    peak = env.problem.report(env.plan()).memory.peak
    assert info["excess_bytes"] == peak - LIMIT
    return rewards


@pytest.mark.thorough
def test_limit__passes_the_checker_and_options():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(gym.make(OPERATOR, instance="vgg-19", memory_limit="device").unwrapped)
    env = gym.make(OPERATOR, instance="vgg-19", reward="step_time")
    for options, legal in (({}, True), ({"memory_limit": 3e9}, False), ({}, True)):
        _, info = env.reset(options=options)
        done, total = False, 0.0
        while not done:
            _, reward, done, _, info = env.step(1)
            total += reward
        assert (total > 0) == legal and ("excess_bytes" in info) == (not legal)
        if not legal:
            assert total == pytest.approx(-1)
    spec = gym.make(OPERATOR, instance="vgg-19", memory_limit=True, micro_batch=32).spec
    again = gym.make(gym.envs.registration.EnvSpec.from_json(spec.to_json()))
    assert again.unwrapped.problem.step.settings == {"memory_limit": 28.8e9, "micro_batch": 32}


def test_limit__no_plan_is_told():
    with pytest.warns(UserWarning, match="exceeds memory_limit by .* every complete episode"):
        env = gym.make(OPERATOR, instance="vgg-19", memory_limit=5e8)
    with pytest.raises(InfeasibleError, match="no partition fits 500,000,000 bytes a device"):
        exact_partition(env.unwrapped.problem)
    with pytest.raises(TimeLimitError, match="none of 50 plans of vgg-19 keeps to 500,000,000"):
        random_search(env.unwrapped.game.space, 50, np.random.default_rng(0))
    for limit in (-1, "a lot", float("inf")):
        with pytest.raises(ParenvsError, match="memory_limit must be a positive number of bytes"):
            gym.make_vec(OPERATOR, num_envs=2, instance="vgg-19", memory_limit=limit)


def test_limit__planners_keep_to_it():
    """The exact plan of the problem's own limit; random plans."""
    of = parenvs.problem("vgg-19", task="partition", reward="step_time", memory_limit=3.2e9)
    space, free = PartitionSpace.of(of), parenvs.problem(
        "vgg-19", task="partition", reward="step_time"
    )  # fmt: skip
    best, same = exact_partition(of), exact_partition(free, memory_limit=3.2e9)
    assert (best.report.chosen == same.report.chosen).all() and best.value == same.value
    assert best.report.legal and best.value < exact_partition(free).value
    drawn = random_search(space, 3000, np.random.default_rng(1))
    assert drawn.report.legal and -1 < drawn.value <= best.value + 1e-12
    env = gym.make(OPERATOR, problem=of)
    evaluation = parenvs.evaluate(lambda observation, mask: 1, env)
    assert evaluation.value == pytest.approx(-1) and evaluation.gap is None
    assert evaluation.reference == best.report.cost
