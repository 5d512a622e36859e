"""Loads graphs by shipped name, by path, or of a function."""

from __future__ import annotations

import contextlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parenvs.core.registry import TASKS
from parenvs.core.task import GraphOptions
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, refuse_unknown, shown
from parenvs.fields import checked
from parenvs.files import StrPath, is_function

if TYPE_CHECKING:
    from parenvs.graph.graph import Graph

GRAPH_SUFFIXES = (".npz", ".pb", ".txt", ".hlo", ".mlir", ".mlirbc")
"""Endings of files that hold a graph."""

PAPER = ("vgg-19", "t5-base", "t5-3b", "t5-11b", "bert-48")
"""Shipped instances of Auto-MAP's paper (arXiv 2007.04069), which the leaderboard plans."""


def data_folder() -> Path:
    """Return the folder of the shipped graphs."""
    import parenvs

    # In a checkout datasets/ lies beside the package, installed inside it.
    folders = (Path(base, "datasets", "data") for base in parenvs.__path__)
    return next(folder for folder in folders if folder.is_dir())


@lru_cache(maxsize=1)
def manifest() -> dict[str, Any]:
    """Read the list of shipped instances: sizes, checksums and the command that made them."""
    return json.loads((data_folder() / "manifest.json").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Return the names of the shipped instances."""
    return list(manifest()["instances"])


@lru_cache(maxsize=1)
def shapes() -> dict[str, dict[str, Any]]:
    """Read the shipped shapes of transformers: name -> what its file has of it."""
    rows = json.loads((data_folder() / "shapes.json").read_text(encoding="utf-8"))
    return {row["name"]: row for row in rows}


KINDS = ("train", "forward")
"""Variants of a shipped graph: a training step, and the forward pass alone.

Pipelines are made from the forward pass.
"""
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
Key = tuple[tuple[str, Any], ...]
"""Options of reading, as a key of a cache."""
_Name = StrPath
"""A shipped name or a path."""
_Text = (str, os.PathLike)


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
    """
    from parenvs.graph.graph import Graph

    for name in reading:
        refuse_unknown("load_graph has no option", name, READING)
    text = instance.name if isinstance(instance, Graph) else text_of(instance, "a Graph")
    takes = not isinstance(instance, Graph) and is_function(text)
    if arguments is not None and not takes:
        raise ParenvsError(f"instance {text!r} is no function, so it takes no arguments")
    if isinstance(instance, Graph):
        graph = forward_of(instance) if kind == "forward" else instance
        return _read_anew(graph, dict(reading_key(reading)))
    # Only shipped graphs have two variants; a file is what it is.
    variant = kind if text in manifest()["instances"] else ""
    return _cached_graph(text, variant, arguments, reading_key(reading), stamp(text))


def text_of(instance: Any, *others: str) -> str:
    """Return the name or path that an instance is given by; ``others`` are what else it may be.

    Raises:
        ParenvsError: it is neither text nor a path.
    """
    if not isinstance(instance, _Text):
        *kinds, last = ("a name", "a path", *others)
        known = f"{', '.join(kinds)} or {last}"
        raise ParenvsError(f"instance: expected {known}, not {shown(instance)}")
    return os.fspath(instance)


def check_no_reading(reading: dict[str, Any], what: str) -> None:
    """Raise an error if options of reading are given for what has no parameters to read."""
    for name, value in reading.items():
        if value is not None:
            raise ParenvsError(f"{what} is no graph; leave out {name!r}")


def forward_of(graph: Graph) -> Graph:
    """Return the forward pass of a shipped training step, and any other graph as it is.

    Training steps are recognized by their fingerprint.
    """
    return _twin(graph, "train", "forward")


def step_of(graph: Graph) -> Graph:
    """Return the training step of a shipped forward pass, and any other graph as it is."""
    return _twin(graph, "forward", "train")


def _twin(graph: Graph, kind: str, wanted: str) -> Graph:
    for name, entry in manifest()["instances"].items():
        if entry["graphs"][kind]["fingerprint"] == graph.fingerprint:
            return _shipped(name, wanted)
    return graph


@lru_cache(maxsize=4)
def _cached_graph(
    text: str, kind: str, arguments: str | None, reading: Key, changed_ns: int | None
) -> Graph:
    """Load a graph; ``changed_ns``, the time of the file's last change, is part of the key."""
    options = dict(reading)
    if text in manifest()["instances"]:
        return _read_anew(_shipped(text, kind), options)
    from parenvs.graph.sources import from_hlo

    if is_function(text) and not exists(text):
        from parenvs.graph import python_source

        return python_source.graph_of(text, arguments, **options)
    if text.endswith(".npz") and exists(text):
        return _read_anew(from_hlo(text), options)
    if text.endswith(GRAPH_SUFFIXES) and exists(text):
        return from_hlo(text, **options)
    if text.endswith(".csv") and exists(text):
        raise UnknownInstanceError(f"instance {text!r}: a profile is no graph; give the module")
    raise unknown(text)


def _read_anew(graph: Graph, options: dict[str, Any]) -> Graph:
    if not options:
        return graph
    from parenvs.graph.roles import with_roles

    return with_roles(graph, **options)


def reading_key(reading: dict[str, Any]) -> Key:
    """Return the options of reading that are given, in a form that a cache can hash."""
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(checked(GraphOptions, reading).items())
        if value is not None
    )


def stamp(text: str) -> int | None:
    """Return the time of a file's last change; None for a shipped name, or without a file."""
    if text in manifest()["instances"]:
        return None
    if is_function(text):
        from parenvs.graph import sources

        return sources.stamp(text)
    with contextlib.suppress(OSError, ValueError):  # without a file, loading the graph fails
        return Path(text).stat().st_mtime_ns
    return None


@lru_cache(maxsize=32)
def _shipped(name: str, kind: str) -> Graph:
    from parenvs.graph.graph import Graph

    return Graph.load(data_folder() / manifest()["instances"][name]["graphs"][kind]["file"])


def exists(text: str) -> bool:
    """Return whether the text is the path of a file or folder; False for too long a name."""
    return os.path.exists(text)  # noqa: PTH110  # Path.exists raises errors for such names


def unknown(text: str) -> UnknownInstanceError:
    """Return the error for an instance that cannot be loaded, with the likeliest reason."""
    if exists(text):
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


def use_of(text: str) -> str:
    """Say what a name without a graph is for, of a set or of a task alone; "" if it is neither."""
    for task in TASKS.values():
        if text in task.sets:
            return f"{text!r} is a set of problems: parenvs evaluate AGENT --set {text} plays it"
        if task.names(text):
            return (
                f"{text!r} is a problem of task {task.name}, without a graph: "
                f"parenvs.problem({text!r}) makes it"
            )
        if text in task.own_names():
            return f"instance {text!r} has no graph: task {task.name} alone plans it"
    return ""
