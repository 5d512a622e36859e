"""Makes problems of partitioning of what a name, a path or an object gives, and judges plans."""

from __future__ import annotations

from typing import Any

from parenvs.cluster import Cluster, choose_cluster
from parenvs.core.registry import TASKS
from parenvs.core.task import given, refuse_settings
from parenvs.errors import ParenvsError, shown
from parenvs.graph.graph import Graph
from parenvs.instances import load_graph, load_partitioning
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.task import PartitionOptions


def load(source: Any, cluster: Any, options: PartitionOptions) -> Partitioning:
    """Make a problem of partitioning; see ``parenvs.problem``.

    Args:
        source: a name, a path, a function, a ``Graph``, or a problem.
        cluster: default: one server of 8 V100.
        options: those of the task.
    """
    if isinstance(source, Partitioning):
        return refuse_settings(source, cluster, options)
    settings = given(options)
    precision = settings.pop("precision", None)
    parsed = choose_cluster(cluster, settings.pop("devices", None))
    if precision is not None:
        parsed = parsed.at(precision)
    return load_partitioning(source, parsed, **settings)


def judge(plan: PartitionPlan, target: Any = None, cluster: Any = None) -> PartitionReport:
    """Judge a plan; see ``parenvs.judge``. The target is a graph or a problem."""
    if target is None:
        target = TASKS["partition"].found(plan.instance)
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
