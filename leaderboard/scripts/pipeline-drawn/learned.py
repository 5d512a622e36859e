"""The network of ``PipelinePlan-v1`` that ships."""

from parenvs.agents.planners import solve


def plan(problem):
    """Return the plan of a problem of ``pipeline-drawn``."""
    answer = solve(problem.target, "learned")
    return problem.pipeline_plan(answer.plan.cuts, answer.plan.device_cuts)
