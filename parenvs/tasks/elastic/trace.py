"""Traces of nodes that join and leave a cluster, and their two forms of file.

The one form is ``seconds,event,node``: events are ``add`` or ``remove``, nodes have names. The
other is ``seconds,nodes``: how many there are from then on. Which nodes leave is known of the first
form; of the second it is drawn, all nodes alike.
"""

from __future__ import annotations

import csv
import math
import os
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from parenvs.errors import ParenvsError, shown
from parenvs.tasks.elastic.course import MAX_INTERVALS, MAX_NODES, Course, Source

EVENT_HEAD = ("seconds", "event", "node")
COUNT_HEAD = ("seconds", "nodes")
"""Heads of the two forms."""
MOST_BYTES = 16 << 20
"""Size of the largest file that is read."""


@dataclass(frozen=True)
class Trace(Source):
    """Joins and departures of nodes over time.

    Attributes:
        name: name or path.
        events: (seconds, nodes that leave, nodes that come, names of both or None), by time; the
            names are those of the leaving and of the coming nodes.
        most: nodes that are there at the same time at most.
    """

    name: str
    events: tuple[tuple[float, tuple[str, ...] | int, tuple[str, ...] | int], ...]
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

    def course(self, seconds: float, uniform: np.ndarray | None = None) -> Course:
        """Return the course in intervals of a length.

        Args:
            seconds: length of an interval.
            uniform: (S, most) numbers in [0, 1) that choose the nodes that leave, for traces whose
                nodes have no names.
        """
        count = self.intervals(seconds)
        nodes, joined, left = np.zeros((3, count), dtype=np.int16)
        lost = np.zeros((count, self.most + 1), dtype=np.int8)
        alive: list[str] = []  # by age
        anonymous = 0
        slots = [math.ceil(event[0] / seconds) for event in self.events]
        for slot, group in groupby(zip(slots, self.events, strict=True), key=lambda pair: pair[0]):
            if slot == count:  # the end of the trace, within its last interval
                break
            before, gone = list(alive), set[str]()
            for _, (_, leaving, coming) in group:
                if isinstance(leaving, tuple) and isinstance(coming, tuple):
                    alive = [name for name in alive if name not in leaving]
                    gone.update(leaving)
                    alive.extend(coming)
                    continue
                assert uniform is not None
                assert isinstance(leaving, int)
                assert isinstance(coming, int)
                # The numbers of an interval are used from the first on, one for each departure.
                for _ in range(leaving):
                    draw = uniform[slot, len(gone) % self.most]
                    gone.add(alive.pop(int(draw * len(alive))))
                alive.extend(str(anonymous + i) for i in range(coming))
                anonymous += coming
            out = np.array([name in gone for name in before], dtype=np.int8).cumsum()
            total = int(out[-1]) if before else 0
            nodes[slot:], left[slot] = len(alive), total
            joined[slot] = len(alive) - len(before) + total
            lost[slot, 1 : len(before) + 1] = out
            lost[slot, len(before) + 1 :] = total
        return Course(nodes, joined, left, lost)


def read_trace(path: str | os.PathLike[str], name: str | None = None) -> Trace:
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
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ParenvsError(f"{where}: not a trace ({reason})") from None
    try:
        rows = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise ParenvsError(f"{where}: not a CSV file ({error})") from None
    head = tuple(cell.strip() for cell in rows[0]) if rows else ()
    if head not in (EVENT_HEAD, COUNT_HEAD):
        raise ParenvsError(
            f"{where}: the first line must be {','.join(EVENT_HEAD)!r} or {','.join(COUNT_HEAD)!r}, not "
            f"{shown(','.join(head))}"
        )
    reader = _named if head == EVENT_HEAD else _counted
    events, max_nodes = reader(
        where, [(i, row) for i, row in enumerate(rows[1:], 2) if row], len(head)
    )
    if not events or not max_nodes:
        raise ParenvsError(f"{where}: no node ever joins; a trace needs one")
    return Trace(name or where, tuple(events), max_nodes)


def _named(where: str, rows: list[tuple[int, list[str]]], width: int) -> tuple[list, int]:
    """Return the events of the first form, those of the same second together, and most nodes."""
    present: set[str] = set()
    events: list[tuple[float, list[str], list[str]]] = []
    max_nodes = 0
    for line, row in rows:
        where_line = f"{where}: line {line}"
        seconds = _seconds(where_line, row, width, events[-1][0] if events else 0.0)
        kind, node = row[1].strip(), row[2].strip()
        if kind not in ("add", "remove"):
            raise ParenvsError(f"{where_line}: 'event' must be add or remove, not {shown(kind)}")
        if not node or len(node) > 200:
            raise ParenvsError(f"{where_line}: 'node' must be a name, not {shown(node)}")
        if (kind == "add") == (node in present):
            state = "is there already" if kind == "add" else "is not there"
            raise ParenvsError(f"{where_line}: 'node' {shown(node)} {state}; remove the line")
        # A departure after a join of the same second is an event of its own.
        if not events or events[-1][0] != seconds or (kind == "remove" and events[-1][2]):
            events.append((seconds, [], []))
        (events[-1][2] if kind == "add" else events[-1][1]).append(node)
        (present.add if kind == "add" else present.remove)(node)
        max_nodes = max(max_nodes, _bounded(where_line, len(present)))
    return [(second, tuple(out), tuple(come)) for second, out, come in events], max_nodes


def _counted(where: str, rows: list[tuple[int, list[str]]], width: int) -> tuple[list, int]:
    """Return the events of the second form, and most nodes; the last row stays the end."""
    events: list[tuple[float, int, int]] = []
    now = max_nodes = 0
    for line, row in rows:
        where_line = f"{where}: line {line}"
        seconds = _seconds(where_line, row, width, events[-1][0] if events else 0.0)
        text = row[1].strip()
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise ParenvsError(f"{where_line}: 'nodes' must be a whole number, not {shown(text)}")
        count = _bounded(where_line, int(text))
        events.append((seconds, max(now - count, 0), max(count - now, 0)))
        now, max_nodes = count, max(max_nodes, count)
    return events, max_nodes


def _seconds(where: str, row: list[str], width: int, before: float) -> float:
    """Return the time of a row, which does not go back.

    Raises:
        ParenvsError: it does, or the row has another number of fields.
    """
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


def _bounded(where: str, count: int) -> int:
    """Return a number of nodes.

    Raises:
        ParenvsError: there are more than ``MAX_NODES``.
    """
    if count > MAX_NODES:
        raise ParenvsError(f"{where}: {count:,} nodes at a time, more than {MAX_NODES}")
    return count
