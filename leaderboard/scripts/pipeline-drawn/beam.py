"""Beam search over 128 points of the chain."""

from parenvs.agents.planners import solve


def plan(problem):
    """Return the plan of a problem of ``pipeline-drawn``."""
    answer = solve(problem.target, "beam")
    return problem.pipeline_plan(answer.plan.cuts, answer.plan.device_cuts)
