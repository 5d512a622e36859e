"""The exact planner, 20 seconds a problem."""

import parenvs
from parenvs.leaderboard.methods import answer


def plan(problem):
    """Return the plan of a problem of ``pipeline-drawn``."""
    planned = parenvs.plan(problem.target, time_limit=20)
    return problem.pipeline_plan(planned.plan.cuts, planned.plan.device_cuts)


if __name__ == "__main__":
    answer(plan)
