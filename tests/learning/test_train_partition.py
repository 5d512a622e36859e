"""Training on partitions: episodes of unequal length, scaled rewards, exact resume."""

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

import torch
from interrupt import Interrupt, untimed

from parenvs import judge, load_graph
from parenvs.agents.evaluation.evaluate import evaluate
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.run import load_model, replay, train
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import choose_cluster
from parenvs.tasks.partition.load import load_partitioning

UPDATE = 8 * 64
KWARGS = {"instance": "vgg-19", "rules": "automap", "reward": "step_time"}


def config_of(steps, env_id="OperatorPartition-v0", **kwargs):
    return Config(env_id, {**KWARGS, **kwargs}, seed=3, steps=steps)


def environment(config):
    """The environment of a run, as anybody makes it."""
    return gym.make(config.env_id, **config.env_kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("kwargs", [{}, {"linkage": False, "reward": "paper"}])
def test_train__resume_in_the_middle_of_episodes(tmp_path, kwargs):
    """A checkpoint falls into running episodes; the resumed run ends as the whole one."""
    config = config_of(4 * UPDATE, **kwargs)
    result, model = train(config, tmp_path / "whole", checkpoint_every=1)
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        train(config, broken, checkpoint_every=1, callbacks=[Interrupt(int(2.5 * UPDATE))])
    torch.manual_seed(99)
    np.random.seed(99)
    again, resumed = train(config, broken, resume=True, checkpoint_every=1)
    assert untimed(again) == untimed(result)
    one, other = (m.policy.state_dict() for m in (model, resumed))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.thorough
@pytest.mark.parametrize("reward", ["step_time", pytest.param("paper", marks=pytest.mark.slow)])
def test_train__returns_are_those_of_the_judge(reward):
    """Rewards are scaled for the networks only."""
    config = config_of(2 * UPDATE, reward=reward)
    result, model = train(config)
    report = judge(replay(config, result.actions), load_graph("vgg-19"))
    assert report.legal
    assert result.value == pytest.approx(report.value_of(reward), rel=1e-5)
    evaluation = evaluate(model, environment(config), episodes=5, seed=0)
    greedy = judge(evaluation.plan, load_graph("vgg-19"))
    assert evaluation.value == pytest.approx(greedy.value_of(reward), rel=1e-5)
    best = judge(evaluation.best_plan, load_graph("vgg-19"))
    assert evaluation.best_value == pytest.approx(best.value_of(reward), rel=1e-5)
    assert evaluation.best_value == max(evaluation.value, evaluation.returns.max())


def test_train__reaches_the_optimum_and_stops():
    problem = load_partitioning("vgg-19", choose_cluster(), "automap")
    best = exact_partition(problem).value
    config = config_of(20_000, reward="paper")
    result, _ = train(config, target=best * 0.999, stop_at_target=True)
    assert result.value == pytest.approx(best, rel=1e-6)
    assert result.target_steps < 20_000


def test_train__finds_the_batch_dimension():
    config = config_of(4 * UPDATE, env_id="DataParallel-v0", rules="shardy", reward="paper")
    result, _ = train(config, target=1.099, stop_at_target=True)
    assert result.target_steps is not None
    assert replay(config, result.actions).partition == {"images": 0, "labels": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "env_id"),
    [
        ("rainbow", "OperatorPartition-v0"),
        ("rainbow", "PipelineCut-v0"),
        ("rainbow-paper", "OperatorPartition-v0"),
    ],
)
def test_train__rainbow_resumes_exactly(tmp_path, agent, env_id):
    """Replay, priorities and the middle of episodes come back with the checkpoint."""
    kwargs = KWARGS if env_id != "PipelineCut-v0" else {"instance": "vgg-19", "cluster": "B"}
    config = Config(env_id, kwargs, agent, seed=1, steps=900)
    result, model = train(config, tmp_path / "whole")
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        train(config, broken, checkpoint_every=35, callbacks=[Interrupt(700)])
    assert (broken / "checkpoint.zip").exists()
    torch.manual_seed(99)
    np.random.seed(99)
    again, resumed = train(config, broken, resume=True, checkpoint_every=35)
    assert untimed(again) == untimed(result)
    one, other = (m.policy.state_dict() for m in (model, resumed))
    assert all(torch.equal(one[key], other[key]) for key in one)
    values = [
        evaluate(load_model(folder), environment(config), seed=0).value
        for folder in (broken, tmp_path / "whole")
    ]
    assert values[0] == values[1]
