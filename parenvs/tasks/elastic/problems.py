"""Elastic problems by name: traces, Markov chains, generated courses, sets and problem pools.

A trace file has one of two forms. ``seconds,event,node``: events are ``add`` or ``remove``, nodes
have names. ``seconds,nodes``: the number of nodes from then on; which nodes leave is drawn.

A set is one JSON file of chains per family and measured model; problems are called
FAMILY-MODEL-NUMBER. Generated problems are called ``elastic/FAMILY/MODEL/WHICH``; WHICH is a
number, or the state of the generator. The first courses of each family ship as a problem pool,
with what hindsight and the fastest plans earn on them.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby, product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.random import Generator

from parenvs.cluster import Cluster
from parenvs.core.game import generator_of, word_of
from parenvs.core.plan import Answer
from parenvs.core.sets import OPTIMUM, BestValue, SetKind, member_of
from parenvs.datasets.banks import Bank
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, shown
from parenvs.fields import Integer, check, checked, number, one_of, read_rows, whole
from parenvs.files import StrPath
from parenvs.instances import data_folder
from parenvs.tasks.elastic.library import Library
from parenvs.tasks.elastic.movement import Array, State
from parenvs.tasks.elastic.problem import (
    INTERVALS,
    MAX_INTERVALS,
    MAX_NODES,
    SECONDS,
    Course,
    Elastic,
    KnownSamples,
    Recorded,
    Source,
    cost_of,
    known_samples,
)
from parenvs.tasks.elastic.task import ElasticTask
from parenvs.tasks.hybrid.model import HybridModel, load_shape, shapes
from parenvs.tasks.hybrid.problem import Hybrid

EVENT_HEAD = ("seconds", "event", "node")
COUNT_HEAD = ("seconds", "nodes")
"""Heads of the two forms."""
MOST_BYTES = 16 << 20
"""Size of the largest file that is read."""


@dataclass(frozen=True)
class Trace(Source):
    """Joins and departures of nodes over time.

    Attributes:
        events: (seconds, nodes that leave, nodes that come), by time: names, or numbers of nodes.
        most: nodes that are there at the same time at most.
    """

    name: str
    events: tuple[tuple[float, Any, Any], ...]
    most: int

    @property
    def is_named(self) -> bool:
        """Whether nodes have names, so that it is known which of them leave."""
        return not self.events or isinstance(self.events[0][1], tuple)

    def intervals(self, seconds: float) -> int:
        """Return the number of intervals of a length, up to the last event.

        Raises:
            ParenvsError: there are too many.
        """
        count = math.floor(self.events[-1][0] / seconds) + 1
        if count > MAX_INTERVALS:
            raise ParenvsError(
                f"{self.name}: {count:,} intervals of {seconds:g} s, more than {MAX_INTERVALS:,}; "
                "give a longer interval"
            )
        return count

    def course(self, seconds: float, uniform: Array | None = None) -> Course:
        """Return the course in intervals of a length.

        Args:
            seconds: length of an interval.
            uniform: (S, most) numbers in [0, 1) that choose the nodes that leave, for traces whose
                nodes have no names.
        """
        count = self.intervals(seconds)
        joined, bits = np.zeros(count, np.int16), np.zeros(count, np.uint64)
        alive: list[str] = []  # by age
        anonymous = 0
        # An event counts from the next interval on, so a node finishes the one it leaves in.
        for slot, group in groupby(self.events, key=lambda event: math.ceil(event[0] / seconds)):
            if slot == count:  # the end of the trace, within its last interval
                break
            before, gone = list(alive), set[str]()
            for _, leaving, coming in group:
                if isinstance(leaving, tuple):
                    alive = [*(name for name in alive if name not in leaving), *coming]
                    gone.update(leaving)
                    continue
                assert uniform is not None
                # The numbers of an interval are used from the first on, one for each departure.
                for _ in range(leaving):
                    draw = uniform[slot, len(gone) % self.most]
                    gone.add(alive.pop(int(draw * len(alive))))
                alive.extend(str(anonymous + i) for i in range(coming))
                anonymous += coming
            # Nodes that came and left within the interval were never there for a plan.
            left = [1 << age for age, name in enumerate(before) if name in gone]
            joined[slot], bits[slot] = len(alive) - len(before) + len(left), sum(left)
        return Course.of_bits(joined[0], joined, bits, self.most)


def read_trace(path: StrPath, name: str | None = None) -> Trace:
    """Read a trace of either form.

    Args:
        path: the file, CSV.
        name: name of the trace (default: the path).

    Raises:
        ParenvsError: the file is missing or wrong; the line names file, row and field.
    """
    where = os.fspath(path)
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise ParenvsError(f"{where}: larger than {MOST_BYTES >> 20} MiB; cut the trace")
        count_text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ParenvsError(f"{where}: not a trace ({reason})") from None
    try:
        rows = list(csv.reader(count_text.splitlines()))
    except csv.Error as error:
        raise ParenvsError(f"{where}: not a CSV file ({error})") from None
    head = tuple(cell.strip() for cell in rows[0]) if rows else ()
    if head not in (EVENT_HEAD, COUNT_HEAD):
        raise ParenvsError(
            f"{where}: the first line must be {','.join(EVENT_HEAD)!r} or "
            f"{','.join(COUNT_HEAD)!r}, not {shown(','.join(head))}"
        )
    events: list[tuple[float, Any, Any]] = []
    present, count, max_nodes, before = set[str](), 0, 0, 0.0
    for line, row in enumerate(rows[1:], 2):
        if not row:
            continue
        where_line = f"{where}: line {line}"
        before = seconds = _seconds(where_line, row, len(head), before)
        if head == EVENT_HEAD:
            leaves, node = _event(where_line, row, present)
            events.append((seconds, (node,), ()) if leaves else (seconds, (), (node,)))
            # A node joins if it was absent, and leaves if it was present.
            present ^= {node}
            count = len(present)
        else:
            count_text, count_before = row[1].strip(), count
            if not re.fullmatch(r"[0-9]{1,9}", count_text):
                raise ParenvsError(
                    f"{where_line}: 'nodes' must be a whole number, not {shown(count_text)}"
                )
            count = int(count_text)
            events.append((seconds, max(count_before - count, 0), max(count - count_before, 0)))
        if count > MAX_NODES:
            raise ParenvsError(f"{where_line}: {count:,} nodes at a time, more than {MAX_NODES}")
        max_nodes = max(max_nodes, count)
    if not max_nodes:
        raise ParenvsError(f"{where}: no node ever joins; a trace needs one")
    return Trace(name or where, tuple(events), max_nodes)


def _event(where: str, row: list[str], present: set[str]) -> tuple[bool, str]:
    """Return whether a node leaves, else it comes, and its name."""
    kind, node = row[1].strip(), row[2].strip()
    if kind not in ("add", "remove"):
        raise ParenvsError(f"{where}: 'event' must be add or remove, not {shown(kind)}")
    if not node or len(node) > 200:
        raise ParenvsError(f"{where}: 'node' must be a name, not {shown(node)}")
    if (kind == "add") == (node in present):
        state = "is there already" if kind == "add" else "is not there"
        raise ParenvsError(f"{where}: 'node' {shown(node)} {state}; remove the line")
    return kind == "remove", node


def _seconds(where: str, row: list[str], width: int, before: float) -> float:
    if len(row) != width:
        raise ParenvsError(f"{where}: expected {width} fields, not {len(row)}")
    try:
        seconds = float(row[0])
    except ValueError:
        seconds = math.nan
    if not before <= seconds <= 1e9:
        raise ParenvsError(
            f"{where}: 'seconds' must be a number from {before:g} on, not {shown(row[0])}; sort "
            "the rows by time"
        )
    return seconds


CHAINS = ("independent", "bulk", "daynight", "growth")
"""Names of the families."""

_Bounds = number(0, 1, "a probability from 0 to 1")
_Probability = Annotated[int, _Bounds] | Annotated[float, _Bounds]


@dataclass(frozen=True)
class Markov(Source):
    """Nodes that leave and come by chance.

    Attributes:
        leave: probability that a node leaves before the next interval, for each phase of the day.
        join: probability that a missing node comes, for each phase.
        bulk: probability of a bulk preemption in an interval.
        severity: probability that a node leaves in a bulk preemption.
        phase: intervals of a phase; phases follow each other over and over.
    """

    nodes: Annotated[int, whole(1, MAX_NODES)]
    start: Annotated[int, whole(0, MAX_NODES)]
    leave: tuple[_Probability, ...]
    join: tuple[_Probability, ...]
    bulk: _Probability = 0.0
    severity: _Probability = 0.0
    phase: Annotated[int, whole(1, MAX_INTERVALS)] = 1

    name = "markov"
    is_named = False
    is_chain: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raise errors for numbers that no cluster has."""
        check(self)
        if self.start > self.nodes:
            raise ParenvsError(f"start must be at most {self.nodes}, the nodes, not {self.start}")
        if not 1 <= len(self.leave) == len(self.join) <= 64:
            raise ParenvsError("leave and join must be lists of equal length, 1 to 64 phases")

    def phase_of(self, interval: Any) -> Any:
        """Return the phase in which nodes leave and come before an interval, elementwise."""
        return (interval // self.phase) % len(self.leave)

    def modes(self, phase: int) -> tuple[tuple[float, float], ...]:
        """Return (probability, probability that a node leaves) with and without a bulk one."""
        # A bulk preemption replaces the usual departures of its interval.
        calm = (1.0 - self.bulk, self.leave[phase])
        return (calm,) if self.bulk == 0.0 else (calm, (self.bulk, self.severity))

    @property
    def most(self) -> int:
        """N, nodes at most."""
        return self.nodes

    def intervals(self, seconds: float) -> int:
        """Return the default number of intervals, whatever their length."""
        return INTERVALS

    def draw(self, rng: Generator, seconds: float, intervals: int) -> Array:
        """Draw what decides a course, (S, 1+N) float32: of bulk preemptions, and of each node."""
        return rng.random((intervals, self.nodes + 1), dtype=np.float32)

    def course(self, seconds: float, uniform: Array | None = None) -> Course:
        assert uniform is not None
        count = len(uniform)
        nodes, joined, left = np.zeros((3, count), np.int16)
        lost = np.zeros((count, self.nodes + 1), np.int8)
        nodes[0] = joined[0] = self.start
        phase = self.phase_of(np.arange(count))
        # In single precision, as the drawn numbers are: what they decide is the same everywhere.
        leave, join = (np.array(x, np.float32)[phase] for x in (self.leave, self.join))
        bulk = uniform[:, 0] < np.float32(self.bulk)
        leave = np.where(bulk, np.float32(self.severity), leave)
        for t in range(1, count):
            present = np.arange(self.nodes) < nodes[t - 1]
            happens = uniform[t, 1:] < np.where(present, leave[t], join[t])
            lost[t, 1:] = (happens & present).cumsum(dtype=np.int8)
            left[t] = lost[t, -1]
            joined[t] = np.count_nonzero(happens) - left[t]
            nodes[t] = nodes[t - 1] - left[t] + joined[t]
        return Course(nodes, joined, left, lost)


def _log_uniform(rng: Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def draw_markov(rng: Generator, family: str, nodes: int) -> Markov:
    """Draw a chain of a family; intervals are taken to be minutes.

    ``independent``: a node stays 30 minutes to 5 hours, a missing one comes after 10 to 60 minutes.
    ``bulk``: nodes stay longer, but every half an hour to 3 hours a fifth to two thirds of them
    leave together. ``daynight``: two phases, in one of which nodes leave 3 to 10 times as often.
    ``growth``: an eighth to a quarter of the nodes at first, which rarely leave, more to come.
    """

    def rate(low: float, high: float) -> float:
        return round(_log_uniform(rng, low, high), 6)

    start = int(rng.integers(nodes // 2, nodes + 1))
    if family == "independent":
        return Markov(nodes, start, (rate(1 / 300, 1 / 30),), (rate(1 / 60, 1 / 10),))
    if family == "bulk":
        leave, join = rate(1 / 1000, 1 / 200), rate(1 / 40, 1 / 8)
        severity = round(float(rng.uniform(0.2, 0.67)), 6)
        return Markov(nodes, start, (leave,), (join,), rate(1 / 180, 1 / 30), severity)
    if family == "daynight":
        calm, factor = rate(1 / 600, 1 / 150), float(rng.uniform(3.0, 10.0))
        join = rate(1 / 60, 1 / 12)
        phase = int(rng.integers(30, 91))
        busy = round(min(calm * factor, 0.2), 6)
        return Markov(nodes, start, (calm, busy), (join, round(join / 2, 6)), phase=phase)
    start = int(rng.integers(max(nodes // 8, 1), nodes // 4 + 1))
    return Markov(nodes, start, (rate(1 / 1500, 1 / 300),), (rate(1 / 240, 1 / 60),))


MEASURED = ("gpt-1.5b", "bert-large")
"""Models whose steps on many degrees were measured."""


@dataclass(frozen=True)
class Row:
    """A problem of a set: the model's name, the intervals of an episode, and the chain."""

    model: Annotated[str, one_of(*MEASURED)]
    intervals: Integer
    chain: Markov


def read_set(path: StrPath) -> dict[str, Row]:
    """Read the problems of a set, by name.

    Raises:
        ParenvsError: the file is missing or wrong; the line names file, problem and field.
    """
    return read_rows(Row, path, lambda row, where: row)


*ELASTIC_SETS, WINDOWS = ElasticTask.sets
"""Shipped sets of chains, ``SET/NAME`` is one of a set; and the set of windows of traces."""
TRACES = {"p3": "aws-p3-spot.csv", "g4dn": "aws-g4dn-spot.csv"}
"""Shipped traces of spot clusters."""
WINDOW, STRIDE = 120, 10
"""Intervals of a window of a trace, and from the beginning of one to that of the next."""


_NAME = re.compile(
    rf"({'|'.join(TRACES)}|.+\.csv)/(.+?)(?:-measured| on (.+?))?"
    r"(?: batch (\d+))?(?: every (\d+(?:\.\d+)?(?:e[+-]\d+)?) s)?"
)
"""Name of a problem of a trace: trace, model, cluster, batch, seconds of an interval."""


def load_trace(name: StrPath) -> Trace:
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
        return Library.modeled(Hybrid(chain, Cluster.parse(cluster), batch or 512))
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


@lru_cache(maxsize=len(ELASTIC_SETS))
def elastic_rows(name: str) -> dict[str, Row]:
    """Read the problems of a shipped set of chains, by their names."""
    return read_set(data_folder() / f"{name}.json")


def load_elastic(
    instance: StrPath, model: str | None = None, interval: float = SECONDS,
    cluster: str | None = None, batch: int | None = None,
) -> Elastic:  # fmt: skip
    """Load a problem of a job on nodes that come and go.

    Args:
        instance: a problem of a shipped set, ``"elastic-test/bulk-gpt-1.5b-000"``; a generated
            one, ``"elastic/FAMILY/MODEL/WHICH"``; or a trace: ``"p3"``, ``"g4dn"``, the path of a
            ``.csv`` file, or what such a problem is called, which tells its settings, too.
        model: of a trace, see ``load_library`` (default: ``gpt-1.5b``).
        interval: seconds of an interval, of a trace.
        cluster: of a trace, see ``load_library``.
        batch: of a trace, see ``load_library``.

    Raises:
        ParenvsError: a name is unknown, a file is wrong, or the problem has settings of its own.
    """
    text, cluster = os.fspath(instance), checked(load_elastic, {"cluster": cluster})["cluster"]
    named = _NAME.fullmatch(text)
    if named:
        text, model, cluster = named[1], model or named[2], cluster or named[3]
        batch = int(named[4]) if batch is None and named[4] else batch
        interval = float(named[5]) if interval == SECONDS and named[5] else interval
    first, _, member = text.partition("/")
    loaders: dict[str, Callable[[str], Elastic]] = {
        WINDOWS: window,
        **{name: partial(_elastic_problem, name) for name in ELASTIC_SETS},
        **dict.fromkeys(ElasticTask.drawn, _generated),
    }
    # What is no member of a set is a trace, shipped or a file.
    if text.endswith(".csv") or first not in loaders:
        model, trace = model or MEASURED[0], load_trace(text)
        name = f"{trace.name}/{model}" + (f" on {cluster}" if cluster else "-measured")
        name += "" if batch is None else f" batch {batch}"
        name += "" if interval == SECONDS else f" every {interval!r} s"
        return Elastic(load_library(model, cluster, batch), trace, interval, name=name)
    settings = {"model": model, "cluster": cluster, "batch": batch}
    for name in settings:
        if settings[name] is not None:
            raise ParenvsError(f"{name}: problems of {first} have one of their own; leave it out")
    if interval != SECONDS:
        raise ParenvsError(f"interval: problems of {first} have {SECONDS:g} s; leave it out")
    return loaders[first](member)


@lru_cache(maxsize=1)
def windows() -> dict[str, tuple[str, str, int]]:
    """Return the windows of the shipped traces: name -> trace, model, and first interval.

    Windows of a trace begin ``STRIDE`` intervals after each other, the first when there is a node,
    so neighbors overlap. Names are TRACE-MODEL-NUMBER.
    """
    result = {}
    for trace, model in product(TRACES, MEASURED):
        nodes = _whole_course(trace).nodes
        starts = range(int((nodes > 0).argmax()), len(nodes) - WINDOW + 1, STRIDE)
        for k, first in enumerate(starts):
            result[f"{trace}-{model}-{k:03d}"] = trace, model, first
    return result


@lru_cache(maxsize=512)
def window(name: str) -> Elastic:
    """Return a job on a window of a trace, in which checkpoints can be chosen.

    Of a trace whose nodes have no names, those that leave are drawn once for all.

    Raises:
        UnknownInstanceError: there is no such window.
    """
    trace, model, first = member_of(windows(), f"{WINDOWS}/{name}")
    return job(model, _whole_course(trace).window(first, WINDOW), f"{WINDOWS}/{name}")


@lru_cache(maxsize=len(TRACES))
def _whole_course(trace: str) -> Course:
    """Return the course of a shipped trace; those who leave are of seed 0 if it names none."""
    return load_elastic(trace).drawn(0)


@lru_cache(maxsize=512)
def _elastic_problem(set_name: str, member: str) -> Elastic:
    name = f"{set_name}/{member}"
    row = member_of(elastic_rows(set_name), name)
    return Elastic(load_library(row.model), row.chain, intervals=row.intervals, name=name)


@lru_cache(maxsize=len(TRACES))
def _shipped_trace(name: str) -> Trace:
    return read_trace(data_folder() / "measured" / TRACES[name], name)


NODES = 32
"""Nodes at most; as many as the measured steps go."""
Regime = tuple[int, Array, Array, Array]
"""What decides a course: nodes at the start, and before each interval, (S,), the probability that a
node leaves, that a missing one comes, and the share of the nodes, next to each other in age, that
leave together."""


def _constants(rng: Generator, count: int, *bounds: tuple[float, float]) -> Any:
    return [np.full(count, _log_uniform(rng, *x)) for x in bounds]


def _quiet(rng: Generator, nodes: int, count: int) -> Regime:
    """Quiet for one to three hours, then a busy spell of 10 to 60 minutes, again and again."""
    leave, join = _constants(rng, count, (1 / 3000, 1 / 600), (1 / 60, 1 / 8))
    start = -int(rng.integers(0, 60))
    while start < count:
        start += int(rng.integers(60, 181))
        end = start + int(rng.integers(10, 61))
        leave[max(start, 0) : max(end, 0)] = _log_uniform(rng, 1 / 60, 1 / 10)
        start = end
    return int(rng.integers(nodes // 2, nodes + 1)), leave, join, np.zeros(count)


def _bursts(rng: Generator, nodes: int, count: int) -> Regime:
    """Nodes of about one age leave together, often several times within minutes."""
    blocks = np.zeros(count)
    first, again = _log_uniform(rng, 1 / 90, 1 / 15), float(rng.uniform(0.1, 0.5))
    burst_left = 0  # intervals in which another block is likely
    for interval in range(1, count):
        if rng.random() < (again if burst_left > 0 else first):
            blocks[interval] = rng.uniform(0.03, 0.5)
            burst_left = int(rng.integers(2, 8))
        burst_left -= 1
    leave, join = _constants(rng, count, (1 / 3000, 1 / 400), (1 / 60, 1 / 5))
    return int(rng.integers(nodes // 3, nodes + 1)), leave, join, blocks


def _gone(rng: Generator, nodes: int, count: int) -> Regime:
    """One to three times all nodes leave; after 3 to 40 minutes they come back, fast."""
    leave, join = _constants(rng, count, (1 / 2000, 1 / 100), (1 / 60, 1 / 8))
    blocks = np.zeros(count)
    for _ in range(int(rng.integers(1, 4))):
        start = int(rng.integers(1, count))
        end = start + int(rng.integers(3, 41))
        blocks[start] = 1.0
        join[start:end] = 0.0
        join[end : end + 5] = rng.uniform(0.1, 0.6)
    return int(rng.integers(nodes // 3, nodes + 1)), leave, join, blocks


REGIMES = {"quiet": _quiet, "bursts": _bursts, "gone": _gone}
"""Regimes by name."""
FAMILIES = (*CHAINS, *REGIMES)


def draw_course(
    rng: Generator, family: str, nodes: int = NODES, intervals: int = INTERVALS
) -> Course:
    """Draw a course of one of ``FAMILIES``, of at most N ``nodes``; intervals are minutes."""
    if family in CHAINS:
        chain = draw_markov(rng, family, nodes)
        return chain.course(SECONDS, chain.draw(rng, SECONDS, intervals))
    start, leave, join, blocks = REGIMES[family](rng, nodes, intervals)
    present, gone = start, np.zeros(intervals, np.uint64)
    joined = np.zeros(intervals, np.int16)
    for t in range(1, intervals):
        leaves = rng.random(present) < leave[t]
        if blocks[t] > 0 and present:
            # Machines of a rack or an offer tend to come, and so to leave, together.
            size = int(np.ceil(blocks[t] * present))
            first = int(rng.integers(present - size + 1))
            leaves[first : first + size] = True
        joined[t] = rng.binomial(nodes - present, join[t])
        leaving = np.flatnonzero(leaves)
        gone[t] = (np.uint64(1) << leaving.astype(np.uint64)).sum(dtype=np.uint64)
        present += int(joined[t]) - len(leaving)
    return Course.of_bits(start, joined, gone, nodes)


POOL_SEED = 2026
"""Seed of the numbered courses; the sets have another."""
COUNT = 720
"""Courses of the bank of a family, each a job of every measured model."""


def drawn_by(rng: Generator, family: str, model: str) -> Elastic:
    """Draw a job of one of ``FAMILIES`` and ``MEASURED``, named by the generator's state."""
    name = _name(family, model, word_of(rng))
    return job(model, draw_course(rng, family), name)


def numbered(number: int, family: str, model: str) -> Elastic:
    """Return a job by its number, from 0; the other arguments as of ``drawn_by``."""
    # Courses of the pool are stored, as generating one takes longer than reading it.
    course = _courses(family).of(number) if number < COUNT else generated_course(family, number)
    return job(model, course, _name(family, model, str(number)))


def of_bank(number: int, family: str, model: str) -> tuple[Elastic, KnownSamples]:
    """Return a job of the bank, and what is known of it; arguments as of ``numbered``."""
    row, column = bank(family)[number], MEASURED.index(model)
    known = KnownSamples(float(row["hindsight"][column]), float(row["fastest"][column]))
    return numbered(number, family, model), known


@lru_cache(maxsize=len(FAMILIES))
def bank(family: str) -> Bank:
    """Return the bank of a family."""
    return Bank(f"elastic-{family}", COUNT)


@lru_cache(maxsize=len(FAMILIES))
def _courses(family: str) -> Course:
    joined, gone = (bank(family).arrays[name] for name in ("joined", "gone"))
    return Course.of_bits(joined[:, 0], joined, gone.astype(np.uint64), NODES)


def generated_course(family: str, number: int) -> Course:
    """Generate the course of a number, which may be beyond the pool."""
    # Each course has a seed of its own, so any of them can be generated alone.
    seed = [POOL_SEED, FAMILIES.index(family), number]
    return draw_course(np.random.default_rng(seed), family)


def job(model: str, course: Course, name: str) -> Elastic:
    """Return a job of a measured model on a course, in which checkpoints can be chosen."""
    return Elastic(load_library(model), Recorded(name, course), name=name, checkpoints=True)


def _generated(name: str) -> Elastic:
    parts = name.split("/")
    if len(parts) == 3 and parts[0] in FAMILIES and parts[1] in MEASURED:
        family, model, which = parts
        if which.isdecimal() and len(which) < 10:
            return numbered(int(which), family, model)
        rng = generator_of(which)
        if rng is not None:
            return drawn_by(rng, family, model)
    like = _name(FAMILIES[0], MEASURED[0], "17")
    raise UnknownInstanceError(
        f"unknown problem {shown(f'elastic/{name}')}; drawn ones are called like {like}: "
        f"family ({', '.join(FAMILIES)}), model ({', '.join(MEASURED)}) and number"
    )


def _name(family: str, model: str, which: str) -> str:
    return f"elastic/{family}/{model}/{which}"


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of elastic problems; see ``SetKind``.

    The reference is what hindsight earns on the trace of the episode.
    """
    members = windows() if name == WINDOWS else elastic_rows(name)
    return SetKind(
        "ElasticPlan-v2",
        lambda name: [f"{name}/{member}" for member in members],
        load_elastic,
        lambda name: BestValue(1.0, 1.0, OPTIMUM),
        reference=_of_hindsight,
    )


def _of_hindsight(answer: Answer) -> float:
    # Hindsight may write checkpoints, as the environment's actions can.
    problem = replace(answer.problem, checkpoints=True)
    course = problem.drawn(answer.plan.seed)
    return float(cost_of(problem.seconds * len(course), known_samples(problem, course).best))
