"""Runs a method on one drawn problem; called in the sandbox."""

from __future__ import annotations

import types
from typing import Any

from parenvs.core.leaderboard import kind_of
from parenvs.errors import NO_PLAN
from parenvs.leaderboard.sandbox.child import SOURCE

FUNCTION = "plan"
"""Name of the function that a method must have."""


def planned(job: dict[str, Any]) -> Any:
    """Return the content of the plan file that a method makes, JSON types if it keeps the rules.

    Args:
        job: ``task``, ``seed`` and ``number`` of the problem, and ``script``, the method's text.

    Returns:
        The content, or None if the method raises ``InfeasibleError``: it leaves the problem out.

    Raises:
        TypeError: the script has no function ``plan``, or that returns no plan.
    """
    draw = kind_of(job["task"]).draw
    assert draw is not None
    problem = draw(job["seed"], job["number"])
    module = types.ModuleType("method")
    module.__file__ = SOURCE
    exec(compile(job["script"], SOURCE, "exec"), module.__dict__)
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise TypeError(f"{SOURCE} has no function {FUNCTION}(problem)")
    try:
        plan = function(problem)
    except NO_PLAN:
        return None
    if isinstance(plan, dict):
        return plan
    if not hasattr(plan, "to_json"):  # None is no plan, either: only that error leaves out
        raise TypeError(f"{FUNCTION}(problem) returned {type(plan).__name__}, not a plan")
    return plan.to_json()
