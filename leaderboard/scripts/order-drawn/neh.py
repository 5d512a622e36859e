"""NEH: the heaviest first, each where those so far take least."""

from parenvs.agents.order.heuristics import neh


def plan(problem):
    """Return the plan of a problem of ``order-drawn``."""
    return neh(problem.target).plan
