"""Makes pipelines of what a name, a path or an object gives, and judges plans on them."""

from __future__ import annotations

from typing import Any

from parenvs.cluster import Cluster
from parenvs.core.registry import TASKS
from parenvs.core.task import given, refuse_settings
from parenvs.errors import ParenvsError, shown
from parenvs.graph.graph import Graph
from parenvs.instances import _load_pipeline, forward_of, load_profile
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, Report
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.task import PipelineOptions


def load(source: Any, cluster: Any, options: PipelineOptions) -> Pipeline:
    """Make a pipeline; see ``parenvs.problem``.

    Args:
        source: a name, a path, a function, a ``Graph``, a ``StageProfile``, or a problem.
        cluster: default: ``"C"``.
        options: those of the task.
    """
    if isinstance(source, Pipeline):
        return refuse_settings(source, cluster, options)
    settings = given(options)
    precision = settings.pop("precision", None)
    parsed = Cluster.parse("C" if cluster is None else cluster)
    if precision is not None:
        parsed = parsed.at(precision)
    return _load_pipeline(source, parsed, **settings)


def judge(plan: PipelinePlan, target: Any = None, cluster: Any = None) -> Report:
    """Judge a plan; see ``parenvs.judge``. The target is a graph, a chain or a problem."""
    if target is None:
        target = TASKS["pipeline"].found(plan.instance)
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
