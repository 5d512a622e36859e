"""Three policies on every environment and documented option, and on every set."""

import inspect
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import parenvs
from parenvs.core.registry import TASKS
from parenvs.core.sets import BOUND, set_names, set_of
from parenvs.core.task import late

pytestmark = pytest.mark.slow

PROBLEMS, SAMPLED, FIRST = 1, 1, 3
"""Problems of an environment, sampled episodes of each beside the greedy one, problems of a set.
3, 9 and 30 make it thirty episodes of each case, which take an hour."""
ROWS = [{"rows": "ahead"}, {"rows": "bare"}]
PARTITION = [
    {}, {"instance": "t5-base", "devices": 2}, {"cluster": "A"}, {"rules": "automap"},
    {"uneven": "forbid"}, {"reward": "paper"}, {"reward": "step_time"}, {"masked": True},
    {"masked": False}, {"memory": True}, {"memory_limit": "device"}, {"memory_limit": True},
    {"memory_limit": 1e9, "reward": "step_time"}, {"micro_batch": 2}, {"micro_batches": 4},
    {"recompute": "full"}, *ROWS, {"paper": True}, {"paper": True, "masked": True},
]  # fmt: skip
PROFILE = [
    {"instance": "t5-base", "cluster": "A"}, {"cluster": "1x4:v100", "stages": 2},
    {"stages": 3}, {"micro_batch": 3}, {"micro_batches": 5}, {"copies": 4.0},
    {"recompute": "none"}, {"sync": "parameter-server"}, {"tied": "held"}, *ROWS,
]  # fmt: skip
OPTIONS = {
    "OperatorPartition-v0": [
        *PARTITION, {"linkage": True}, {"linkage": False}, {"linkage": False, "masked": True},
    ],
    "DataParallel-v0": PARTITION,
    "PipelineCut-v0": [{}, *PROFILE, {"radius": 1}, {"candidates": "all"}, {"paper": True}],
    "PipelinePlan-v0": [
        {}, {"ranges": "outside"}, {"repeat": 1}, {"family": "cnn"}, {"family": "uniform"},
        {"instance": "plan-outside"}, {"instance": "generated-2/inside/any/17"}, *ROWS,
        *({"instance": "vgg-19", "cluster": "B", **options} for options in PROFILE),
    ],
    "PipelineImprove-v0": [
        {"tier": "s8"}, {"tier": "s32", "turns": 3}, {"fresh": True}, {"family": "cnn"},
        {"pairs": True}, {"instance": "plan-s16-test"}, {"instance": "generated-3/s8/17"}, *ROWS,
        *({"instance": "vgg-19", "cluster": "B", **options} for options in PROFILE),
    ],
    "PartitionPlan-v2": [{}, {"family": "vgg"}, {"instance": "partition-test/t5-003"}, *ROWS],
    "HybridPlan-v2": [
        {}, {"instance": "hetero-8"}, {"instance": ["hybrid", "hetero-8"]}, {"family": "gpt"},
        {"instance": "hybrid/7"}, {"instance": "hetero-8-test/spread-001"}, {"fresh": True}, *ROWS,
        *(
            {"instance": "gpt-1.5b", "cluster": "1x4:h100", "batch": 8, **options}
            for options in ({}, {"stack": "nemo"}, {"precision": "fp8"})
        ),
    ],
    "IntraOpSharding-v2": [
        {}, {"family": "classes"}, {"family": None}, {"fresh": True}, {"ranges": "outside"},
        {"form": "improve"}, {"instance": "intra-op-test/mesh-003"}, *ROWS,
        {"instance": "intra-op/inside/mesh/17", "reduction": False},
    ],
    "ElasticPlan-v2": [
        {}, {"instance": "elastic-windows"}, {"family": "bulk"}, {"model": "bert-large"},
        {"fresh": True}, {"instance": "g4dn", "interval": 300.0}, *ROWS,
        {"instance": "p3", "model": "gpt-1.5b", "cluster": "32x1:v100,10Gbps", "batch": 256},
    ],
}  # fmt: skip
SMALL = {
    "OperatorPartition-v0": {"instance": "vgg-19"},
    "DataParallel-v0": {"instance": "vgg-19"},
    "PipelineCut-v0": {"instance": "vgg-19", "cluster": "B"},
}
"""Arguments that options which name no instance are tried with."""


