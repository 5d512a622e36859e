"""Loads instances by shipped name or by path: graphs, shapes, chains, and their problems."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from parenvs.cluster import PRESETS, Cluster, Device, choose_cluster
from parenvs.core.plan_files import PLANS
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, shown
from parenvs.graph import python_source, roles
from parenvs.graph.formats import stablehlo
from parenvs.graph.graph import Graph
from parenvs.shipped import (
    PAPER,
    data_folder,
    load_hetero,
    load_ordering,
    load_shape,
    manifest,
    names,
    shapes,
    use_of,
)
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid, default_stack
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.partition.plan import PARTITION_PLANS, PartitionPlan
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.step import Step
from parenvs.tasks.pipeline.plan import MICRO_BATCH, TIED, PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, check_stages, stages_on
from parenvs.tasks.pipeline.profile import StageProfile

TASKS = tuple(PLANS)
"""Tasks that plans solve: ``"pipeline-cut"``, ``"operator-partition"``, ``"data-parallel"``,
``"hybrid"``, ``"packed-order"``."""
PURE_TASKS = (PipelinePlan.task, *PARTITION_PLANS)
"""Those that plan one axis, for which there are environments."""
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
PARTITION_OPTIONS = ("devices", "rules", "uneven", "reward", *STEP_OPTIONS)
"""Options of ``problem`` for partitions."""
HYBRID_OPTIONS = ("batch", "stack")
"""Options of ``problem`` for hybrid plans."""
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


def problem(
    instance: str | os.PathLike[str],
    cluster: str | dict[str, Any] | Cluster | None = None,
    task: str = PipelinePlan.task,
    precision: str | None = None,
    **options: Any,
) -> Any:
    """Load the problem of planning a model on a cluster.

    Args:
        instance: shipped name, or path of a graph or of a ``.csv`` profile; of hybrid plans also
            the name of a shape or the path of a ``.json`` file of one, see ``load_shape``, or a
            drawn problem (``"hybrid/7"``, ``"hetero-32-test/spread-000"``), which has a cluster,
            batch and stack; of orders see ``load_ordering``.
        cluster: preset, short form, ``.json`` path or object, see ``Cluster.parse`` (default:
            ``"C"`` for pipelines and hybrid plans, one server of 8 V100 for partitions).
        task: ``"pipeline-cut"``, ``"operator-partition"``, ``"data-parallel"``, ``"hybrid"`` or
            ``"packed-order"``.
        precision: in which the products of the graph run, ``"fp32"`` for example (default: that of
            their elements; fp32 runs as TF32 where the device has it; of hybrid plans: the fastest
            of 16 bits, else of 32).
        **options: for pipelines ``stages``, ``micro_batch``, ``micro_batches``, ``copies``,
            ``recompute``, ``sync`` and ``tied`` (default: ``"once"`` for the paper's instances, as
            its tasks count, ``"held"`` for others); for partitions ``devices`` (instead of a
            cluster), ``rules``, ``uneven``, ``reward``, and of ``STEP_OPTIONS``; for both
            ``variables``, ``batch``, ``frozen`` and ``arguments``, see ``load_graph``; for hybrid
            plans ``batch`` (samples of a step, which has no default), ``stack`` and ``precision``,
            see ``Hybrid``, and of what ``load_graph`` takes ``variables``, ``frozen`` and
            ``arguments``; orders have none.

    Returns:
        A ``Pipeline``, a ``Partitioning``, a ``Hybrid`` or an ``Order``.

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
    known = options_of(task)
    if task == OrderPlan.task:
        settings = {"cluster": cluster, "precision": precision}
        options.update({name: value for name, value in settings.items() if value is not None})
    for name in options:
        if name not in known:
            raise ParenvsError(
                f"{name!r} is not an option of task {task}{did_you_mean(name, known)}; "
                f"known: {', '.join(known) or 'none, the instance says all'}"
            )
    if task == OrderPlan.task:
        return load_ordering(instance)
    if task == PipelinePlan.task:
        chosen_cluster = Cluster.parse("C" if cluster is None else cluster)
    elif task == HybridPlan.task:
        return _load_hybrid(instance, cluster, precision=precision, **options)
    else:
        chosen_cluster = choose_cluster(cluster, options.pop("devices", None))
    if precision is not None:
        chosen_cluster = chosen_cluster.at(precision)
    if task == PipelinePlan.task:
        return _load_pipeline(instance, chosen_cluster, **options)
    return load_partitioning(instance, chosen_cluster, task=task, **options)


def options_of(task: str) -> tuple[str, ...]:
    """Return the names of the options that ``problem`` takes for a task."""
    if task == OrderPlan.task:
        return ()
    kinds = {PipelinePlan.task: PIPELINE_OPTIONS, HybridPlan.task: HYBRID_OPTIONS}
    names = (*kinds.get(task, PARTITION_OPTIONS), *READING, "arguments")
    return tuple(dict.fromkeys(names))


