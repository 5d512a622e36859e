"""Names of what was removed end in one line."""

import re

import gymnasium as gym
import pytest

import parenvs  # noqa: F401
from parenvs.agents.learning.options import ALGORITHMS
from parenvs.core.plan import load_plan
from parenvs.core.registry import REMOVED, TASKS, environments
from parenvs.core.sets import set_names
from parenvs.errors import ParenvsError, PlanError


@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
@pytest.mark.parametrize("env_id", REMOVED["environment"])
def test_make__removed(env_id, make):
    for name in (env_id, f"parenvs/{env_id}"):
        with pytest.raises(ParenvsError, match=rf"^environment '{env_id}' was removed"):
            make(name)


@pytest.mark.parametrize("task", REMOVED["task"])
def test_load_plan__removed(task, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(f'{{"schema": 1, "task": "{task}"}}')
    with pytest.raises(PlanError, match=f"^{re.escape(str(path))}: task '{task}' was removed"):
        load_plan(path)
    with pytest.raises(ParenvsError, match=f"^task '{task}' was removed"):
        TASKS.named(task)


def test_removed__names_are_gone():
    names = {
        "environment": environments(), "task": TASKS, "agent": ALGORITHMS,
        "set": set_names(),
    }  # fmt: skip
    assert names.keys() == REMOVED.keys()
    for kind, removed in REMOVED.items():
        assert not {*removed} & {*names[kind]}
