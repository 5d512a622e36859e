"""The judge, which alone decides a plan's legality and cost, for every task."""

from __future__ import annotations

import os
from typing import Any, overload

from parenvs.cluster import Cluster
from parenvs.core.plan_files import load_plan
from parenvs.errors import ClusterError, ParenvsError, PlanError, shown
from parenvs.graph.graph import Graph
from parenvs.instances import forward_of, load_graph, load_model, load_ordering, load_profile
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order, OrderReport
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, Report
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import Sharding, ShardingReport
from parenvs.tasks.sharding.store import find

OPTIMAL = 1e-3
"""A plan reaches the optimum if its cost is within this share of the exact one."""
ROUNDING = 1e-9
"""Figures that differ by less than this share are taken as equal but for rounding."""


@overload
def judge(
    plan: PipelinePlan,
    target: Graph | StageProfile | Pipeline | None = None,
    cluster: str | Cluster | None = None,
) -> Report: ...


@overload
def judge(
    plan: PartitionPlan,
    target: Graph | Partitioning | None = None,
    cluster: str | Cluster | None = None,
) -> PartitionReport: ...


@overload
def judge(
    plan: HybridPlan,
    target: Hybrid | HybridModel | TransformerShape | None = None,
    cluster: str | Cluster | None = None,
) -> HybridReport: ...


@overload
def judge(
    plan: OrderPlan, target: Order | None = None, cluster: str | Cluster | None = None
) -> OrderReport: ...


@overload
def judge(
    plan: ShardingPlan, target: Sharding | None = None, cluster: None = None
) -> ShardingReport: ...


@overload
def judge(
    plan: str | os.PathLike[str], target: Any = None, cluster: str | Cluster | None = None
) -> Any: ...


def judge(plan: Any, target: Any = None, cluster: Any = None) -> Any:
    """Judge a plan of any task.

    Args:
        plan: the plan, or the path of its file.
        target: the problem to judge it on, or the graph that the problem is made of; for pipelines
            also a chain, for hybrid plans a shape or a ``HybridModel``. By default it is loaded by
            the plan's ``instance``, a name or a path.
        cluster: the cluster that the plan must be for (default: the plan's own).

    Returns:
        ``Report`` for pipelines, ``PartitionReport`` for partitions, ``HybridReport`` for hybrid
        plans, ``OrderReport`` for orders of micro-batches, ``ShardingReport`` for strategies of
        IOPDDL problems.

    Raises:
        PlanError: the plan's file, or its stack, is none.
        UnknownInstanceError: no target is given, and the plan's instance is neither a shipped name
            nor a file.
        ParenvsError: the target is for another device than the cluster's, or of a wrong type.
    """
    if isinstance(plan, (str, os.PathLike)):
        plan = load_plan(plan)
    if isinstance(plan, PipelinePlan):
        return _judge_pipeline(plan, target, cluster)
    if isinstance(plan, HybridPlan):
        return _judge_hybrid(plan, target, cluster)
    if isinstance(plan, OrderPlan):
        return _judge_order(plan, target, cluster)
    if isinstance(plan, ShardingPlan):
        return _judge_intra_op(plan, target, cluster)
    if not isinstance(plan, PartitionPlan):
        raise ParenvsError(f"judge takes a plan, not {shown(plan)}; read one with load_plan(path)")
    if isinstance(target, Partitioning):
        return target.report(plan)
    judged_cluster = plan.cluster if cluster is None else Cluster.parse(cluster)
    if target is None:
        target = load_graph(plan.instance)
    if not isinstance(target, Graph):
        raise ParenvsError(
            f"a plan of task {plan.task} is judged on a Graph or a Partitioning, not on "
            f"{shown(target)}"
        )
    own = {"scope": plan.scope, "instance": plan.instance, **plan.step}
    problem = Partitioning.build(target, judged_cluster, plan.rules, plan.uneven, **own)
    return problem.report(plan)


def _judge_pipeline(plan: PipelinePlan, target: Any, cluster: Any) -> Report:
    """Judge a plan of a pipeline; see ``judge``."""
    if isinstance(target, Pipeline):
        return target.report(plan)
    judged_cluster = plan.cluster if cluster is None else Cluster.parse(cluster)
    if target is None:
        target = load_profile(plan.instance, judged_cluster, plan.micro_batch)
    elif isinstance(target, Graph):
        # A plan made for this very graph is judged on it. Otherwise a shipped training step is
        # replaced by its forward pass, as where pipelines are made.
        graph = target if plan.fingerprint == target.fingerprint else forward_of(target)
        target = StageProfile.from_graph(graph, judged_cluster.device, plan.micro_batch)
    if not isinstance(target, StageProfile):
        raise ParenvsError(
            "a pipeline plan is judged on a Graph, a StageProfile or a Pipeline, not on "
            f"{shown(target)}"
        )
    problem = Pipeline(
        target,
        judged_cluster,
        micro_batches=plan.micro_batches,
        copies=plan.copies,
        recompute=plan.recompute,
        sync=plan.sync,
        tied=plan.tied,
        instance=plan.instance,
    )
    return problem.report(plan, any_stages=True)


def _judge_hybrid(plan: HybridPlan, target: Any, cluster: Any) -> HybridReport:
    """Judge a hybrid plan; see ``judge``."""
    if isinstance(target, Hybrid):
        return target.report(plan)
    judged_cluster = plan.cluster if cluster is None else Cluster.parse(cluster)
    if target is None:
        target = load_model(plan.instance)
    elif isinstance(target, TransformerShape):
        target = HybridModel.of_shape(target)
    if not isinstance(target, HybridModel):
        raise ParenvsError(
            "a hybrid plan is judged on a Hybrid, a HybridModel or a TransformerShape, not on "
            f"{shown(target)}"
        )
    try:
        stack = Stack.parse(plan.stack)
    except PlanError as error:
        raise PlanError(f"field 'stack': {error}") from None
    try:
        problem = Hybrid(target, judged_cluster, plan.batch, stack, plan.precision, plan.instance)
    except ClusterError as error:
        raise PlanError(f"field 'precision': {error}") from None
    return problem.report(plan)


def _judge_order(plan: OrderPlan, target: Any, cluster: Any) -> OrderReport:
    """Judge an order of micro-batches; see ``judge``."""
    if cluster is not None:
        raise ParenvsError(f"a plan of task {plan.task} has the cluster of its problem")
    problem = load_ordering(plan.instance) if target is None else target
    if not isinstance(problem, Order):
        raise ParenvsError(
            f"a plan of task {plan.task} is judged on an Order, not on {shown(target)}"
        )
    return problem.report(plan)


def _judge_intra_op(plan: ShardingPlan, target: Any, cluster: Any) -> ShardingReport:
    """Judge strategies of an IOPDDL problem; see ``judge``."""
    if cluster is not None:
        raise ParenvsError(f"a plan of task {plan.task} is for no cluster")
    if target is None:
        target = find(plan.instance)
    if not isinstance(target, Sharding):
        raise ParenvsError(
            f"a plan of task {plan.task} is judged on a Sharding, not on {shown(target)}; read one "
            "with parenvs.tasks.sharding.load_iopddl(path)"
        )
    return target.report(plan)
