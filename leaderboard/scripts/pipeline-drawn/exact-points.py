"""The optimum over 128 points of the chain and all device cuts."""

from parenvs.agents.planners import solve


def plan(problem):
    """Return the plan of a problem of ``pipeline-drawn``."""
    answer = solve(problem.target, "exact-points", time_limit=20)
    return problem.pipeline_plan(answer.plan.cuts, answer.plan.device_cuts)
