"""Options of Python are checked as files are: odd values are refused, or mean something.

The options come from the dataclasses and the signatures themselves.
"""

import inspect
import math
from dataclasses import fields, replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

import parenvs
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.trainer import train
from parenvs.core.registry import TASKS, environments
from parenvs.core.task import late
from parenvs.errors import ParenvsError

ODD = (
    None, True, -1, 0, 2.5, math.nan, math.inf, -0.0, 10**400, "abc", "", b"x", [], {}, (), [None],
    {"a": 1}, object(), np.int64(2), np.float64(2.0), np.float64(np.nan), np.bool_(True),
    np.zeros(0), np.zeros((2, 2)), len,
)  # fmt: skip
EACH = {
    "pipeline": ("vgg-19", "A", "plan-test/cnn-003", "even"),
    "partition": ("vgg-19", "A", "partition-test/t5-006", "expert"),
    "hybrid": ("gpt-1.5b", "1x8:h100", "hybrid/7", "rule-of-thumb"),
    "sharding": ("intra-op-test/mesh-000", None, "intra-op-test/mesh-000", "greedy"),
    "elastic": ("p3/gpt-1.5b", None, "p3/gpt-1.5b", "fastest"),
}
"""Task -> an instance and its cluster; a problem of a set, and a planner."""


def names(kind, *without):
    return [each.name for each in fields(kind) if each.init and each.name not in without]


def doors(task):
    """What makes something of an option's value, by the option's name."""
    source, cluster, name, planner = EACH[task]
    problem = parenvs.problem(name)
    made = {"source": source, "cluster": cluster, "task": task}
    for option in (*made, *names(TASKS[task].options)):
        yield option, lambda **given: parenvs.problem(**{**made, **given})
    for option in names(TASKS[task].request_class(), "problem"):
        yield option, partial(parenvs.plan, problem, planner)
    plan = parenvs.plan(problem, planner).plan
    for option in names(type(plan)):
        yield option, lambda **given: parenvs.judge(replace(plan, **given))
        yield option, lambda **given: parenvs.judge(replace(plan, **given), problem)
    for option in names(type(problem)) if task != "sharding" else ("instance",):
        yield option, partial(replace, problem)
    for option in ("plan", "problem", "cluster"):
        yield option, lambda **given: parenvs.judge(**{"plan": plan, "problem": problem, **given})


def python_doors():
    cluster = parenvs.Cluster.parse("A")
    for option in names(parenvs.Cluster):
        yield option, partial(replace, cluster)
    for option in names(parenvs.Device):
        yield option, lambda **x: replace(cluster, device=replace(cluster.device, **x))
    yield "devices", cluster.part
    for env_id, game in environments().items():
        for option in [*inspect.signature(late(game).__init__).parameters][2:]:
            yield option, partial(gym.make, env_id, disable_env_checker=True)
    place = {"instance": "vgg-19", "cluster": "A"}
    run = {"env_id": "PipelineCut-v0", "env_kwargs": place, "steps": 16}
    run["settings"] = {"envs": 4, "turns": 4}
    for option in names(TrainConfig):
        yield option, lambda **given: train(TrainConfig(**{**run, **given}))
    for option in ("envs", "turns", "rate", "width", "sharpness", "discount", "gradient"):
        yield (
            option,
            lambda **x: train(TrainConfig(**{**run, "settings": {**run["settings"], **x}})),
        )
    env, policy = gym.make("PipelineCut-v0", **place), lambda _, mask: int(mask.argmax())
    for option in ("env", "episodes", "seed"):
        yield option, lambda **given: parenvs.evaluate(policy, **{"env": env, **given})
    for option in ("name", "family", "greedy", "seed", "first", "settings"):
        yield option, lambda **given: parenvs.evaluate_set(policy, **{"first": 1, **given})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", [*EACH, "python"])
def test_options__odd_values_are_refused_or_mean_something(task):
    for option, door in doors(task) if task != "python" else python_doors():
        for value in ODD:
            try:
                door(**{option: value})
            except ParenvsError as error:
                assert "\n" not in str(error) and len(str(error)) < 700
            except Exception as error:
                raise AssertionError(f"{door}({option}={value!r}): {error!r}") from error


WHOLE = {"stages", "devices_used", "micro_batch", "micro_batches", "seed", "threads", "rounds"}
NUMBERS = WHOLE | {"time_limit", "radius", "copies", "price", "interval"}


@pytest.mark.thorough
def test_options__nonsense_does_not_pass_and_whole_numbers_of_numpy_do():
    problems = {task: parenvs.problem(EACH[task][2]) for task in EACH}
    for task, (source, cluster, _, planner) in EACH.items():
        make = partial(parenvs.problem, source, cluster, task)
        solve = partial(parenvs.plan, problems[task], planner)
        for kind, door in ((TASKS[task].options, make), (TASKS[task].request_class(), solve)):
            for option in NUMBERS.intersection(names(kind)):
                for value in (math.nan, True, "abc", -1, np.zeros(0), []):
                    words = rf"\b{option} must be .*, not |-1 devices are no part"
                    with pytest.raises(ParenvsError, match=words):
                        door(**{option: value})
                if option in WHOLE:
                    assert door(**{option: np.int64(4)}) is not None
        assert solve(**dict.fromkeys(names(TASKS[task].request_class(), "problem"))).plan
    for wrong in ({"constraints": {"pinned": "abc"}}, {"constraints": "abc"}, {"robust": 1}):
        with pytest.raises(ParenvsError, match=r"must be .*, not "):
            parenvs.plan(problems["hybrid"], "rule-of-thumb", **wrong)
    assert parenvs.Cluster.parse("1x8:v100").part(np.int64(4)).devices == 4
