"""Makes problems of what a name, a path or an object gives: graphs, shapes and chains."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from parenvs.cluster import PRESETS, Cluster, Device
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, shown
from parenvs.graph import python_source, roles
from parenvs.graph.formats import stablehlo
from parenvs.graph.formats.sources import from_hlo
from parenvs.graph.graph import Graph
from parenvs.shipped import (
    PAPER,
    data_folder,
    load_hetero,
    load_shape,
    manifest,
    names,
    shapes,
    use_of,
)
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.partition.plan import SCOPES
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.step import Step
from parenvs.tasks.pipeline.plan import MICRO_BATCH, TIED
from parenvs.tasks.pipeline.problem import Pipeline, check_stages, stages_on
from parenvs.tasks.pipeline.profile import StageProfile

KINDS = ("train", "forward")
"""Variants of a shipped graph: a training step, and the forward pass alone.

Pipelines are made from the forward pass.
"""
GRAPH_SUFFIXES = (".npz", ".pb", ".txt", ".hlo", *stablehlo.SUFFIXES)
"""Endings of files that hold a graph."""
PIPELINE_OPTIONS = (
    "stages", "micro_batch", "micro_batches", "copies", "recompute", "sync", "tied",
)  # fmt: skip
"""Options of ``problem`` for pipelines."""
STEP_OPTIONS = ("micro_batch", "micro_batches", "recompute", "memory_limit")
"""Options of partitions that say how a step runs, see ``parenvs.tasks.partition.step.Step.of``."""
_NAMED = 6
"""Shipped instances that the message for an unknown one names."""
READING = ("variables", "batch", "frozen")
"""Options of loading a graph: how its entry parameters are read, see ``load_graph``."""
_PYTORCH = (".pt", ".pth", ".pt2", ".onnx", ".safetensors")
"""Endings of what PyTorch and its tools save."""
_ADVICE = (
    "weights and saved programs are not read; write a function that returns the module and one "
    "that returns example inputs, and give them as FILE.py:build --args example_args"
)
_Key = tuple[tuple[str, Any], ...]
"""Options of reading, as a key of a cache."""
_Name = str | os.PathLike[str]
"""A shipped name or a path."""
_Text = (str, os.PathLike)


def load_model(
    instance: _Name | Graph | TransformerShape | HybridModel, **reading: Any
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
        _check_no_reading(reading, f"{instance.name}: a shape")
        return instance if isinstance(instance, HybridModel) else HybridModel.of_shape(instance)
    text = text_of(instance, "a Graph", "a TransformerShape", "a HybridModel")
    shape = load_shape(text)
    if shape is not None:
        _check_no_reading(reading, f"{text}: a shape")
        return HybridModel.of_shape(shape)
    if not (text in names() or _exists(text) or python_source.is_function(text)):
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
    return _cached_model(text, (arguments, _reading_key(reading), _stamp(text)))


def load_graph(
    instance: _Name | Graph,
    kind: str = "train",
    arguments: str | None = None,
    **reading: Any,
) -> Graph:
    """Load a graph by name, by path (``.npz``, ``.pb``, ``.txt``, ``.mlir``), or of a function.

    Args:
        instance: the name or path; a function (extra ``jax``) is ``FILE.py:NAME`` or
            ``package.module:NAME``. A ``Graph`` is taken as one that was saved.
        kind: ``"train"`` or ``"forward"``, the variant of a shipped instance; ignored for others.
        arguments: what gives a function's arguments: ``NAME`` in its file or ``FILE.py:NAME``.
        **reading: what the entry parameters are, where that is not to be detected (None):
            ``variables``, ``batch`` and ``frozen``, each the index of an argument, or one or
            several globs over the parameters' paths. A shipped graph and a ``.npz`` keep what they
            were saved with unless one is given.

    Raises:
        TypeError: ``instance`` is nothing of these.
        UnknownInstanceError: ``instance`` is neither a shipped name, a file nor a function.
        ParenvsError: see ``parenvs.graph.python_source.lower`` and the reader of the format.
    """
    for name in reading:
        if name not in READING:
            raise ParenvsError(
                f"{name!r} is not an option of loading a graph{did_you_mean(name, READING)}; "
                f"known: {', '.join(READING)}"
            )
    text = instance.name if isinstance(instance, Graph) else text_of(instance, "a Graph")
    takes = not isinstance(instance, Graph) and python_source.is_function(text)
    if arguments is not None and not takes:
        raise ParenvsError(f"instance {text!r} is no function, so it takes no arguments")
    if isinstance(instance, Graph):
        graph = forward_of(instance) if kind == "forward" else instance
        return _read_anew(graph, dict(_reading_key(reading)))
    variant = kind if text in manifest()["instances"] else ""
    return _cached_graph(text, variant, arguments, _reading_key(reading), _stamp(text))


def reads_anew(instance: str | os.PathLike[str], **reading: Any) -> bool:
    """Return whether a graph differs from what its name or path alone would give.

    That is so for a function, and where options of reading are given.
    """
    return python_source.is_function(os.fspath(instance)) or bool(_reading_key(reading))


def load_profile(
    instance: _Name | Graph | StageProfile,
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
        _check_no_reading(reading, f"{instance.name}: a profile")
        if micro_batch not in (MICRO_BATCH, instance.micro_batch):
            raise ParenvsError(
                f"micro_batch: the profile {instance.name} is of micro-batches of "
                f"{instance.micro_batch}, not {micro_batch}; leave it out"
            )
        return instance
    if not isinstance(instance, Graph):
        instance = text_of(instance, "a Graph", "a StageProfile")
        if instance.endswith(".csv"):
            if not _exists(instance):
                raise _unknown(instance)
            _check_no_reading(reading, f"{instance}: a profile")
            return StageProfile.from_csv(instance, micro_batch)
    device = cluster if isinstance(cluster, Device) else Cluster.parse(cluster).device
    return StageProfile.from_graph(load_graph(instance, "forward", **reading), device, micro_batch)


def text_of(instance: Any, *others: str) -> str:
    """Return the name or path that an instance is given by; ``others`` are what else it may be.

    Raises:
        TypeError: it is neither text nor a path.
    """
    if not isinstance(instance, _Text):
        *kinds, last = ("a name", "a path", *others)
        raise TypeError(f"instance: expected {', '.join(kinds)} or {last}, not {shown(instance)}")
    return os.fspath(instance)


def _check_no_reading(reading: dict[str, Any], what: str) -> None:
    """Raise an error if options of reading are given for what has no parameters to read."""
    for name, value in reading.items():
        if value is not None:
            raise ParenvsError(f"{what} is no graph; leave out {name!r}")


def load_partitioning(
    instance: _Name | Graph,
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
    how = (arguments, _reading_key(options), _stamp(text))
    named = next((preset for preset in PRESETS.values() if preset == own), own)  # as plans say it
    return _cached_partitioning(scope, reward, step, text, how, named, rules, uneven)


def forward_of(graph: Graph) -> Graph:
    """Return the forward pass of a shipped training step, and any other graph as it is.

    Training steps are recognised by their fingerprint.
    """
    for name, entry in manifest()["instances"].items():
        if entry["graphs"]["train"]["fingerprint"] == graph.fingerprint:
            return _shipped(name, "forward")
    return graph


def _is_of_the_paper(fingerprint: str) -> bool:
    """Return whether a graph is the forward pass of an instance of the paper."""
    shipped = manifest()["instances"]
    graphs = (shipped[name]["graphs"]["forward"] for name in PAPER if name in shipped)
    return any(graph["fingerprint"] == fingerprint for graph in graphs)


def _load_hybrid(
    instance: Any,
    cluster: str | dict[str, Any] | Cluster | None,
    batch: int | None = None,
    stack: str | dict[str, Any] | Stack | None = None,
    precision: str | None = None,
    **reading: Any,
) -> Hybrid:
    """Load the hybrid problem of an instance; the options are those of ``problem``."""
    text = os.fspath(instance) if isinstance(instance, _Text) else ""
    hetero = load_hetero(text)
    if hetero is not None:  # it has all of its settings, unless they are given
        cluster = hetero.cluster if cluster is None else cluster
        batch = hetero.batch if batch is None else batch
        stack = hetero.stack if stack is None and hetero.cluster == cluster else stack
    parsed_cluster = Cluster.parse("C" if cluster is None else cluster)
    model = load_model(instance, **reading)
    if batch is None:
        raise ParenvsError(
            f"task {HybridPlan.task} needs batch, the number of samples of a step; give batch=1024"
        )
    return Hybrid(model, parsed_cluster, batch, stack, precision or "", text)  # type: ignore[arg-type]


def _load_pipeline(
    instance: Any,
    cluster: Cluster,
    stages: int | None = None,
    micro_batch: int = MICRO_BATCH,
    **options: Any,
) -> Pipeline:
    """Load the pipeline of an instance, if plans can have it; options are those of ``problem``."""
    reading = {key: options.pop(key) for key in (*READING, "arguments") if key in options}
    profile = load_profile(instance, cluster, micro_batch, **reading)
    text = os.fspath(instance) if isinstance(instance, _Text) else ""
    of_the_paper = text in PAPER if text else _is_of_the_paper(profile.fingerprint)
    options.setdefault("tied", TIED[not of_the_paper])
    pipeline = Pipeline(profile, cluster, stages_on(cluster, stages), instance=text, **options)
    check_stages(pipeline)
    return pipeline


@lru_cache(maxsize=64)
def _cached_partitioning(scope: str, reward: str, step: Step, *key: Any) -> Partitioning:
    """Load the problem; ``key`` begins the arguments of ``_cached_classes``."""
    found = _cached_classes(*key, step.micro_batch)
    return replace(found, scope=scope, reward=reward, step=step.on(found.graph))


@lru_cache(maxsize=16)
def _cached_classes(
    instance: str,
    how: tuple[str | None, _Key, int | None],
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


@lru_cache(maxsize=4)
def _cached_graph(
    text: str, kind: str, arguments: str | None, reading: _Key, changed_ns: int | None
) -> Graph:
    """Load a graph; ``changed_ns``, the time of the file's last change, is part of the key."""
    options = dict(reading)
    if text in manifest()["instances"]:
        return _read_anew(_shipped(text, kind), options)
    if python_source.is_function(text) and not _exists(text):
        return python_source.graph_of(text, arguments, **options)
    if text.endswith(".npz") and _exists(text):
        return _read_anew(from_hlo(text), options)
    if text.endswith(GRAPH_SUFFIXES) and _exists(text):
        return from_hlo(text, **options)
    if text.endswith(".csv") and _exists(text):
        raise UnknownInstanceError(f"instance {text!r}: a profile is no graph; give the module")
    raise _unknown(text)


