"""Makes problems of partitioning of what a name, a path or an object gives, and judges plans."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from parenvs.cluster import PRESETS, Cluster, choose_cluster
from parenvs.core.registry import TASKS, problem
from parenvs.core.sets import Validation
from parenvs.core.task import given, refuse_settings
from parenvs.errors import ParenvsError, shown
from parenvs.graph.graph import Graph
from parenvs.instances import READING, Key, load_graph, reading_key, stamp, text_of
from parenvs.tasks.partition.plan import SCOPES, PartitionPlan
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.step import Step
from parenvs.tasks.partition.task import PartitionOptions

STEP_OPTIONS = ("micro_batch", "micro_batches", "recompute", "memory_limit")
"""Options of partitions that say how a step runs, see ``parenvs.tasks.partition.step.Step.of``."""


def load(source: Any, cluster: Any, options: PartitionOptions) -> Partitioning:
    """Make a problem of partitioning; see ``parenvs.problem``.

    Args:
        source: a name, a path, a function, ``FILE.json/NAME`` of a set, a ``Graph``, or a problem.
        cluster: default: one server of 8 V100.
        options: those of the task.
    """
    source = _found(source)
    if isinstance(source, Partitioning):
        return refuse_settings(source, cluster, options)
    settings = given(options)
    precision = settings.pop("precision", None)
    parsed = choose_cluster(cluster, settings.pop("devices", None))
    if precision is not None:
        parsed = parsed.at(precision)
    return load_partitioning(source, parsed, **settings)


def judge(plan: PartitionPlan, target: Any = None, cluster: Any = None) -> PartitionReport:
    """Judge a plan; see ``parenvs.judge``. The target is a name, a graph or a problem."""
    target = _found(plan.instance if target is None else target)
    if isinstance(target, Partitioning):
        return target.report(plan)
    judged_cluster = plan.cluster if cluster is None else Cluster.parse(cluster)
    if isinstance(target, (str, os.PathLike)):
        target = load_graph(target)
    if not isinstance(target, Graph):
        raise ParenvsError(
            f"a plan of task {plan.task} is judged on a Graph or a Partitioning, not on "
            f"{shown(target)}"
        )
    own = {"scope": plan.scope, "reward": plan.reward, "instance": plan.instance, **plan.step}
    partitioning = Partitioning.build(target, judged_cluster, plan.rules, plan.uneven, **own)
    return partitioning.report(plan)


def _found(source: Any) -> Any:
    """Return the problem of a set's or a set file's member, and all else as it is."""
    task = TASKS["partition"]
    if isinstance(source, (str, os.PathLike)) and ".json/" in os.fspath(source):
        return task.find(os.fspath(source))
    known = task.found(source)
    return source if known is None else known


def reading(instance: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``load_graph`` for an instance."""
    return {key: options[key] for key in (*READING, "arguments") if key in options}


def training(instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]] | None:
    """Return the environment of a training, its arguments, and options that may be added.

    None: agents train on the problem of the instance, in the environment of its request.
    """
    task = TASKS["partition"]
    if instance is None:
        return "PartitionPlan-v1", {}, ()
    is_drawn = instance in task.sets or task.names(instance) or instance.endswith(".json")
    return ("PartitionPlan-v1", {"instance": instance}, ()) if is_drawn else None


def validation(env_kwargs: Mapping[str, Any]) -> Validation:
    """Return the set on which agents are judged, whose families are not those of training."""
    return Validation("partition-validation")


def rules() -> list[tuple[str, list[tuple[str, str | None]], dict[str, dict[str, Any]]]]:
    """Return environments of rows, the sets that they are tested on, and planners beside them."""
    sets: list[tuple[str, str | None]] = [
        (name, None) for name in ("partition-validation", "partition-test")
    ]
    return [("PartitionPlan-v1", sets, {"greedy": {}, "exact": {"time_limit": 20.0}})]


def for_step_time(
    instance: str, cluster: Any, options: Mapping[str, Any], search: Mapping[str, Any]
) -> tuple[Partitioning, dict[str, Any]]:
    """Make the problem of a command whose plans are for the step time, unless they are not to be.

    Returns:
        The problem, and the options of its planners.
    """
    settings = {"reward": "step_time", **options}
    return problem(instance, cluster, "partition", **settings), dict(search)


def load_partitioning(
    instance: str | os.PathLike[str] | Graph,
    cluster: Cluster | str | os.PathLike[str] | dict[str, Any],
    rules: str = "shardy",
    uneven: str = "pad",
    scope: str = SCOPES[0],
    reward: str = "paper",
    arguments: str | None = None,
    **options: Any,
) -> Partitioning:
    """Load the partitioning of a shipped instance or a graph file.

    The same name or path and settings give the same object; problems that differ only in scope
    or reward share the graph and its classes.

    Args:
        instance: the name or path, which plans carry, or a ``Graph``.
        cluster: the devices, in any form that ``Cluster.parse`` takes.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` or ``"forbid"``.
        scope: ``"variables"`` or ``"inputs"``.
        reward: ``"paper"`` or ``"step_time"``.
        arguments: see ``load_graph``.
        **options: of the step, see ``Partitioning.build``, and of reading, see ``load_graph``.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: see ``load_graph`` and ``Partitioning.build``.
    """
    own = Cluster.parse(cluster)
    settings = {key: options.pop(key) for key in STEP_OPTIONS if key in options}
    if isinstance(instance, Graph):
        graph = load_graph(instance, arguments=arguments, **options)
        return Partitioning.build(graph, own, rules, uneven, scope, reward, **settings)
    text, step = text_of(instance, "a Graph"), Step.of(own, **settings)
    how = (arguments, reading_key(options), stamp(text))
    named = next((preset for preset in PRESETS.values() if preset == own), own)  # as plans say it
    return _cached(scope, reward, step, text, how, named, rules, uneven)


@lru_cache(maxsize=64)
def _cached(scope: str, reward: str, step: Step, *key: Any) -> Partitioning:
    """Load the problem; ``key`` begins the arguments of ``_cached_classes``."""
    classes = _cached_classes(*key, step.micro_batch)
    return replace(classes, scope=scope, reward=reward, step=step.on(classes.graph))


@lru_cache(maxsize=16)
def _cached_classes(
    instance: str,
    how: tuple[str | None, Key, int | None],
    cluster: Cluster,
    rules: str,
    uneven: str,
    micro_batch: int | None,
) -> Partitioning:
    """Load the problem with the default scope and reward, which do not change the classes."""
    arguments, reading, _ = how  # the time of the file's last change is part of the key
    graph = load_graph(instance, arguments=arguments, **dict(reading))
    build = partial(Partitioning.build, instance=instance, micro_batch=micro_batch)
    return build(graph, cluster, rules, uneven)
