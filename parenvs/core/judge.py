"""``judge``, which alone decides a plan's legality and cost, for every task."""

from __future__ import annotations

import os
from typing import Any

from parenvs.core.plan import Plan, load_plan
from parenvs.core.registry import task_of
from parenvs.errors import ParenvsError, shown

OPTIMAL = 1e-3
"""A plan reaches the optimum if its cost is within this share of the exact one."""
ROUNDING = 1e-9
"""Figures that differ by less than this share are taken as equal but for rounding."""


def judge(plan: Any, problem: Any = None, cluster: Any = None) -> Any:
    """Judge a plan of any task.

    Args:
        plan: the plan, or the path of its file.
        problem: the problem to judge it on, or what such problems are made of: a name, a path, a
            graph, a chain, a shape (default: the plan's ``instance``, a name or a path).
        cluster: the cluster that the plan must be for (default: the plan's own).

    Returns:
        The report, of a class of the task.

    Raises:
        PlanError: the plan's file, or its stack, is none.
        UnknownInstanceError: no problem is given, and the plan's instance is neither a shipped name
            nor a file.
        ParenvsError: the problem is for another device than the cluster's, or of a wrong type.
    """
    if isinstance(plan, (str, os.PathLike)):
        plan = load_plan(plan)
    if not isinstance(plan, Plan):
        raise ParenvsError(f"judge takes a plan, not {shown(plan)}; read one with load_plan(path)")
    return task_of(plan).judge(plan, problem, cluster)
