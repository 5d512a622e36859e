"""Makes pipelines of what a name, a path or an object gives, and judges plans on them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from parenvs.cluster import Cluster, Device
from parenvs.core.registry import TASKS, problem
from parenvs.core.sets import Validation
from parenvs.core.task import given, refuse_settings
from parenvs.errors import ParenvsError, shown
from parenvs.graph.graph import Graph
from parenvs.instances import (
    READING,
    check_no_reading,
    exists,
    forward_of,
    load_graph,
    text_of,
    unknown,
)
from parenvs.shipped import PAPER, manifest
from parenvs.tasks.pipeline.plan import MICRO_BATCH, MICRO_BATCHES, TIED, PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, Report, check_stages, stages_on
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.task import PipelineOptions

PIPELINE_OPTIONS = (
    "stages", "micro_batch", "micro_batches", "copies", "recompute", "sync", "tied",
)  # fmt: skip
"""Options of ``problem`` for pipelines."""
TESTED = ("s16", "s32", "s64")
"""Numbers of stages of the sets that ``PipelinePlan-v1`` is tested on."""


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
    if "devices_used" in settings:
        parsed = parsed.part(settings.pop("devices_used"))
    reading = {key: settings.pop(key) for key in (*READING, "arguments") if key in settings}
    micro_batch, stages = settings.pop("micro_batch", MICRO_BATCH), settings.pop("stages", None)
    profile = load_profile(source, parsed, micro_batch, **reading)
    instance = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
    of_the_paper = instance in PAPER if instance else _is_of_the_paper(profile.fingerprint)
    settings.setdefault("tied", TIED[not of_the_paper])
    settings.setdefault("fractions", of_the_paper or _is_profile(source))
    pipeline = Pipeline(profile, parsed, stages_on(parsed, stages), instance=instance, **settings)
    check_stages(pipeline)
    return pipeline


def judge(plan: PipelinePlan, target: Any = None, cluster: Any = None) -> Report:
    """Judge a plan; see ``parenvs.judge``. The target is a name, a graph, a chain or a problem."""
    target = plan.instance if target is None else target
    known = TASKS["pipeline"].found(target)
    target = target if known is None else known
    if isinstance(target, Pipeline):
        return target.report(plan)
    judged_cluster = plan.cluster if cluster is None else Cluster.parse(cluster)
    if isinstance(target, (str, os.PathLike)):
        target = load_profile(target, judged_cluster, plan.micro_batch)
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
    pipeline = Pipeline(
        target,
        judged_cluster,
        micro_batches=plan.micro_batches,
        copies=plan.copies,
        recompute=plan.recompute,
        sync=plan.sync,
        tied=plan.tied,
        fractions=plan.fractions,
        instance=plan.instance,
    )
    return pipeline.report(plan, any_stages=True)


def reading(instance: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of ``load_graph`` for an instance; None if it is a profile."""
    if instance.endswith(".csv"):
        return None
    given_options = {key: options[key] for key in (*READING, "arguments") if key in options}
    return {"kind": "forward", **given_options}


