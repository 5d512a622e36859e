"""Makes hybrid problems of what a name, a path or an object gives, and judges plans on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from parenvs.cluster import Cluster
from parenvs.core.sets import Validation
from parenvs.core.task import given
from parenvs.errors import (
    ClusterError,
    ParenvsError,
    PlanError,
    UnknownInstanceError,
    did_you_mean,
    shown,
)
from parenvs.graph.graph import Graph
from parenvs.graph.sources import is_function
from parenvs.instances import Key, check_no_reading, exists, load_graph, reading_key, stamp, text_of
from parenvs.shipped import names
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.shipped import load_shape, shapes
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.task import HybridOptions, HybridTask


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
    batch, stack = settings.pop("batch", None), settings.pop("stack", None)
    precision = settings.pop("precision", "")
    parsed = Cluster.parse("C" if cluster is None else cluster)
    model = load_model(source, **settings)
    if batch is None:
        raise ParenvsError(
            "task hybrid needs batch, the number of samples of a step; give batch=1024"
        )
    instance = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
    return Hybrid(model, parsed, batch, stack, precision, instance)


def _changed(problem: Hybrid, cluster: Any, settings: dict[str, Any]) -> Hybrid:
    """Return a problem with other settings; a new cluster has its own stack and precision."""
    for name in ("variables", "frozen", "arguments"):
        if name in settings:
            raise ParenvsError(f"{problem.instance}: a shape is no graph; leave out {name!r}")
    if cluster is not None and Cluster.parse(cluster) != problem.cluster:
        settings = {"stack": None, "precision": "", **settings, "cluster": cluster}
    return replace(problem, **settings)


def judge(plan: HybridPlan, target: Any = None, cluster: Any = None) -> HybridReport:
    """Judge a plan; see ``parenvs.judge``. The target is a name, a shape, a model or a problem."""
    if isinstance(target, Hybrid):
        return target.report(plan)
    judged_cluster = plan.cluster if cluster is None else Cluster.parse(cluster)
    target = plan.instance if target is None else target
    if not isinstance(target, (str, os.PathLike, Graph, TransformerShape, HybridModel)):
        raise ParenvsError(
            "a hybrid plan is judged on a Hybrid, a HybridModel, a Graph or a TransformerShape, "
            f"not on {shown(target)}"
        )
    model = load_model(target)
    try:
        stack = Stack.parse(plan.stack, stored=True)
    except PlanError as error:
        raise PlanError(f"field 'stack': {error}") from None
    try:
        problem = Hybrid(model, judged_cluster, plan.batch, stack, plan.precision, plan.instance)
    except ClusterError as error:
        raise PlanError(f"field 'precision': {error}") from None
    return problem.report(plan)


def training(instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the environment of a training, its arguments, and options that may be added."""
    if instance is None:
        return "HybridPlan-v1", {}, ()
    return "HybridPlan-v1", {"instance": instance}, ("cluster", "batch", "stack", "precision")


def validation(env_kwargs: Mapping[str, Any]) -> Validation:
    """Return the set on which agents are judged."""
    instance = env_kwargs.get("instance") or HybridTask.drawn[0]
    kind = str(instance[0] if isinstance(instance, (list, tuple)) else instance)
    drawn = [tier for tier in HybridTask.drawn if kind.startswith(tier)]
    return Validation(f"{(drawn or HybridTask.drawn)[0]}-validation", env_kwargs.get("family"))


def rules() -> list[tuple[str, list[tuple[str, str | None]], dict[str, dict[str, Any]]]]:
    """Return environments of rows, the sets that they are tested on, and planners beside them."""
    sets: list[tuple[str, str | None]] = [("hybrid-test", None)]
    planners: dict[str, dict[str, Any]] = {
        "uniform": {}, "search": {},
        **{f"search/{limit} s": {"time_limit": limit} for limit in (0.01, 0.03, 0.1, 0.3)},
    }  # fmt: skip
    return [("HybridPlan-v1", sets, planners)]


def reading(instance: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of ``load_graph`` for an instance; None if it is a shape."""
    if load_shape(instance) is not None:
        return None
    return {key: options[key] for key in ("variables", "frozen", "arguments") if key in options}


def load_model(
    instance: str | os.PathLike[str] | Graph | TransformerShape | HybridModel, **reading: Any
) -> HybridModel:
    """Load the chain of layers that hybrid plans cut: of a shape if there is one, else of a graph.

    The same name or path gives the same object.

    Args:
        instance: name or path of a shape or of a graph, or either as an object; a ``HybridModel``
            is returned as it is.
        **reading: see ``load_graph``; a shape has no parameters to read.

    Raises:
        TypeError: ``instance`` is nothing of these.
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: options of reading are given for a shape.
    """
    if isinstance(instance, Graph):
        return HybridModel.of_graph(load_graph(instance, **reading))
    if isinstance(instance, (TransformerShape, HybridModel)):
        check_no_reading(reading, f"{instance.name}: a shape")
        return instance if isinstance(instance, HybridModel) else HybridModel.of_shape(instance)
    text = text_of(instance, "a Graph", "a TransformerShape", "a HybridModel")
    shape = load_shape(text)
    if shape is not None:
        check_no_reading(reading, f"{text}: a shape")
        return HybridModel.of_shape(shape)
    if not (text in names() or exists(text) or is_function(text)):
        raise UnknownInstanceError(
            f"unknown instance {text!r}{did_you_mean(text, (*shapes(), *names()))}; shapes: "
            f"{', '.join(shapes())}; graphs: {', '.join(names())}; or give a .json file of a shape "
            "or the path of a graph"
        )
    if text.endswith(".csv"):
        raise ParenvsError(
            f"{text}: a profile says nothing of the layers' operations; hybrid plans need a shape "
            "or a graph"
        )
    arguments = reading.pop("arguments", None)
    return _cached(text, (arguments, reading_key(reading), stamp(text)))


@lru_cache(maxsize=4)
def _cached(instance: str, how: tuple[str | None, Key, Any]) -> HybridModel:
    arguments, reading, _ = how
    graph = load_graph(instance, arguments=arguments, **dict(reading))
    return HybridModel.of_graph(graph, instance)
