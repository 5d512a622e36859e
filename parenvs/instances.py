"""Instances by name or path: the shipped graphs and the user's own files."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from parenvs.cluster import Cluster, Device
from parenvs.errors import UnknownInstanceError, did_you_mean
from parenvs.graph.graph import Graph
from parenvs.partitioning.problem import Partitioning
from parenvs.pipeline.profile import MICRO_BATCH, StageProfile
from parenvs.plan import PartitionPlan

GRAPH_SUFFIXES = (".npz", ".pb", ".txt", ".hlo")
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
    instance: str | os.PathLike[str], cluster: Cluster | Device, micro_batch: int = MICRO_BATCH
) -> StageProfile:
    """A chain by shipped name or by path (a graph's, or a ``.csv`` profile's).

    Times of a graph's chain are those of the cluster's device; a measured profile keeps its own.
    """
    text = os.fspath(instance)
    if text.endswith(".csv"):
        if not _exists(text):
            raise _unknown(text)
        return StageProfile.from_csv(text, micro_batch)
    device = cluster.device if isinstance(cluster, Cluster) else cluster
    profile = StageProfile.from_graph(load_graph(text, "forward"), device, micro_batch)
    return profile


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
