"""Makes hybrid problems of what a name, a path or an object gives, and judges plans on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parenvs.cluster import Cluster
from parenvs.core.task import given
from parenvs.errors import ClusterError, ParenvsError, PlanError, shown
from parenvs.instances import _load_hybrid, load_model
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.task import HybridOptions


def load(source: Any, cluster: Any, options: HybridOptions) -> Hybrid:
    """Make a hybrid problem; see ``parenvs.problem``.

    Args:
        source: a name or path of a shape or a graph, a function, a ``Graph``, a
            ``TransformerShape``, a ``HybridModel``, or a problem, whose settings are kept where no
            others are given.
        cluster: default: ``"C"``.
        options: those of the task.
    """
    settings = given(options)
    if isinstance(source, Hybrid):
        return _changed(source, cluster, settings)
    return _load_hybrid(source, cluster, **settings)


def _changed(problem: Hybrid, cluster: Any, settings: dict[str, Any]) -> Hybrid:
    """Return a problem with other settings; a new cluster has its own stack and precision."""
    for name in ("variables", "frozen", "arguments"):
        if name in settings:
            raise ParenvsError(f"{problem.instance}: a shape is no graph; leave out {name!r}")
    if cluster is not None and Cluster.parse(cluster) != problem.cluster:
        settings = {"stack": None, "precision": "", **settings, "cluster": cluster}
    return replace(problem, **settings)


def judge(plan: HybridPlan, target: Any = None, cluster: Any = None) -> HybridReport:
    """Judge a plan; see ``parenvs.judge``. The target is a shape, a model or a problem."""
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
