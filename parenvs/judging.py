"""The judge: the one place where a plan's legality and cost are decided, whatever its task."""

from __future__ import annotations

from typing import Any, overload

from parenvs.cluster import Cluster
from parenvs.graph.graph import Graph
from parenvs.partitioning.judge import PartitionReport, judge_partition
from parenvs.partitioning.problem import Partitioning
from parenvs.pipeline.judge import Report, judge_pipeline
from parenvs.pipeline.problem import Pipeline
from parenvs.pipeline.profile import StageProfile
from parenvs.plan import PartitionPlan, PipelinePlan

OPTIMAL = 1e-3
"""A plan reaches the optimum if its cost is within this share of the exact one."""
ROUNDING = 1e-9
"""Two figures that differ by less than this share differ by errors of rounding only."""


@overload
def judge(
    plan: PipelinePlan, target: Graph | StageProfile | Pipeline, cluster: Cluster | None = None
) -> Report: ...


@overload
def judge(
    plan: PartitionPlan, target: Graph | Partitioning, cluster: Cluster | None = None
) -> PartitionReport: ...


def judge(plan: Any, target: Any, cluster: Cluster | None = None) -> Any:
    """Judge a plan of any task on what it is for.

    Args:
        plan: the plan.
        target: the graph, or the problem made of it; for pipelines also a chain.
        cluster: the cluster it must be for (default: the plan's own).

    Returns:
        ``Report`` for pipelines, ``PartitionReport`` for partitions.
    """
    if isinstance(plan, PipelinePlan):
        cluster = plan.cluster if cluster is None else cluster
        if isinstance(target, Graph):
            target = StageProfile.from_graph(target, cluster.device, plan.micro_batch)
        if isinstance(target, StageProfile):
            target = Pipeline(target, cluster, plan.micro_batches)
        return judge_pipeline(plan, target)
    if isinstance(target, Graph):
        target = Partitioning.build(target, cluster or plan.cluster, plan.rules, plan.uneven)
    return judge_partition(plan, target)
