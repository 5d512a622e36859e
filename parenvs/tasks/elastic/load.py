"""Loads elastic problems by name or path."""

from __future__ import annotations

import json
import os
from functools import lru_cache

from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean
from parenvs.shipped import data_folder
from parenvs.tasks.elastic.course import Course, Recorded
from parenvs.tasks.elastic.files import Row, read_set
from parenvs.tasks.elastic.library import Library
from parenvs.tasks.elastic.problem import SECONDS, Elastic
from parenvs.tasks.elastic.state import State
from parenvs.tasks.elastic.task import ElasticTask
from parenvs.tasks.elastic.trace import Trace, read_trace
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import load_shape, shapes

*ELASTIC_SETS, WINDOWS = ElasticTask.sets
"""Shipped sets of chains, ``SET/NAME`` is one of a set; and the set of windows of traces."""
TRACES = {"p3": "aws-p3-spot.csv", "g4dn": "aws-g4dn-spot.csv"}
"""Shipped traces of spot clusters."""
MEASURED = ("gpt-1.5b", "bert-large")
"""Models whose steps on many degrees were measured."""
WINDOW, STRIDE = 120, 10
"""Intervals of a window of a trace, and from the beginning of one to that of the next."""


def load_trace(name: str | os.PathLike[str]) -> Trace:
    """Load a shipped trace by its name, or a file of either form.

    Raises:
        ParenvsError: the file is missing or wrong; the line names file, row and field.
    """
    text = os.fspath(name)
    if text in TRACES:
        return _shipped_trace(text)
    if not text.endswith(".csv"):
        raise UnknownInstanceError(
            f"unknown trace {text!r}{did_you_mean(text, TRACES)}; give one of {', '.join(TRACES)}, "
            "or the path of a .csv file"
        )
    return read_trace(text)


@lru_cache(maxsize=8)
def load_library(
    model: str = MEASURED[0], cluster: str | None = None, batch: int | None = None
) -> Library:
    """Load the candidate plans of a model.

    Args:
        model: a shape, by shipped name or path.
        cluster: its nodes are the servers; None takes the measured steps of one of ``MEASURED``.
        batch: samples of a step, with a cluster (default: 512).

    Raises:
        ParenvsError: the model or the cluster is unknown, or nothing was measured of the model.
    """
    shape = load_shape(model)
    if shape is None:
        raise UnknownInstanceError(
            f"unknown model {model!r}{did_you_mean(model, shapes())}; give the name of a shape or "
            "the path of its .json file"
        )
    chain = HybridModel.of_shape(shape)
    if cluster is not None:
        return Library.modelled(Hybrid(chain, Cluster.parse(cluster), batch or 512))
    if model not in MEASURED:
        raise ParenvsError(
            f"model {model!r}: no steps were measured; give a cluster, such as 16x8:a100, for the "
            f"cost model, or one of {', '.join(MEASURED)}"
        )
    if batch is not None:
        raise ParenvsError(
            f"batch: the steps of {model} were measured with their own; leave it out"
        )
    path = data_folder() / "measured" / f"{model}.json"
    content = {**json.loads(path.read_text(encoding="utf-8")), "model": model}
    return Library.measured(content, State.of(chain))


def elastic_rows(name: str) -> dict[str, Row]:
    """Read the problems of a shipped set of chains, by their names.

    Raises:
        UnknownInstanceError: there is no such set.
    """
    if name not in ELASTIC_SETS:
        raise UnknownInstanceError(
            f"unknown set {name!r}{did_you_mean(name, ELASTIC_SETS)}; known: "
            f"{', '.join(ELASTIC_SETS)}"
        )
    return _shipped_rows(name)


