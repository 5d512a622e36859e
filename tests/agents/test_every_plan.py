"""Every planner against all plans of small problems, with time and without, and what that sees."""

from dataclasses import replace

import every_plan
import pytest
from cases import each

from parenvs.core.registry import TASKS
from parenvs.errors import InfeasibleError

PLANNERS = {task: every_plan.planners(task) for task in TASKS}
SLOW = ("local-search", "random-servers", "swap-search", "subset-dp")
OUTCOMES = {
    "plan", "proven", "proven among some", "no plan", "no plan in time", "illegal plan",
}  # fmt: skip


def test_every_plan__all_tasks_are_tried():
    assert set(every_plan.DRAWN) == set(TASKS)
    assert set(every_plan.OTHERS) <= {name for names in PLANNERS.values() for name in names}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "planner"),
    [
        pytest.param(task, name, marks=pytest.mark.slow) if name in SLOW else (task, name)
        for task, names in PLANNERS.items()
        for name in names
    ],
)
def test_every_plan__nothing_worse_is_proven(task, planner):
    """``benchmarks/proofs.py`` does the same for 300 problems of the exact ones."""
    for number in range(len(every_plan.LIMITS)):
        assert every_plan.outcome(task, planner, number) in OUTCOMES, number


@each(
    "changes, said",
    [
        ({"cost": 1.25}, "plan that is better"),
        ({"proven": True}, "worse plan is called proven"),
        ({"proven": True, "among": "some"}, ""),
        ({"bound": 2.0}, "bound beyond"),
        ({"bound": 1.5}, ""),
    ],
)
def test_every_plan__false_claims_are_seen(monkeypatch, changes, said):
    """An answer of 1.75 seconds, where the best order takes 1.5."""
    make = every_plan.DRAWN["order"]
    honest = every_plan.solve(make(3)[0], agent="as-drawn")
    answer = replace(
        honest, **{"cost": 1.75, "bound": None, "among": "", "proven": False, **changes}
    )
    monkeypatch.setitem(every_plan.DRAWN, "order", lambda number: (honest.problem, 1.5))
    monkeypatch.setattr(every_plan, "solve", lambda *_, **__: answer)
    found = every_plan.outcome("order", "neh", 3)
    assert found.startswith("WRONG: a " + said) if said else found in OUTCOMES, found


def test_every_plan__false_infeasibility_is_seen(monkeypatch):
    def refuse(*_, **__):
        raise InfeasibleError("no plan fits")

    monkeypatch.setattr(every_plan, "solve", refuse)
    assert every_plan.outcome("order", "exact", 0).startswith("WRONG: called infeasible")
    assert every_plan.outcome("order", "neh", 0) == "no plan"
