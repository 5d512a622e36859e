"""Instances by name or path: graphs, chains and problems, shipped or the user's own files."""

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
from parenvs.graph.graph import Graph
from parenvs.partitioning.problem import Partitioning
from parenvs.pipeline.problem import Pipeline, check_stages, stages_on
from parenvs.pipeline.profile import StageProfile
from parenvs.plan import MICRO_BATCH, BatchPlan, PartitionPlan, PipelinePlan

GRAPH_SUFFIXES = (".npz", ".pb", ".txt", ".hlo")
PIPELINE_OPTIONS = ("stages", "micro_batch", "micro_batches", "copies", "recompute", "sync")
"""Options of ``problem`` for pipelines."""
PARTITION_OPTIONS = ("devices", "rules", "uneven", "reward")
"""Options of ``problem`` for partitions."""
KINDS = ("train", "forward")
"""A training step with Adam, and the forward pass alone (from which pipelines are made)."""


def data_folder() -> Path:
    """Where the shipped graphs lie."""
    return Path(str(resources.files("parenvs.datasets"))) / "data"


@lru_cache(maxsize=1)
def manifest() -> dict[str, Any]:
    """What ships: instances with sizes, checksums and the command that made them."""
    return json.loads((data_folder() / "manifest.json").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Names of the shipped instances."""
    return list(manifest()["instances"])


TASKS = tuple(kind.task for kind in (PipelinePlan, PartitionPlan, BatchPlan))
"""Tasks of which plans are made: ``"pipeline-cut"``, ``"operator-partition"``, ..."""


def problem(
    instance: str | os.PathLike[str],
    cluster: str | dict[str, Any] | Cluster | None = None,
    task: str = PipelinePlan.task,
    **options: Any,
) -> Any:
    """The problem of planning a model on a cluster.

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
        UnknownInstanceError: neither a shipped name nor a file.
        ParenvsError: an unknown task or option, or a problem that no plan can solve.

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
        return _pipeline(instance, "C" if cluster is None else cluster, **options)
    where = choose_cluster(cluster, options.pop("devices", None))
    return load_partitioning(instance, where, task=task, **options)


def _pipeline(
    instance: str | os.PathLike[str],
    cluster: str | dict[str, Any] | Cluster,
    stages: int | None = None,
    micro_batch: int = MICRO_BATCH,
    **options: Any,
) -> Pipeline:
    devices = Cluster.parse(cluster)
    profile = load_profile(instance, devices, micro_batch)
    made = Pipeline(
        profile, devices, stages_on(devices, stages), instance=os.fspath(instance), **options
    )
    check_stages(made)
    return made


def pipeline_of(
    graph: Graph,
    cluster: str | dict[str, Any] | Cluster,
    stages: int | None = None,
    micro_batch: int = MICRO_BATCH,
    **options: Any,
) -> Pipeline:
    """The problem of cutting a graph's chain into stages; see ``problem`` for the options.

    The training step of a shipped instance stands for its forward pass, from which chains are made.
    """
    devices = Cluster.parse(cluster)
    profile = StageProfile.from_graph(forward_of(graph), devices.device, micro_batch)
    made = Pipeline(profile, devices, stages_on(devices, stages), **options)
    check_stages(made)
    return made


def forward_of(graph: Graph) -> Graph:
    """The forward pass of a shipped training step, by its fingerprint; any other graph itself."""
    for name, entry in manifest()["instances"].items():
        if entry["graphs"]["train"]["fingerprint"] == graph.fingerprint:
            return _shipped(name, "forward")
    return graph


def load_graph(instance: str | os.PathLike[str], kind: str = "train") -> Graph:
    """A graph by shipped name or by path (``.npz``, ``.pb``, ``.txt``).

    Args:
        instance: the name or path; a path is taken as it is, whatever its kind.
        kind: ``"train"`` or ``"forward"``, the variant of a shipped instance.

    Raises:
        UnknownInstanceError: neither a shipped name nor a file.
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
    """A chain by shipped name or by path (a graph's, or a ``.csv`` profile's).

    Times of a graph's chain are those of the device, the cluster's or the one given; a measured
    profile keeps its own.
    """
    text = os.fspath(instance)
    if text.endswith(".csv"):
        if not _exists(text):
            raise _unknown(text)
        return StageProfile.from_csv(text, micro_batch)
    device = cluster if isinstance(cluster, Device) else Cluster.parse(cluster).device
    return StageProfile.from_graph(load_graph(text, "forward"), device, micro_batch)


@lru_cache(maxsize=32)
def _shipped(name: str, kind: str) -> Graph:
    return Graph.load(data_folder() / manifest()["instances"][name]["graphs"][kind]["file"])


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # a name too long for a file, a folder that may not be read
        return False


def _unknown(text: str) -> UnknownInstanceError:
    if _exists(text):
        return UnknownInstanceError(
            f"instance {text!r}: a file must end in .csv, {', '.join(GRAPH_SUFFIXES)}"
        )
    if os.sep in text or text.endswith((*GRAPH_SUFFIXES, ".csv")):
        return UnknownInstanceError(f"instance {text!r}: no such file")
    return UnknownInstanceError(
        f"unknown instance {text!r}{did_you_mean(text, names())}; shipped: {', '.join(names())}; "
        "or give the path of a .csv, .npz, .pb or .txt file"
    )


def load_partitioning(
    instance: str | os.PathLike[str],
    cluster: Cluster | str | os.PathLike[str] | dict[str, Any],
    rules: str = "shardy",
    uneven: str = "pad",
    task: str = PartitionPlan.task,
    reward: str = "paper",
) -> Partitioning:
    """The problem of a shipped instance or a graph file; the same arguments give the same object.

    Problems that differ in task or reward only share the graph and its classes.

    Args:
        instance: the name or path, which plans carry.
        cluster: the devices, in any form that ``Cluster.parse`` takes.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` or ``"forbid"``.
        task: ``"operator-partition"`` or ``"data-parallel"``.
        reward: ``"paper"`` or ``"step_time"``.

    Raises:
        UnknownInstanceError: neither a shipped name nor a file.
        ParenvsError: see ``Partitioning.build``.
    """
    text = os.fspath(instance)
    stamp = None
    if text not in manifest()["instances"]:
        with contextlib.suppress(OSError, ValueError):  # no file; loading says so
            stamp = Path(text).stat().st_mtime_ns
    return _load(text, stamp, Cluster.parse(cluster), rules, uneven, task, reward)


@lru_cache(maxsize=64)
def _load(
    instance: str,
    stamp: int | None,
    cluster: Cluster,
    rules: str,
    uneven: str,
    task: str,
    reward: str,
) -> Partitioning:
    problem = _load_classes(instance, stamp, cluster, rules, uneven)
    return replace(problem, task=task, reward=reward)


@lru_cache(maxsize=16)
def _load_classes(
    instance: str, stamp: int | None, cluster: Cluster, rules: str, uneven: str
) -> Partitioning:
    return Partitioning.build(load_graph(instance), cluster, rules, uneven, instance=instance)
