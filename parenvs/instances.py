"""Loads instances by shipped name or by path: graphs, chains, and the problems made of them."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from parenvs.cluster import Cluster, Device, choose_cluster
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, shown
from parenvs.graph.formats import stablehlo
from parenvs.graph.graph import Graph
from parenvs.partitioning.problem import Partitioning
from parenvs.pipeline.problem import Pipeline, check_stages, stages_on
from parenvs.pipeline.profile import StageProfile
from parenvs.plan import MICRO_BATCH, PLANS, PartitionPlan, PipelinePlan

TASKS = tuple(PLANS)
"""Tasks that plans solve: ``"pipeline-cut"``, ``"operator-partition"``, ``"data-parallel"``."""
KINDS = ("train", "forward")
"""Variants of a shipped graph: a training step with Adam, and the forward pass alone.

Pipelines are made from the forward pass.
"""
GRAPH_SUFFIXES = (".npz", ".pb", ".txt", ".hlo", *stablehlo.SUFFIXES)
"""Endings of files that hold a graph."""
PIPELINE_OPTIONS = ("stages", "micro_batch", "micro_batches", "copies", "recompute", "sync")
"""Options of ``problem`` for pipelines."""
PARTITION_OPTIONS = ("devices", "rules", "uneven", "reward")
"""Options of ``problem`` for partitions."""


def problem(
    instance: str | os.PathLike[str],
    cluster: str | dict[str, Any] | Cluster | None = None,
    task: str = PipelinePlan.task,
    **options: Any,
) -> Any:
    """Load the problem of planning a model on a cluster.

    Args:
        instance: shipped name, or path of a graph or of a ``.csv`` profile.
        cluster: preset, short form, ``.json`` path or object, see ``Cluster.parse`` (default:
            ``"C"`` for pipelines, one server of 8 V100 for partitions).
        task: ``"pipeline-cut"``, ``"operator-partition"`` or ``"data-parallel"``.
        **options: for pipelines ``stages``, ``micro_batch``, ``micro_batches``, ``copies``,
            ``recompute`` and ``sync``; for partitions ``devices`` (instead of a cluster),
            ``rules``, ``uneven`` and ``reward``.

    Returns:
        A ``Pipeline`` or a ``Partitioning``.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: the task or an option is unknown, or no plan can solve the problem.

    >>> import parenvs
    >>> parenvs.problem("t5-3b", cluster="C").stages
    4
    """
    if task not in TASKS:
        raise ParenvsError(
            f"unknown task {shown(task)}{did_you_mean(str(task), TASKS)}; known: {', '.join(TASKS)}"
        )
    known = PIPELINE_OPTIONS if task == PipelinePlan.task else PARTITION_OPTIONS
    for name in options:
        if name not in known:
            raise ParenvsError(
                f"{name!r} is not an option of task {task}{did_you_mean(name, known)}; "
                f"known: {', '.join(known)}"
            )
    if task == PipelinePlan.task:
        return _load_pipeline(instance, "C" if cluster is None else cluster, **options)
    chosen_cluster = choose_cluster(cluster, options.pop("devices", None))
    return load_partitioning(instance, chosen_cluster, task=task, **options)


def load_graph(instance: str | os.PathLike[str], kind: str = "train") -> Graph:
    """Load a graph by shipped name or by path (``.npz``, ``.pb``, ``.txt``, ``.mlir``).

    Args:
        instance: the name or path.
        kind: ``"train"`` or ``"forward"``, the variant of a shipped instance; ignored for a path.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
    """
    text = os.fspath(instance)
    if text in manifest()["instances"]:
        return _shipped(text, kind)
    if text.endswith(GRAPH_SUFFIXES) and _exists(text):
        return Graph.from_hlo(text)
    if text.endswith(".csv") and _exists(text):
        raise UnknownInstanceError(f"instance {text!r}: a profile is no graph; give the module")
    raise _unknown(text)


def load_profile(
    instance: str | os.PathLike[str],
    cluster: str | dict[str, Any] | Cluster | Device,
    micro_batch: int = MICRO_BATCH,
) -> StageProfile:
    """Load a chain by shipped name or by path (of a graph, or of a ``.csv`` profile).

    Args:
        instance: the name or path.
        cluster: the cluster, or the device, for which a graph's chain is timed; a ``.csv`` profile
            keeps its measured seconds.
        micro_batch: samples per micro-batch.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
    """
    text = os.fspath(instance)
    if text.endswith(".csv"):
        if not _exists(text):
            raise _unknown(text)
        return StageProfile.from_csv(text, micro_batch)
    device = cluster if isinstance(cluster, Device) else Cluster.parse(cluster).device
    return StageProfile.from_graph(load_graph(text, "forward"), device, micro_batch)


def load_partitioning(
    instance: str | os.PathLike[str],
    cluster: Cluster | str | os.PathLike[str] | dict[str, Any],
    rules: str = "shardy",
    uneven: str = "pad",
    task: str = PartitionPlan.task,
    reward: str = "paper",
) -> Partitioning:
    """Load the partitioning of a shipped instance or a graph file.

    The same arguments give the same object; problems that differ only in task or reward share the
    graph and its classes.

    Args:
        instance: the name or path; plans carry it.
        cluster: the devices, in any form that ``Cluster.parse`` takes.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` or ``"forbid"``.
        task: ``"operator-partition"`` or ``"data-parallel"``.
        reward: ``"paper"`` or ``"step_time"``.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: see ``Partitioning.build``.
    """
    text = os.fspath(instance)
    modified_ns = None
    if text not in manifest()["instances"]:
        with contextlib.suppress(OSError, ValueError):  # without a file, loading the graph fails
            modified_ns = Path(text).stat().st_mtime_ns
    return _cached_partitioning(
        text, modified_ns, Cluster.parse(cluster), rules, uneven, task, reward
    )


def pipeline_of(
    graph: Graph,
    cluster: str | dict[str, Any] | Cluster,
    stages: int | None = None,
    micro_batch: int = MICRO_BATCH,
    **options: Any,
) -> Pipeline:
    """Make the problem of cutting a graph's chain into stages; see ``problem`` for the options.

    The training step of a shipped instance is replaced by its forward pass, which chains need.
    """
    parsed_cluster = Cluster.parse(cluster)
    profile = StageProfile.from_graph(forward_of(graph), parsed_cluster.device, micro_batch)
    return _checked_pipeline(profile, parsed_cluster, stages, **options)


def forward_of(graph: Graph) -> Graph:
    """Return the forward pass of a shipped training step, and any other graph as it is.

    Training steps are recognised by their fingerprint.
    """
    for name, entry in manifest()["instances"].items():
        if entry["graphs"]["train"]["fingerprint"] == graph.fingerprint:
            return _shipped(name, "forward")
    return graph


def data_folder() -> Path:
    """Return the folder of the shipped graphs."""
    return Path(str(resources.files("parenvs.datasets"))) / "data"


@lru_cache(maxsize=1)
def manifest() -> dict[str, Any]:
    """Read the list of shipped instances: sizes, checksums and the command that made them."""
    return json.loads((data_folder() / "manifest.json").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Return the names of the shipped instances."""
    return list(manifest()["instances"])


def _load_pipeline(
    instance: str | os.PathLike[str],
    cluster: str | dict[str, Any] | Cluster,
    stages: int | None = None,
    micro_batch: int = MICRO_BATCH,
    **options: Any,
) -> Pipeline:
    """Load the pipeline of an instance; the options are those of ``problem``."""
    parsed_cluster = Cluster.parse(cluster)
    profile = load_profile(instance, parsed_cluster, micro_batch)
    return _checked_pipeline(
        profile, parsed_cluster, stages, instance=os.fspath(instance), **options
    )


def _checked_pipeline(
    profile: StageProfile, cluster: Cluster, stages: int | None, **options: Any
) -> Pipeline:
    """Make a pipeline with the given or the default number of stages, if plans can have it."""
    pipeline = Pipeline(profile, cluster, stages_on(cluster, stages), **options)
    check_stages(pipeline)
    return pipeline


@lru_cache(maxsize=64)
def _cached_partitioning(
    instance: str,
    modified_ns: int | None,
    cluster: Cluster,
    rules: str,
    uneven: str,
    task: str,
    reward: str,
) -> Partitioning:
    """Load the problem; ``modified_ns``, the time of a file's last change, is part of the key."""
    partitioning = _cached_classes(instance, modified_ns, cluster, rules, uneven)
    return replace(partitioning, task=task, reward=reward)


@lru_cache(maxsize=16)
def _cached_classes(
    instance: str, modified_ns: int | None, cluster: Cluster, rules: str, uneven: str
) -> Partitioning:
    """Load the problem with the default task and reward, which do not change the classes."""
    return Partitioning.build(load_graph(instance), cluster, rules, uneven, instance=instance)


@lru_cache(maxsize=32)
def _shipped(name: str, kind: str) -> Graph:
    """Load a graph of a shipped instance."""
    return Graph.load(data_folder() / manifest()["instances"][name]["graphs"][kind]["file"])


def _exists(text: str) -> bool:
    """Return whether the text is the path of a file or folder."""
    try:
        return Path(text).exists()
    except OSError:  # the name is too long for a file, or the folder is unreadable
        return False


def _unknown(text: str) -> UnknownInstanceError:
    """Return the error for an instance that cannot be loaded, with the likeliest reason."""
    if _exists(text):
        return UnknownInstanceError(
            f"instance {text!r}: a file must end in .csv, {', '.join(GRAPH_SUFFIXES)}"
        )
    if os.sep in text or text.endswith((*GRAPH_SUFFIXES, ".csv")):
        return UnknownInstanceError(f"instance {text!r}: no such file")
    return UnknownInstanceError(
        f"unknown instance {text!r}{did_you_mean(text, names())}; shipped: {', '.join(names())}; "
        "or give the path of a .csv, .npz, .pb, .txt or .mlir file"
    )
