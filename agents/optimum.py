"""The proven optimum of an environment, whatever the task."""

from __future__ import annotations

from parenvs.agents.exact.partition import exact_partition
from parenvs.agents.exact.pipeline import exact_pruned
from parenvs.agents.exact.points import exact_points
from parenvs.judging import OPTIMAL
from parenvs.partitioning.space import PartitionSpace
from parenvs.pipeline.cuts import CutSpace
from parenvs.pipeline.judge import plan_values
from parenvs.pipeline.points import PointSpace


def optimum(space: CutSpace | PointSpace | PartitionSpace) -> float:
    """Return of the best episode of the environment whose ``space`` this is."""
    if isinstance(space, (CutSpace, PointSpace)):
        answer = exact_pruned(space) if isinstance(space, CutSpace) else exact_points(space)
        return float(plan_values(space.pipeline, answer.cuts, answer.device_cuts))
    return exact_partition(space.problem, space.reward, space.scope).value


def target(reward: str, best: float) -> float:
    """The return from which an episode reaches the optimum: a cost within 0.1 % of its cost.

    Args:
        reward: ``"step_time"``, where the return is 1 - T / T_replicate and T the cost, or another.
        best: return of the best episode.
    """
    if reward == "step_time":
        return 1 - (1 - best) * (1 + OPTIMAL)
    return best * (1 - OPTIMAL)
