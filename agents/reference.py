"""The reference of an environment: the proven best of what its episodes can build."""

from __future__ import annotations

from parenvs.agents.answer import Answer
from parenvs.agents.exact.partition import exact_partition
from parenvs.agents.exact.pipeline import exact_pruned
from parenvs.agents.exact.points import exact_points
from parenvs.judging import OPTIMAL
from parenvs.partitioning.space import PartitionSpace
from parenvs.pipeline.cuts import CutSpace
from parenvs.pipeline.points import PointSpace

Space = CutSpace | PointSpace | PartitionSpace
"""The search space of an environment: its attribute ``space``."""


def reference(space: Space) -> Answer:
    """The best plan that an episode can build, with its proof.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    if isinstance(space, CutSpace):
        return exact_pruned(space)
    if isinstance(space, PointSpace):
        return exact_points(space)
    return exact_partition(space.problem)


def optimum(space: Space) -> float:
    """The return of the best episode."""
    return float(reference(space).value)


def target(reward: str, best: float) -> float:
    """The return from which an episode reaches the optimum: a cost within 0.1 % of its cost.

    Args:
        reward: ``"step_time"``, where the return is 1 - T / T_replicate and T the cost, or another.
        best: return of the best episode.
    """
    if reward == "step_time":
        return 1 - (1 - best) * (1 + OPTIMAL)
    return best * (1 - OPTIMAL)
