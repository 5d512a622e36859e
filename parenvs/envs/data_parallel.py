"""``DataParallel-v0``: which dimension of each batch input is the batch."""

from __future__ import annotations

from typing import Any

from parenvs.envs.partition import PartitionEnv
from parenvs.partition_space import PartitionSpace
from parenvs.partitioning import choose_cluster, load_partitioning
from parenvs.plan import BatchPlan


class DataParallelEnv(PartitionEnv):
    """Find the dimension of each batch input over which training is data parallel.

    ## Description
    As in ``OperatorPartition-v0``, but the candidates are the dimensions of the batch inputs, they
    are decided one at a time, and nothing is decided along with them. What one decision forces or
    excludes is known to the mask; contradicting it is a conflict (arXiv 2007.04069, sections 3.4
    and 4.3).

    ## Action Space
    ``Discrete(2)``: 0 replicates, 1 partitions the dimension at stake. Legal is what contradicts
    no earlier decision; dimensions that can never be partitioned must be replicated. The mask is
    ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of the observation with
    ``parenvs.wrappers.MaskInObservation``.

    ## Observation Space
    ``Dict``, as in ``OperatorPartition-v0``: ``decisions`` (V,) int8 over the dimensions of all
    batch inputs, ``position`` and ``stake``.

    ## Rewards
    * ``reward="paper"``: 0.4 for a dimension that is partitioned, 0.1 for one that is replicated.
    * ``reward="step_time"``: by how much the step time falls, over that of the replicated step.

    A conflict pays -1 and ends the episode.

    ## Starting State
    Nothing decided; the same at every reset.

    ## Episode End
    When every dimension is decided, or at a conflict. No truncation.

    ## Arguments
    * ``instance``, ``devices``, ``cluster``, ``rules``, ``uneven``, ``reward``: as in
      ``OperatorPartition-v0``.
    * ``masked``: False lets the mask forbid nothing.

    ## Version History
    * v0: first version.
    """

    def __init__(
        self,
        instance: str = "t5-base",
        devices: int | None = None,
        cluster: str | dict[str, Any] | None = None,
        rules: str = "shardy",
        uneven: str = "pad",
        reward: str = "paper",
        masked: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """Load the instance and find its classes; see the class for the arguments."""
        problem = load_partitioning(instance, choose_cluster(cluster, devices), rules, uneven)
        space = PartitionSpace.of(problem, BatchPlan.task, reward, linkage=False)
        super().__init__(space, instance, masked, render_mode)
