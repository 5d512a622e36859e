"""The solver of the contest's problems, for 5 s."""

from parenvs.agents.sharding import solve_iopddl
from parenvs.leaderboard.methods import answer


def plan(problem):
    """Return the plan of a problem of ``sharding-drawn``."""
    return solve_iopddl(problem.target, 5.0, processor=True).plan


if __name__ == "__main__":
    answer(plan)