def load_model(instance: str | os.PathLike[str], **reading: Any) -> HybridModel:
    """Load the chain of layers that hybrid plans cut: of a shape if there is one, else of a graph.

    Args:
        instance: name or path of a shape or of a graph.
        **reading: see ``load_graph``; a shape has no parameters to read.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: options of reading are given for a shape.
    """
    shape = load_shape(instance)
    if shape is None:
        return _model_of_graph(os.fspath(instance), **reading)
    for name, value in reading.items():
        if value is not None:
            raise ParenvsError(f"{os.fspath(instance)}: a shape is no graph; leave out {name!r}")
    return HybridModel.of_shape(shape)


def _model_of_graph(instance: str, **reading: Any) -> HybridModel:
    """Load the chain of layers of a graph; the same arguments give the same object."""
    known = (*shapes(), *names())
    if not (instance in names() or _exists(instance) or python_source.is_function(instance)):
        raise UnknownInstanceError(
            f"unknown instance {instance!r}{did_you_mean(instance, known)}; shapes: "
            f"{', '.join(shapes())}; graphs: {', '.join(names())}; or give a .json file of a shape "
            "or the path of a graph"
        )
    if instance.endswith(".csv"):
        raise ParenvsError(
            f"{instance}: a profile says nothing of the layers' operations; hybrid plans need a "
            "shape or a graph"
        )
    arguments = reading.pop("arguments", None)
    return _cached_model(instance, (arguments, _reading_key(reading), _stamp(instance)))


def load_graph(
    instance: str | os.PathLike[str],
    kind: str = "train",
    arguments: str | None = None,
    **reading: Any,
) -> Graph:
    """Load a graph by name, by path (``.npz``, ``.pb``, ``.txt``, ``.mlir``), or of a function.

    Args:
        instance: the name or path; a function (extra ``jax``) is ``FILE.py:NAME`` or
            ``package.module:NAME``.
        kind: ``"train"`` or ``"forward"``, the variant of a shipped instance; ignored for others.
        arguments: what gives a function's arguments: ``NAME`` in its file or ``FILE.py:NAME``.
        **reading: what the entry parameters are, where that is not to be detected (None):
            ``variables``, ``batch`` and ``frozen``, each the index of an argument, or one or
            several globs over the parameters' paths. A shipped graph and a ``.npz`` keep what they
            were saved with unless one is given.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name, a file nor a function.
        ParenvsError: see ``parenvs.graph.python_source.lower`` and the reader of the format.
    """
    text = os.fspath(instance)
    for name in reading:
        if name not in READING:
            raise ParenvsError(
                f"{name!r} is not an option of loading a graph{did_you_mean(name, READING)}; "
                f"known: {', '.join(READING)}"
            )
    variant = kind if text in manifest()["instances"] else ""
    return _cached_graph(text, variant, arguments, _reading_key(reading), _stamp(text))


def reads_anew(instance: str | os.PathLike[str], **reading: Any) -> bool:
    """Return whether a graph differs from what its name or path alone would give.

    That is so for a function, and where options of reading are given.
    """
    return python_source.is_function(os.fspath(instance)) or bool(_reading_key(reading))


def load_profile(
    instance: str | os.PathLike[str],
    cluster: str | dict[str, Any] | Cluster | Device,
    micro_batch: int = MICRO_BATCH,
    **reading: Any,
) -> StageProfile:
    """Load a chain by shipped name or by path (of a graph, or of a ``.csv`` profile).

    Args:
        instance: the name, path or function.
        cluster: the cluster, or the device, for which a graph's chain is timed; a ``.csv`` profile
            keeps its measured seconds.
        micro_batch: samples per micro-batch.
        **reading: see ``load_graph``; a ``.csv`` profile has no parameters to read.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: options of reading are given for a ``.csv`` profile.
    """
    text = os.fspath(instance)
    if text.endswith(".csv"):
        if not _exists(text):
            raise _unknown(text)
        for name, value in reading.items():
            if value is not None:
                raise ParenvsError(f"{text}: a profile is no graph; leave out {name!r}")
        return StageProfile.from_csv(text, micro_batch)
    device = cluster if isinstance(cluster, Device) else Cluster.parse(cluster).device
    return StageProfile.from_graph(load_graph(text, "forward", **reading), device, micro_batch)


