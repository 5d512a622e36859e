"""Megatron's rule of thumb."""

import parenvs
from parenvs.leaderboard.methods import answer


def plan(problem):
    """Return the plan of a problem of ``hybrid-drawn``."""
    return parenvs.plan(problem.target, "rule-of-thumb").plan


if __name__ == "__main__":
    answer(plan)