def _read_anew(graph: Graph, options: dict[str, Any]) -> Graph:
    """Return a saved graph with its parameters read anew, or as it is without options."""
    return roles.with_roles(graph, **options) if options else graph


def _reading_key(reading: dict[str, Any]) -> _Key:
    """Return the options of reading that are given, in a form that a cache can hash."""
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(reading.items())
        if value is not None
    )


def _stamp(text: str) -> int | None:
    """Return the time of a file's last change; None for a shipped name, or without a file."""
    if text in manifest()["instances"]:
        return None
    if python_source.is_function(text):
        return python_source.stamp(text)
    with contextlib.suppress(OSError, ValueError):  # without a file, loading the graph fails
        return Path(text).stat().st_mtime_ns
    return None


@lru_cache(maxsize=4)
def _cached_model(instance: str, how: tuple[str | None, _Key, Any]) -> HybridModel:
    arguments, reading, _ = how
    graph = load_graph(instance, arguments=arguments, **dict(reading))
    return HybridModel.of_graph(graph, instance)


@lru_cache(maxsize=32)
def _shipped(name: str, kind: str) -> Graph:
    """Load a graph of a shipped instance."""
    return Graph.load(data_folder() / manifest()["instances"][name]["graphs"][kind]["file"])


def _exists(text: str) -> bool:
    """Return whether the text is the path of a file or folder; False for too long a name."""
    return os.path.exists(text)  # noqa: PTH110  # Path.exists raises errors for such names


def _unknown(text: str) -> UnknownInstanceError:
    """Return the error for an instance that cannot be loaded, with the likeliest reason."""
    if _exists(text):
        if text.endswith(_PYTORCH):
            return UnknownInstanceError(
                f"instance {text!r}: {_ADVICE}; in Python: parenvs.from_torch(module, inputs)"
            )
        return UnknownInstanceError(
            f"instance {text!r}: a file must end in .csv, {', '.join(GRAPH_SUFFIXES)}"
        )
    if words := use_of(text):
        return UnknownInstanceError(words)
    if os.sep in text or text.endswith((*GRAPH_SUFFIXES, ".csv")):
        return UnknownInstanceError(f"instance {text!r}: no such file")
    shipped = names()
    more = f" and {len(shipped) - _NAMED} more (parenvs list)" if len(shipped) > _NAMED else ""
    return UnknownInstanceError(
        f"unknown instance {text!r}{did_you_mean(text, shipped)}; "
        f"shipped: {', '.join(shipped[:_NAMED])}{more}; "
        "or give the path of a .csv, .npz, .pb, .txt or .mlir file, or a JAX function or "
        "PyTorch module as FILE.py:NAME"
    )