def load_partitioning(
    instance: str | os.PathLike[str],
    cluster: Cluster | str | os.PathLike[str] | dict[str, Any],
    rules: str = "shardy",
    uneven: str = "pad",
    task: str = PartitionPlan.task,
    reward: str = "paper",
    arguments: str | None = None,
    **options: Any,
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
        arguments: see ``load_graph``.
        **options: of the step, see ``Partitioning.build``, and of reading, see ``load_graph``.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: see ``load_graph`` and ``Partitioning.build``.
    """
    text = os.fspath(instance)
    own = Cluster.parse(cluster)
    step = Step.of(own, **{key: options.pop(key) for key in STEP_OPTIONS if key in options})
    how = (arguments, _reading_key(options), _stamp(text))
    named = next((preset for preset in PRESETS.values() if preset == own), own)  # as plans say it
    return _cached_partitioning(task, reward, step, text, how, named, rules, uneven)


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
    forward = forward_of(graph)
    options.setdefault("tied", TIED[not _is_of_the_paper(forward)])
    profile = StageProfile.from_graph(forward, parsed_cluster.device, micro_batch)
    return _checked_pipeline(profile, parsed_cluster, stages, **options)


def forward_of(graph: Graph) -> Graph:
    """Return the forward pass of a shipped training step, and any other graph as it is.

    Training steps are recognised by their fingerprint.
    """
    for name, entry in manifest()["instances"].items():
        if entry["graphs"]["train"]["fingerprint"] == graph.fingerprint:
            return _shipped(name, "forward")
    return graph


def _is_of_the_paper(forward: Graph) -> bool:
    """Return whether a graph is the forward pass of an instance of the paper."""
    shipped = manifest()["instances"]
    graphs = (shipped[name]["graphs"]["forward"] for name in PAPER if name in shipped)
    return any(graph["fingerprint"] == forward.fingerprint for graph in graphs)


def _load_hybrid(
    instance: str | os.PathLike[str],
    cluster: str | dict[str, Any] | Cluster | None,
    batch: int | None = None,
    stack: str | dict[str, Any] | Stack | None = None,
    precision: str | None = None,
    **reading: Any,
) -> Hybrid:
    """Load the hybrid problem of an instance; the options are those of ``problem``."""
    hetero = load_hetero(instance)
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
    chosen_stack = default_stack(parsed_cluster) if stack is None else Stack.parse(stack)
    return Hybrid(
        model, parsed_cluster, batch, chosen_stack, precision or "", instance=os.fspath(instance)
    )


def family(name: str) -> str:
    """Return the architecture of a shipped instance, which instances of other sizes share.

    Raises:
        UnknownInstanceError: there is no such shipped instance.
    """
    if name not in manifest()["instances"]:
        raise _unknown(name)
    return manifest()["instances"][name]["family"]


def _load_pipeline(
    instance: str | os.PathLike[str],
    cluster: str | dict[str, Any] | Cluster,
    stages: int | None = None,
    micro_batch: int = MICRO_BATCH,
    **options: Any,
) -> Pipeline:
    """Load the pipeline of an instance; the options are those of ``problem``."""
    parsed_cluster = Cluster.parse(cluster)
    reading = {key: options.pop(key) for key in (*READING, "arguments") if key in options}
    profile = load_profile(instance, parsed_cluster, micro_batch, **reading)
    options.setdefault("tied", TIED[os.fspath(instance) not in PAPER])
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
def _cached_partitioning(task: str, reward: str, step: Step, *key: Any) -> Partitioning:
    """Load the problem; ``key`` begins the arguments of ``_cached_classes``."""
    found = _cached_classes(*key, step.micro_batch)
    return replace(found, task=task, reward=reward, step=step.on(found.graph))


@lru_cache(maxsize=16)
def _cached_classes(
    instance: str,
    how: tuple[str | None, _Key, int | None],
    cluster: Cluster,
    rules: str,
    uneven: str,
    micro_batch: int | None,
) -> Partitioning:
    """Load the problem with the default task and reward, which do not change the classes."""
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
    if arguments is not None and not python_source.is_function(text):
        raise ParenvsError(f"instance {text!r} is no function, so it takes no arguments")
    if text in manifest()["instances"]:
        return _read_anew(_shipped(text, kind), options)
    if python_source.is_function(text) and not _exists(text):
        return python_source.graph_of(text, arguments, **options)
    if text.endswith(".npz") and _exists(text):
        return _read_anew(Graph.from_hlo(text), options)
    if text.endswith(GRAPH_SUFFIXES) and _exists(text):
        return Graph.from_hlo(text, **options)
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
    """Return whether the text is the path of a file or folder."""
    try:
        return Path(text).exists()
    except OSError:  # the name is too long for a file, or the folder is unreadable
        return False


def _unknown(text: str) -> UnknownInstanceError:
    """Return the error for an instance that cannot be loaded, with the likeliest reason."""
    if _exists(text):
        if text.endswith(_PYTORCH):
            return UnknownInstanceError(
                f"instance {text!r}: {_ADVICE}; in Python: Graph.from_torch(module, inputs)"
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
