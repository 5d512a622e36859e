"""The proven optimum of an environment, whatever the task."""

from __future__ import annotations

from parenvs.agents.exact import exact_pruned
from parenvs.agents.partition_exact import exact_partition
from parenvs.candidates import CutSpace
from parenvs.judge import plan_values
from parenvs.partition_space import PartitionSpace


def optimum(space: CutSpace | PartitionSpace) -> float:
    """Return of the best episode of the environment whose ``space`` this is."""
    if isinstance(space, CutSpace):
        answer = exact_pruned(space)
        return float(plan_values(space.pipeline, answer.cuts, answer.device_cuts))
    return exact_partition(space.problem, space.reward, space.scope).value