def assumed(graph: Graph, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a pipeline of a graph takes as given, a sentence each."""
    if graph.batch_size < MICRO_BATCH and "micro_batch" not in options:
        yield (
            f"the graph's batch is {graph.batch_size}; a step is taken as {MICRO_BATCHES} "
            f"micro-batches of {MICRO_BATCH}, scaled from it (--micro-batches, --micro-batch)"
        )


def training(instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]] | None:
    """Return the environment of a training, its arguments, and options that may be added.

    None: agents train on the problem of the instance, in the environment of its request.
    """
    task = TASKS["pipeline"]
    if instance is None:
        return "PipelinePlan-v1", {}, ()
    is_drawn = instance in task.sets or task.names(instance)
    return ("PipelinePlan-v1", {"instance": instance}, ()) if is_drawn else None


def validation(env_kwargs: Mapping[str, Any]) -> Validation:
    """Return the set on which agents are judged, of problems of the size that they train on."""
    tier = env_kwargs.get("tier", "s16")
    if env_kwargs.get("instance"):
        tier = str(env_kwargs["instance"]).partition("-")[2].partition("-")[0]
    name = f"plan-{tier}-validation"
    is_large = name in TASKS["pipeline"].sets
    return Validation(name if is_large else "plan-validation", env_kwargs.get("family"))


def rules() -> list[tuple[str, list[tuple[str, str | None]], dict[str, dict[str, Any]]]]:
    """Return environments of rows, the sets that they are tested on, and planners beside them."""
    sets: list[tuple[str, str | None]] = [(f"plan-{tier}-test", None) for tier in TESTED]
    planners: dict[str, dict[str, Any]] = {
        "even": {}, "exact": {"time_limit": 0.5}, "corridor": {"time_limit": 0.5},
        "corridor/5 s": {"time_limit": 5.0},
    }  # fmt: skip
    return [("PipelinePlan-v1", sets, planners)]


def open_shape(
    instance: str, cluster: Any, options: Mapping[str, Any], search: Mapping[str, Any]
) -> tuple[Pipeline, dict[str, Any]]:
    """Make the pipeline of a command that chooses its stages and devices, unless they are given.

    Returns:
        The pipeline, and the options of its planners: ``search`` and the parts of the cluster.
    """
    if "stages" in options:
        return problem(instance, cluster, "pipeline", **options), dict(search)
    pipeline = problem(instance, cluster, "pipeline", stages=1, **options)  # any chain can have it
    is_given = "devices_used" in options
    clusters = [pipeline.cluster] if is_given else pipeline.cluster.parts()
    return pipeline, {**search, "clusters": tuple(clusters)}


def load_profile(
    instance: str | os.PathLike[str] | Graph | StageProfile,
    cluster: str | dict[str, Any] | Cluster | Device,
    micro_batch: int = MICRO_BATCH,
    **reading: Any,
) -> StageProfile:
    """Load a chain by shipped name or by path (of a graph, or of a ``.csv`` profile).

    Args:
        instance: the name, path or function, or a ``Graph``; a ``StageProfile`` is returned as it
            is.
        cluster: the cluster, or the device, for which a graph's chain is timed; a profile keeps its
            own seconds.
        micro_batch: samples per micro-batch; a ``StageProfile`` has its own.
        **reading: see ``load_graph``; a profile has no parameters to read.

    Raises:
        TypeError: ``instance`` is nothing of these.
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: options of reading, or other samples, are given for a profile.
    """
    if isinstance(instance, StageProfile):
        check_no_reading(reading, f"{instance.name}: a profile")
        if micro_batch not in (MICRO_BATCH, instance.micro_batch):
            raise ParenvsError(
                f"micro_batch: the profile {instance.name} is of micro-batches of "
                f"{instance.micro_batch}, not {micro_batch}; leave it out"
            )
        return instance
    if not isinstance(instance, Graph):
        instance = text_of(instance, "a Graph", "a StageProfile")
        if instance.endswith(".csv"):
            if not exists(instance):
                raise unknown(instance)
            check_no_reading(reading, f"{instance}: a profile")
            return StageProfile.from_csv(instance, micro_batch)
    device = cluster if isinstance(cluster, Device) else Cluster.parse(cluster).device
    return StageProfile.from_graph(load_graph(instance, "forward", **reading), device, micro_batch)


def _is_profile(source: Any) -> bool:
    """Return whether a source is a chain with seconds of its own, no graph."""
    is_path = isinstance(source, (str, os.PathLike))
    return isinstance(source, StageProfile) or (is_path and os.fspath(source).endswith(".csv"))


def _is_of_the_paper(fingerprint: str) -> bool:
    """Return whether a graph is the forward pass of an instance of the paper."""
    shipped = manifest()["instances"]
    graphs = (shipped[name]["graphs"]["forward"] for name in PAPER if name in shipped)
    return any(graph["fingerprint"] == fingerprint for graph in graphs)
