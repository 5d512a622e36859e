"""References of environments: the best plan that an episode can build, proven."""

from __future__ import annotations

from parenvs.agents.answer import Answer
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.pipeline.exact import exact_pruned
from parenvs.agents.pipeline.points import exact_points
from parenvs.judging import OPTIMAL
from parenvs.tasks.partition.space import PartitionSpace
from parenvs.tasks.pipeline.cuts import CutSpace
from parenvs.tasks.pipeline.points import PointSpace

Space = CutSpace | PointSpace | PartitionSpace
"""The search space of an environment: its attribute ``space``."""


def reference(space: Space) -> Answer:
    """Find the best plan that an episode can build, and prove it.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    if isinstance(space, CutSpace):
        return exact_pruned(space)
    if isinstance(space, PointSpace):
        return exact_points(space)
    return exact_partition(space.problem)


def optimum(space: Space) -> float:
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
