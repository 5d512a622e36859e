"""The solver of the contest's problems."""

from parenvs.agents.sharding import solve_iopddl


def plan(problem):
    """Return the plan of a problem of ``sharding-drawn``."""
    return solve_iopddl(problem.target, 5.0, processor=True).plan
