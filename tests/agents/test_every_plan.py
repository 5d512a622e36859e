"""Every planner against all plans of small problems, with time and without, and what that sees."""

from dataclasses import replace

import every_plan
import pytest
from cases import each

import parenvs
from parenvs.core.registry import TASKS
from parenvs.errors import InfeasibleError

PLANNERS = {task: every_plan.planners(task) for task in TASKS}
SLOW = ("search", "swap-search", "subset-dp")
OUTCOMES = {
    "plan", "proven", "proven among some", "no plan", "no plan in time", "illegal plan",
}  # fmt: skip


def test_every_plan__all_tasks_are_tried():
    assert set(every_plan.DRAWN) == set(TASKS)
    assert set(every_plan.OTHERS) <= {(task, x) for task, names in PLANNERS.items() for x in names}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "planner"),
    [
        pytest.param(task, name, marks=pytest.mark.slow)
        if name in SLOW or (task, name) == ("sharding", "exact")
        else (task, name)
        for task, names in PLANNERS.items()
        for name in names
    ],
)
def test_every_plan__nothing_worse_is_proven(task, planner):
    """``benchmarks/proofs.py`` does the same for 1,000 problems."""
    for number in range(len(every_plan.LIMITS)):
        assert every_plan.outcome(task, planner, number) in OUTCOMES, number


@each(
    "changes, said",
    [
        ({"cost": 0.7}, "plan that is better"),
        ({"cost": 0.9}, "cost that is not the judge's"),
        ({"cost": 0.8, "bound": 0.8, "proven": True}, "cost that is not the judge's"),
        ({"proven": True}, "worse plan is called proven"),
        ({"proven": True, "among": "some"}, ""),
        ({"bound": 0.9}, "bound beyond"),
        ({"bound": 0.8}, ""),
    ],
)
def test_every_plan__false_claims_are_seen(monkeypatch, changes, said):
    """Costs as shares of an honest answer's, where the best order takes 0.8 of it."""
    problem = every_plan.DRAWN["elastic"](3)[0]
    honest = parenvs.plan(problem, agent="fastest")
    shares = {
        key: x if key in ("proven", "among") else x * honest.cost for key, x in changes.items()
    }
    answer = replace(honest, **{"bound": None, "among": "", "proven": False, **shares})
    with monkeypatch.context() as patched:
        drawn = (problem, 0.8 * honest.cost)
        patched.setitem(every_plan.DRAWN, "elastic", lambda number: drawn)
        patched.setattr(parenvs, "plan", lambda *_, **__: answer)
        found = every_plan.outcome("elastic", "myopic", 3)
    assert found.startswith("WRONG: a " + said) if said else found in OUTCOMES, found


def test_every_plan__false_infeasibility_is_seen(monkeypatch):
    def refuse(*_, **__):
        raise InfeasibleError("no plan fits")

    monkeypatch.setattr(parenvs, "plan", refuse)
    assert every_plan.outcome("hybrid", "exact", 19).startswith("WRONG: called infeasible")
    assert every_plan.outcome("hybrid", "megatron", 19) == "no plan"
