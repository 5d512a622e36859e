"""``OperatorPartition-v0``: which dimension of each variable is split over the devices."""

from __future__ import annotations

from typing import Any

from parenvs.envs.partition import PartitionEnv
from parenvs.partition_space import PartitionSpace
from parenvs.partitioning import choose_cluster, load_partitioning
from parenvs.plan import PartitionPlan


class OperatorPartitionEnv(PartitionEnv):
    """Decide for each dimension of each trainable variable: partition it, or replicate it.

    ## Description
    A training step is a graph of instructions. Dimensions that instructions tie together form a
    class: it is partitioned over all N devices as a whole, or not at all. Some classes can never
    be, and some exclude each other, as an instruction may split at most one of its factors
    (arXiv 2007.04069, sections 3.3 and 4.2; the rules are in ``parenvs.rules``). Each step decides
    one class, and with it all classes that it excludes.

    ## Action Space
    ``Discrete(2)``: 0 replicates, 1 partitions what is at stake. With ``linkage`` both are always
    legal. The mask is ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of the
    observation with ``parenvs.wrappers.MaskInObservation``.

    ## Observation Space
    ``Dict``:

    * ``decisions``: (V,) int8, each dimension that is decided, by path: 1 partitioned, 0
      replicated, -1 undecided.
    * ``position``: Discrete(n + 1), the question at stake; n at the end.
    * ``stake``: (5,) float32 in [-1, 1], on the class at stake: the share of all dimensions that it
      holds, the share of the bytes of all parameters; the seconds of a step that it saves, over the
      replicated step's; the dimensions that it excludes, and the seconds that those could save.

    Classes that can earn most are asked for first: most dimensions (``reward="paper"``), most
    seconds (``"step_time"``); ties by path.

    ## Rewards
    * ``reward="paper"``: 0.4 for each dimension that the step partitions, 0.1 for each that it
      replicates, those that it excludes included. Dimensions that can never be partitioned are
      paid on the first step. A complete episode returns 0.1 V + 0.3 x partitioned dimensions.
    * ``reward="step_time"``: by how much the step time falls, over that of the replicated step; a
      complete episode returns 1 - T / T_replicate. The dimensions of the batch inputs are decided
      too: partitioning the batch is data parallelism.

    A conflict (an illegal action) pays -1 and ends the episode.

    ## Starting State
    Nothing decided but what can never be partitioned; the same at every reset.

    ## Episode End
    When everything is decided, or at a conflict. No truncation.

    ## Arguments
    * ``instance``: shipped name, or path of a graph.
    * ``devices``: N (default 8: one server of V100); or ``cluster``: preset, short form, ``.json``
      path or object, see ``Cluster.parse``.
    * ``rules``: ``"shardy"``, or ``"automap"``, where a reduced dimension cannot be partitioned.
    * ``uneven``: ``"pad"``, or ``"forbid"``: only multiples of N can be partitioned.
    * ``reward``: ``"paper"`` or ``"step_time"``.
    * ``linkage``: False is the ablation: one dimension at a time, nothing is inferred, and a
      decision that contradicts an earlier one is a conflict.
    * ``masked``: without linkage, let the mask forbid contradictions.

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
        linkage: bool = True,
        masked: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Load the instance and find its classes; see the class for the arguments."""
        problem = load_partitioning(instance, choose_cluster(cluster, devices), rules, uneven)
        space = PartitionSpace.of(problem, PartitionPlan.task, reward, linkage)
        super().__init__(space, instance, masked, render_mode)
