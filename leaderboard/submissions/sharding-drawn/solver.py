"""The exact planner, 5 seconds a problem."""

import parenvs
from parenvs.leaderboard.methods import answer


def plan(problem):
    """Return the plan of a problem of ``sharding-drawn``."""
    return parenvs.plan(problem.target, time_limit=5).plan


if __name__ == "__main__":
    answer(plan)