def load_elastic(
    instance: str | os.PathLike[str], model: str | None = None, interval: float = SECONDS,
    cluster: str | None = None, batch: int | None = None,
) -> Elastic:  # fmt: skip
    """Load a problem of a job on nodes that come and go.

    Args:
        instance: a problem of a shipped set, ``"elastic-test/bulk-gpt-1.5b-000"``; or a trace:
            ``"p3"``, ``"g4dn"``, ``TRACE/MODEL`` as such a problem is called, or the path of a
            ``.csv`` file.
        model: of a trace, see ``load_library`` (default: ``gpt-1.5b``).
        interval: seconds of an interval, of a trace.
        cluster: of a trace, see ``load_library``.
        batch: of a trace, see ``load_library``.

    Raises:
        ParenvsError: a name is unknown, a file is wrong, or the problem has settings of its own.
    """
    text = os.fspath(instance)
    place, _, member = text.partition("/")
    if place in TRACES and member:
        text, (named, _, servers) = place, member.removesuffix("-measured").partition(" on ")
        model, cluster = model or named, cluster or servers.replace(" ", ":") or None
    if place == WINDOWS:
        _refuse(place, model, cluster, batch, interval)
        return window(member)
    if place not in ELASTIC_SETS:
        library = load_library(model or MEASURED[0], cluster, batch)
        trace = load_trace(text)
        return Elastic(library, trace, interval, name=f"{trace.name}/{library.name}")
    _refuse(place, model, cluster, batch, interval)
    return _elastic_problem(place, member)


def _refuse(
    place: str, model: str | None, cluster: str | None, batch: int | None, interval: float
) -> None:
    """Raise an error for settings of a problem that has its own."""
    for name, value in (("model", model), ("cluster", cluster), ("batch", batch)):
        if value is not None:
            raise ParenvsError(f"{name}: problems of {place} have one of their own; leave it out")
    if interval != SECONDS:
        raise ParenvsError(f"interval: problems of {place} have {SECONDS:g} s; leave it out")


@lru_cache(maxsize=1)
def windows() -> dict[str, tuple[str, str, int]]:
    """Return the windows of the shipped traces: name -> trace, model, and first interval.

    Windows of a trace begin ``STRIDE`` intervals after each other, the first when there is a node,
    so neighbours overlap. Names are TRACE-MODEL-NUMBER.
    """
    result = {}
    for trace in TRACES:
        nodes = _whole_course(trace).nodes
        starts = range(int((nodes > 0).argmax()),
                       len(nodes) - WINDOW + 1, STRIDE)  # fmt: skip
        for model in MEASURED:
            for number, first in enumerate(starts):
                result[f"{trace}-{model}-{number:03d}"] = trace, model, first
    return result


@lru_cache(maxsize=512)
def window(name: str) -> Elastic:
    """Return a job on a window of a trace, in which checkpoints can be chosen.

    Of a trace whose nodes have no names, those that leave are drawn once for all.

    Raises:
        UnknownInstanceError: there is no such window.
    """
    known = windows()
    if name not in known:
        raise UnknownInstanceError(
            f"unknown problem {f'{WINDOWS}/{name}'!r}{did_you_mean(name, known)}; {WINDOWS} holds "
            f"{len(known)}, from {min(known)} to {max(known)}"
        )
    trace, model, first = known[name]
    course = Recorded(f"{WINDOWS}/{name}", _whole_course(trace).window(first, WINDOW))
    return Elastic(load_library(model), course, name=course.name, checkpoints=True)


@lru_cache(maxsize=len(TRACES))
def _whole_course(trace: str) -> Course:
    """Return the course of a shipped trace; those who leave are of seed 0 if it names none."""
    return load_elastic(trace).drawn(0)


@lru_cache(maxsize=512)
def _elastic_problem(name: str, member: str) -> Elastic:
    """Make a problem of a shipped set once."""
    rows = elastic_rows(name)
    if member not in rows:
        raise UnknownInstanceError(
            f"unknown problem {f'{name}/{member}'!r}{did_you_mean(member, rows)}; {name} holds "
            f"{len(rows)}, from {min(rows)} to {max(rows)}"
        )
    row = rows[member]
    return Elastic(
        load_library(row.model), row.chain, intervals=row.intervals, name=f"{name}/{member}"
    )


@lru_cache(maxsize=len(ELASTIC_SETS))
def _shipped_rows(name: str) -> dict[str, Row]:
    """Read a shipped set of elastic problems once."""
    return read_set(data_folder() / f"{name}.json", MEASURED)


@lru_cache(maxsize=len(TRACES))
def _shipped_trace(name: str) -> Trace:
    """Read a shipped trace once."""
    return read_trace(data_folder() / "measured" / TRACES[name], name)