def cases(env_id: str) -> Iterator[dict[str, Any]]:
    """Arguments of an environment, among which every one that it documents stands once."""
    for options in OPTIONS[env_id]:
        yield {**SMALL.get(env_id, {}), **options}
    if "order" in parameters(env_id):
        own = next(name for name in set_names() if set_of(name).kind.env_id == env_id)
        yield {"instance": own, "order": "sequential"}
    problem = gym.make(env_id, **SMALL.get(env_id, {})).unwrapped.problem
    yield {"problem": problem}
    if "first_plan" in parameters(env_id) and env_id.startswith("Operator"):
        yield {**SMALL[env_id], "paper": True, "first_plan": parenvs.plan(problem).plan}


def parameters(env_id: str) -> set[str]:
    """The arguments of an environment."""
    task = next(task for task in TASKS.values() if env_id in task.envs)
    names = inspect.signature(late(task.envs[env_id]).__init__).parameters
    return {*names} - {"self", "count"}


def policies() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "first": lambda seen, mask: int(mask.argmax()),
        "last": lambda seen, mask: int(np.flatnonzero(mask)[-1]),
        "random": lambda seen, mask: int(rng.choice(np.flatnonzero(mask))),
    }


def played(env: gym.Env, policy: Any, seed: int) -> tuple[float, dict[str, Any]]:
    """Return and last info of an episode."""
    seen, info = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        seen, reward, done, _, info = env.step(policy(seen, info["action_mask"]))
        total += reward
    return total, info


@pytest.mark.parametrize("env_id", OPTIONS)
def test_policies__evaluated_and_judged(env_id):
    """What ``evaluate`` says is what an episode by hand says, and the judge of the plan."""
    tried: set[str] = set()
    for options in cases(env_id):
        tried |= {*options}
        env = gym.make(env_id, **options)
        for name, policy in policies().items():
            for seed in range(PROBLEMS if env.unwrapped.draws else 1):
                found = parenvs.evaluate(policy, env, episodes=SAMPLED, seed=seed)
                where = env_id, options, name, seed
                report = parenvs.judge(found.plan, env.unwrapped.problem)
                assert (report.legal, report.cost) == (found.report.legal, found.report.cost), where
                if "problem" not in options:
                    assert parenvs.judge(found.plan).cost == report.cost, where
                assert len(found.returns) == SAMPLED and np.isfinite(found.returns).all(), where
                if report.legal:
                    assert found.reference > 0, where
                    assert found.gap == report.cost / found.reference - 1, where
                    assert found.gap > -1e-9 or not found.proven, where
                else:
                    assert found.gap is None and found.score is None, where
                if name == "random":
                    continue
                total, info = played(env, policy, seed)
                assert total == found.value, where
                if report.legal and "cost" in info:
                    assert info["cost"] == pytest.approx(report.cost, rel=1e-9), where
                if report.legal and "reference" in info:
                    assert found.reference == info["reference"], where
                    assert info["gap"] == pytest.approx(found.gap, rel=1e-9, abs=1e-12), where
    assert tried == parameters(env_id) - ({"first_plan", "linkage"} if env_id[0] == "D" else set())


@pytest.mark.parametrize("name", set_names())
def test_policies__on_sets(name):
    """Scores of ``evaluate_set`` are those of ``evaluate``, problem by problem."""
    known = set_of(name)
    count = min(FIRST, len(known.problems))
    for policy in policies().values():
        found = parenvs.evaluate_set(policy, name, first=count)
        assert found.scores.shape == (1, count) and found.coverage > 0
        legal = found.scores > 0
        np.testing.assert_allclose(found.gaps[legal], 1 / found.scores[legal] - 1)
    last = policies()["last"]
    found = parenvs.evaluate_set(last, name, first=PROBLEMS)
    env = gym.make(known.kind.env_id, **known.env_kwargs(None))
    for number, (score, kind) in enumerate(zip(found.scores[0], found.kinds, strict=True)):
        alone = parenvs.evaluate(last, env, seed=None if number else 0)
        if alone.score is None:
            assert np.isnan(score)
        elif kind != BOUND:  # which stands for a reference in sets alone
            assert score == pytest.approx(alone.score)
