"""References of environments: the best plan that an episode can build, proven."""

from __future__ import annotations

from typing import Any

from parenvs.core.plan import OPTIMAL, Answer
from parenvs.core.registry import task_of


def reference(space: Any) -> Answer:
    """Find the best plan that an episode can build, and prove it.

    Args:
        space: the search space of an environment: its attribute ``space``.

    Raises:
        InfeasibleError: no plan fits the memory.
        ParenvsError: the environment's task has no references.
    """
    return task_of(space).reference(space)


def optimum(space: Any) -> float:
    """Return the return of the best episode."""
    return float(reference(space).value)


def target(reward: str, best: float) -> float:
    """Return the least return of episodes that count as optimal: their cost is within 0.1 %.

    Args:
        reward: ``"step_time"``, whose return is 1 - T / T_replicate with the cost T; for other
            rewards the return itself is compared.
        best: return of the best episode.
    """
    if reward == "step_time":
        return 1 - (1 - best) * (1 + OPTIMAL)
    return best * (1 - OPTIMAL)
