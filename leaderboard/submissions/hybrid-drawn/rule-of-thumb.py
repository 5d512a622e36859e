"""Megatron's rule of thumb."""

from parenvs.agents.planners import solve
from parenvs.leaderboard.methods import answer


def plan(problem):
    """Return the plan of a problem of ``hybrid-drawn``."""
    return solve(problem.target, "rule-of-thumb").plan


if __name__ == "__main__":
    answer(plan)
