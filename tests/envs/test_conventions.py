"""What all environments do alike: options, infos, masked observations, attributes of batches."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from batches import assert_same, both, drawn, modes
from cases import each

from parenvs.datasets.pipeline import problems as instance_sets
from parenvs.errors import ParenvsError
from parenvs.tasks.partition.game import DataParallelVectorEnv, OperatorPartitionVectorEnv
from parenvs.tasks.pipeline.cut import PipelineCutVectorEnv
from parenvs.tasks.pipeline.planning import PipelinePlanningVectorEnv

VGG = {"instance": "vgg-19"}
KINDS = [
    PipelineCutVectorEnv,
    PipelinePlanningVectorEnv,
    OperatorPartitionVectorEnv,
    DataParallelVectorEnv,
]
kinds = each("kind", KINDS)
OPTIONS = {
    PipelineCutVectorEnv: {"micro_batches": 7},
    PipelinePlanningVectorEnv: {"micro_batches": 7},
    OperatorPartitionVectorEnv: {"devices": 4},
    DataParallelVectorEnv: {"devices": 4},
}
"""Options that leave the spaces alone."""


def kwargs_of(kind):
    """Arguments under which the options of ``OPTIONS`` leave the spaces alone."""
    return {**VGG, "cluster": "A"} if kind is PipelineCutVectorEnv else VGG


def finish(env, info):
    """Play the last legal actions to the end; the return and the last info."""
    total, done = 0.0, False
    while not done:
        _, reward, done, _, info = env.step(int(np.flatnonzero(info["action_mask"])[-1]))
        total += reward
    return total, info


@pytest.mark.thorough
@each("illegal", [0.0, 0.1])
@modes
@kinds
def test_conventions__options_in_a_batch(kind, mode, illegal):
    """Episodes of other problems beside those of the batch, as single environments play them."""
    batched, single = both(kind, kwargs_of(kind), 4, mode)
    rng, over = np.random.default_rng(0), np.zeros(4, dtype=bool)
    assert_same(batched.reset(seed=0), single.reset(seed=0))
    for turn in range(24):
        if over.any() and mode == "Disabled":
            assert_same(
                *(env.reset(options={"reset_mask": over.copy()}) for env in (batched, single))
            )
        if turn % 5 == 2:
            mask = rng.random(4) < 0.5
            mask[rng.integers(4)] = True
            options = {**OPTIONS[kind], **({"reset_mask": mask} if turn % 2 else {})}
            outcomes = [env.reset(options=dict(options)) for env in (batched, single)]
            assert_same(*outcomes)
        assert batched.get_attr("instance") == single.get_attr("instance")
        actions = drawn(batched.action_masks(), rng, illegal)
        outcome = batched.step(actions)
        assert_same(outcome, single.step(actions))
        over = outcome[2]


@pytest.mark.thorough
@kinds
def test_conventions__options_of_one_episode(kind):
    env = kind.single(**kwargs_of(kind))
    first = env.reset()
    env.reset(options=OPTIONS[kind])
    _, other = finish(env, env.reset(options=OPTIONS[kind])[1])
    again = env.reset()
    assert_same(first, again)
    key = "step_seconds" if "step_seconds" in other else "cost"
    assert finish(env, again[1])[1][key] != other[key]


@pytest.mark.thorough
@kinds
def test_conventions__wrong_options_change_nothing(kind):
    env, batch = kind.single(**VGG), kind(2, **VGG)
    for one in env, batch:
        one.reset()
        with pytest.raises(ParenvsError, match=r"options: unknown 'instanc' .*'instance'"):
            one.reset(options={"instanc": "t5-base"})
        if kind is not PipelinePlanningVectorEnv:
            with pytest.raises(ParenvsError, match=r"options: instance would change the .* space"):
                one.reset(options={"instance": "t5-base"})
        with pytest.raises(ParenvsError):
            one.reset(options={"instance": "nothing"})
    assert finish(env, env.reset()[1])[0] > 0.0


@each("kind", [PipelineCutVectorEnv, OperatorPartitionVectorEnv, DataParallelVectorEnv])
def test_conventions__infos(kind):
    """They say what the judge says of the plan."""
    more = {} if "Pipeline" in kind.__name__ else {"memory": True}
    env = kind.single(**VGG, **more)
    info = env.reset()[1]
    assert info.keys() == {"action_mask", "instance"}
    assert info["instance"] == "vgg-19"
    _, info = finish(env, info)
    report = env.problem.report(env.plan())
    assert info["cost"] == pytest.approx(report.cost, rel=1e-12)
    if more:
        assert info["excess_bytes"] == report.memory.peak - env.problem.memory_limit
    else:
        fullest = max(stage.memory_bytes for stage in report.stages)
        assert info["excess_bytes"] == fullest - env.problem.memory_limit
    env.reset()
    _, _, done, _, info = env.step(-1)
    assert done
    assert info.keys() == {"action_mask", "instance"}  # there is no plan to tell of


def test_conventions__sequential():
    """A set in its order, once and then again; a batch deals it out to its environments."""
    problems = instance_sets.load_set("plan-outside")
    names = [problem.name for problem in problems if problem.family == "cnn"]
    kwargs = {"instance": "plan-outside", "family": "cnn", "order": "sequential"}
    env = PipelinePlanningVectorEnv.single(**kwargs)
    seen = [env.reset()[1]["instance"] for _ in range(len(names) + 2)]
    assert seen == [*names, *names[:2]]
    assert env.reset(seed=3)[1]["instance"] == names[0]
    with pytest.raises(ParenvsError):
        env.reset(seed=4, options={"instance": "nowhere"})
    assert env.reset()[1]["instance"] == names[1]  # what is refused changes nothing
    batch = PipelinePlanningVectorEnv(3, **kwargs)
    assert [*batch.reset()[1]["instance"], *batch.reset()[1]["instance"]] == names[:6]
    with pytest.raises(ParenvsError, match="order: 'sequential' plays a set"):
        PipelinePlanningVectorEnv.single(order="sequential")


@kinds
def test_conventions__actions_are_whole(kind):
    env, batch = kind.single(**VGG), kind(2, **VGG)
    env.reset()
    for action in (0.7, np.float64(0.5), float("nan"), "1", None, [0, 1]):
        with pytest.raises(ParenvsError, match="action: expected a whole number"):
            env.step(action)
    with pytest.raises(ParenvsError, match=r"action: expected a whole number, not .*0\.7"):
        batch.step([0, 0.7])
    env.step(np.float64(0.0))
    env.step(np.array([1]))


@kinds
def test_conventions__attributes_of_a_batch(kind):
    batch, single = both(kind, VGG, 2)
    for env in batch, single:
        env.reset()
    assert_same(batch.call("action_masks"), single.call("action_masks"))
    assert batch.call("plan") == single.call("plan")
    for name in ("instance", "episode_steps", "largest_return"):
        assert batch.get_attr(name) == single.get_attr(name)
    with pytest.raises(AttributeError, match="share 'problem'"):
        batch.set_attr("problem", None)
    with pytest.raises(AttributeError):
        batch.get_attr("nothing")
    with pytest.raises(AttributeError, match="'step'"):
        batch.call("step")


@pytest.mark.thorough
def test_conventions__infeasible_problems_warn():
    with pytest.warns(UserWarning, match="no plan fits the memory: t5-11b on A"):
        env = gym.make("PipelineCut-v0", instance="t5-11b", cluster="A")
    info = env.reset()[1]
    assert finish(env, info)[1]["excess_bytes"] > 0
    with pytest.warns(UserWarning, match="no plan fits the memory: t5-11b on"):
        gym.make("OperatorPartition-v0", instance="t5-11b", devices=2)
    with pytest.raises(ParenvsError, match="fits the memory"):  # no start plan
        gym.make("PipelinePlan-v0", instance="t5-11b", cluster="A")
    with pytest.raises(ParenvsError, match=r"none of .* fits the memory"):  # no start plan
        gym.make_vec(
            "HybridPlan-v2", num_envs=2, instance="llama3-70b", cluster="1x8:v100", batch=64
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gym.make("HybridPlan-v2", instance="hybrid-outside/gpt-003")
    with pytest.raises(ParenvsError, match="automap forbids to partition a dimension that"):
        gym.make("DataParallel-v0", instance="t5-base", rules="automap")
