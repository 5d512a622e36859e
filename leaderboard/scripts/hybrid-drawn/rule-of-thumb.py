"""Megatron's rule of thumb."""

from parenvs.agents.planners import solve


def plan(problem):
    """Return the plan of a problem of ``hybrid-drawn``."""
    return solve(problem.target, "rule-of-thumb").plan
