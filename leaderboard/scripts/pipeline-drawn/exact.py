"""The exact planner, 20 seconds a problem."""

from parenvs.agents.planners import solve


def plan(problem):
    """Return the plan of a problem of ``pipeline-drawn``."""
    answer = solve(problem.target, time_limit=20)
    return problem.pipeline_plan(answer.plan.cuts, answer.plan.device_cuts)
