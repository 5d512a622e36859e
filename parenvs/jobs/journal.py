"""What happened to a job, written down line by line, so that a driver that was killed goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from parenvs.core.task import option
from parenvs.errors import ParenvsError, shown
from parenvs.fields import Count, Index, Number, number, one_of, read, whole
from parenvs.files import read_object, remove_leftovers, write_text
from parenvs.tasks.elastic.task import POLICIES

_Kind = TypeVar("_Kind")
JOB, INTERVALS, STEPS = "job.json", "intervals.jsonl", "steps.jsonl"
SCHEMA = 1
SHORTEST = 1e-9
"""Seconds of a step at least, and its inverse at most."""
UNCHANGED, STARTED, MOVED, LOADED = WAYS = ("none", "start", "move", "checkpoint")
"""Where the state of a plan came from: nothing changed, initial values, other processes, the disk.
"""


@dataclass(frozen=True)
class Job:
    """A job; the fields with help are options of ``parenvs elastic run``.

    Attributes:
        source: ``FILE.py:NAME``, see ``Model.made``.
    """

    panel: ClassVar[str] = "the job"

    trace: str
    source: str
    policy: str = option(
        "fastest",
        "Policy: a rule, parcae, learned, an .npz file, or a folder of parenvs train.",
        complete=(*POLICIES, "learned"),
        main=True,
    )
    processes: Count = option(8, "Processes at a time, at most, each a node.", main=True)
    devices: Count = option(1, "Devices of a node, each a process.")
    batch: Count = option(24, "Samples of a step.", main=True)
    interval: float = option(60.0, "Seconds between two decisions, of the trace.")
    speed: float = option(12.0, "Seconds of the trace in one second here.")
    steps: Count | None = option(
        None, "Steps of an interval, in place of its seconds.", "interval-steps"
    )
    step_seconds: float | None = option(
        None, "Seconds of a step on one node (default: as measured)."
    )
    notice: bool = option(False, "Nodes leave at a step's end (default: in its middle).")
    cluster: str | None = option(
        None, "Cluster that nodes stand for, as 8x1:v100 (default: cores)."
    )
    every: Count = option(10, "Intervals between two checkpoints.")
    seed: Index = option(0, "Seed of everything random.")


@dataclass(frozen=True)
class Step:
    """A step that counts.

    Attributes:
        step: its number, from 0.
    """

    step: Index
    interval: Index
    loss: Annotated[float, number(-1e300, 1e300, "a number")]
    ids: list[int]
    seconds: Number


@dataclass
class Interval:
    """What happened in an interval.

    Attributes:
        event: what had happened to the one before, see ``library.EVENTS``.
        way: one of ``WAYS``.
        seconds: from the end of the one before to its own.
        sent: bytes that processes sent to each other for it.
        busiest: bytes that the node sent that sent most, to other nodes.
        priced: the same by the formula of the movement, of the nodes that were left.
        lost: steps that were lost at its beginning, and were trained again.
        saved: whether a checkpoint was written at its end.
    """

    interval: Index
    nodes: Index
    plan: Index = 0
    event: Index = 0
    since: Index = 0
    way: Annotated[str, one_of(*WAYS)] = UNCHANGED
    seconds: Number = 0.0
    change_seconds: Number = 0.0
    sent: Annotated[int, whole(0, 2**62)] = 0
    busiest: Annotated[int, whole(0, 2**62)] = 0
    priced: Number = 0.0
    steps: Index = 0
    trained: Index = 0
    lost: Index = 0
    saved: bool = False


@dataclass
class Journal:
    """What happened so far, in two files of a folder, a line of JSON for each step and interval.

    Attributes:
        measured: seconds of a step of one node.
        tracing: seconds of a core to trace and cut the module.
        steps: by number; one that was trained again counts as it was the last time.
    """

    folder: Path
    measured: float
    tracing: float
    intervals: list[Interval] = field(default_factory=list)
    steps: dict[int, Step] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, about: dict[str, Any]) -> Journal:
        """Return the journal of a folder, of the same job; it is begun if there is none.

        Args:
            folder: of the job.
            about: what makes the job; of what is there already, these fields have to be the same.

        Raises:
            ParenvsError: the folder is of another job, or a line is none of a journal.
        """
        path = folder / JOB
        if path.exists():
            stored = {**read_object(str(path), SCHEMA)}
            for key, value in about.items():
                if stored.get(key) != value:
                    raise ParenvsError(
                        f"{path}: field {key!r} is {shown(stored.get(key))}, and this job has "
                        f"{shown(value)}; give another --out, or the same job to go on with it"
                    )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            stored = {"schema": SCHEMA, **about}
            write_text(path, json.dumps(stored) + "\n")
        times = read(_Measured, {x.name: stored.get(x.name) for x in fields(_Measured)}, str(path))
        steps = {row.step: row for row in _rows(folder / STEPS, Step)}
        journal = cls(
            folder, times.measured, times.tracing, _rows(folder / INTERVALS, Interval), steps
        )
        for t, row in enumerate(journal.intervals):
            if row.interval != t:
                raise ParenvsError(
                    f"{folder / INTERVALS}: line {t + 1}: field 'interval' is {row.interval}, not "
                    f"{t}; give another --out"
                )
        for k in range(journal._last):
            if k not in steps:
                raise ParenvsError(f"{folder / STEPS}: has no step {k}; give another --out")
        return journal

    @staticmethod
    def is_new(folder: Path) -> bool:
        """Return whether a folder has no job yet.

        Raises:
            ParenvsError: it has something else.
        """
        if (folder / JOB).exists():
            return False
        if folder.is_dir():
            remove_leftovers(folder)  # of a process that ended before it could begin
        if folder.exists() and any(folder.iterdir()):
            raise ParenvsError(f"{folder}: is there and holds no job; give another --out")
        return True

    def add(self, row: Step | Interval) -> None:
        """Write a step or an interval down."""
        if isinstance(row, Step):
            self.steps[row.step], name = row, STEPS
        else:
            self.intervals.append(row)
            name = INTERVALS
        with (self.folder / name).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(row)) + "\n")

    @property
    def _last(self) -> int:
        return self.intervals[-1].steps if self.intervals else 0

    @property
    def trained(self) -> list[Step]:
        """The steps that count, in their order."""
        return [self.steps[k] for k in range(self._last)]


@dataclass
class _Measured:
    measured: Annotated[float, number(SHORTEST, 1 / SHORTEST, "seconds from 1e-9 to 1e9")]
    tracing: Number


def _rows(path: Path, kind: type[_Kind]) -> list[_Kind]:
    """The lines of a file; a last one that a kill cut off is removed."""
    if not path.exists():
        return []
    try:
        text = path.read_bytes().decode()
        whole_lines = text[: text.rfind("\n") + 1]
        if whole_lines != text:
            write_text(path, whole_lines)
        lines = [json.loads(line) for line in whole_lines.splitlines()]
    except (ValueError, RecursionError):
        raise ParenvsError(f"{path}: a line is not JSON; give another --out") from None
    return [read(kind, line, f"{path}: line {k}") for k, line in enumerate(lines, 1)]
