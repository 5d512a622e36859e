"""The exact planner of every task against all plans of small problems, with and without time."""

import every_plan
import pytest

from parenvs.core.registry import TASKS


def test_every_plan__all_tasks_are_tried():
    assert set(every_plan.DRAWN) == set(TASKS)


@pytest.mark.thorough
@pytest.mark.parametrize("task", every_plan.DRAWN)
def test_every_plan__nothing_worse_is_proven(task):
    """``benchmarks/proofs.py`` does the same for 300 problems of each."""
    for number in range(len(every_plan.LIMITS)):
        assert every_plan.fault(task, number) == "", number
