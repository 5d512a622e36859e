"""Measurements: a registry of functions that give rows, their runner, and the pages that show them.

A measurement is a function of options. Without a key it returns its data, or yields rows, as rows
or as pairs of a part and a row; they go to ``NAME.json``. With one it gives cases: what tells a row
from others, and what measures the rest of it. Each row goes to ``NAME.jsonl`` as soon as it is
there, and a case whose row is there is not measured again. ``NAME.md`` is made of what the files
hold, so that it can be made anew without measuring. Rows, files and pages say of which commit of
the code they are, rows and files also by which options and what processor time they took; what is
older says ``not recorded``.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from parenvs.bench import page as pages
from parenvs.bench.page import Row
from parenvs.bench.runs import KeyOf, Rows, run_all
from parenvs.errors import ParenvsError
from parenvs.files import locked, write_text
from parenvs.machine import NOT_RECORDED, commit

Case = tuple[Row, Callable[[], Row]]
"""What tells a row from others, and a function that measures the rest of it."""
Page = Sequence[str] | Mapping[str, Sequence[str]]
"""Sections of the page, or of several by the names of their files."""
Say = Callable[[str], object]
RENDER = "--render-only"
_TOOK = "processor seconds of the case"
HEAD = ("command", "machine", "made")
"""Fields of ``NAME.json`` beside the data."""
MEASUREMENTS: dict[str, Measurement] = {}
"""All measurements that were imported, by name."""


def progress(text: str) -> None:
    """Say something to the person who waits; it is not part of the output."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Measurement:
    """A function that measures, and what shows what it found.

    Attributes:
        name: of its files.
        measure: takes options, and what it names of ``rows`` (those there are), ``folder``,
            ``again`` and ``say``.
        key_of: gives what tells a row from others; None if it has no cases.
        title: heading of its page; further pages add what their names have besides (default: the
            name).
        about: option -> what it is.
        among: option -> its choices.
        positional: options that are given without their name.
        line: what is said of a row that is there (default: what tells it from others).
        wrong: what is wrong in the data; if there is something, the exit status is 1.
        derived: whether its data are made of other files in no time, and not kept.
    """

    name: str
    measure: Callable[..., Any]
    key_of: KeyOf | None = None
    title: str | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    among: Mapping[str, Iterable[str]] = field(default_factory=dict)
    positional: Sequence[str] = ()
    line: Callable[[Row], str] | None = None
    wrong: Callable[[Any], object] | None = None
    derived: bool = False
    _page: Callable[..., Page] | None = None
    _took: float | None = None
    _pictures: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def page(self, function: Callable[..., Page]) -> Callable[..., Page]:
        """Take a function of data, and of the options that it names, which gives the page."""
        self._page = function
        return function

    def picture(self, name: str | None = None) -> Callable[..., Any]:
        """Take a function of data and options that draws ``NAME.png``; None if there is nothing."""

        def take(function: Callable[..., Any]) -> Callable[..., Any]:
            self._pictures[name or self.name] = function
            return function

        return take

    def run(
        self,
        folder: Path,
        options: Mapping[str, Any],
        render: bool = False,
        again: bool = False,
        jobs: int = 1,
        engine: str = "local",
        address: str | None = None,
        say: Say = progress,
    ) -> Any:
        """Measure, or read, what the page shows.

        Args:
            folder: of the files.
            options: of the measurement.
            render: whether to read alone.
            again: whether to measure cases whose rows are there, too.
            jobs: processes.
            engine: as of ``run_all``.
            address: as of ``run_all``.
            say: takes a line for the person who waits.

        Returns:
            the data, as JSON types; of cases the rows.
        """
        if self.key_of is None:
            if render and not self.derived:
                return _read_json(folder / f"{self.name}.json")
            given = self._chosen(self.measure, options, folder=folder, say=say)
            begin = _spent()
            data = plain(_collected(self.measure(**given), say))
            self._took = _spent() - begin
            return data
        path = folder / f"{self.name}.jsonl"
        with locked(path, beside=True):
            rows = Rows(path, self.key_of)
            given = {"rows": rows, "folder": folder, "again": again}
            cases = self.measure(**self._chosen(self.measure, options, **given))
            listed = isinstance(cases, Sequence)
            if listed:
                done = sum(key in rows for key, _ in cases)
                say(f"{len(cases)} runs, of which {done} are in {path}")
            if not render:
                made = {"commit": commit(), "settings": settings(options)}
                self._fill(rows, cases, made, again, jobs, say, engine, address)
            result = [rows[key] for key, _ in cases if key in rows] if listed else list(rows)
        if not result:
            raise ParenvsError(f"{path}: no such run yet; leave out {RENDER}")
        return result

    def _fill(
        self, rows: Rows, cases: Iterable[Case], made: Row, again: bool, jobs: int, say: Say,
        *where: Any,
    ) -> None:  # fmt: skip
        """Measure the cases whose rows are not there."""
        missing: Iterable[Case] = (case for case in cases if again or case[0] not in rows)
        of = ""
        if isinstance(cases, Sequence):
            missing = list(missing)
            of = f"/{len(missing)}"
        try:
            for number, row in enumerate(run_all(_measured, missing, jobs, *where), 1):
                took = {"processor_seconds": row.pop(_TOOK)}
                rows.add(plain({**row, "jobs": jobs, "made": {**made, **took}}))
                say(f"{number}{of} {(self.line or self._line)(row)}")
        except KeyboardInterrupt:
            raise ParenvsError(f"interrupted; the same command continues {rows.path}") from None

    def _line(self, row: Row) -> str:
        assert self.key_of is not None
        return " ".join(str(value) for value in self.key_of(row) if value not in ("", None))

    def shown(
        self, data: Any, folder: Path, options: Mapping[str, Any], command: str, machine: str
    ) -> dict[str, str]:
        """The pages by name.

        Args:
            data: what ``run`` returned.
            folder: of the files.
            options: of the measurement.
            command: what makes the pages.
            machine: where it was measured.
        """
        assert self._page is not None
        found = self._page(data, **self._chosen(self._page, options, folder=folder))
        by_name = found if isinstance(found, Mapping) else {self.name: found}
        return {
            name: pages.page(self._heading(name), command, machine, sections)
            for name, sections in by_name.items()
        }

    def _heading(self, name: str) -> str:
        """The heading of one of the pages."""
        more = name.removeprefix(self.name).strip("_").replace("_", " ")
        if self.title is None:
            return name
        return f"{self.title}: {more}" if more else self.title

    def publish(
        self, data: Any, folder: Path, options: Mapping[str, Any], command: str,
        machine: str | None = None, render: bool = False,
    ) -> str:  # fmt: skip
        """Write the pages, the pictures, and data without a key; returns the first page.

        Args:
            data: what ``run`` returned.
            folder: where they go.
            options: of the measurement.
            command: what makes the pages.
            machine: what the page says of the machine and the commit (default: this machine and
                the commits of the data; if empty, those alone).
            render: whether the data were read: the file that holds them stays.
        """
        if not machine:
            here = pages.host() if machine is None else ""
            machine = "; ".join(filter(None, (here, self.commits(data))))
        shown = self.shown(data, folder, options, command, machine)
        with locked(folder / f"{self.name}.md", beside=True, wait=60):  # they belong together
            if self.key_of is None and not self.derived and not render:
                content = self.content(data, command, machine, options)
                write_text(
                    folder / f"{next(iter(shown))}.json", json.dumps(content, indent=1) + "\n"
                )
            for name, text in shown.items():
                write_text(folder / f"{name}.md", text)
            for name, draw in self._pictures.items():
                from parenvs.view.page import write

                given = self._chosen(draw, options, folder=folder)
                write(folder / f"{name}.png", partial(draw, data, **given))
        return next(iter(shown.values()))

    def commits(self, data: Any) -> str:
        """Of which commits data are that were just measured, and rows that were there before."""
        if self.key_of is None:
            parts = data.values() if isinstance(data, dict) else [data]
            lists = [part for part in parts if isinstance(part, list)]
            data = [row for part in lists for row in part if "made" in row]
            if not data:
                return f"commit {commit()}"
        found = Counter(row.get("made", {}).get("commit", NOT_RECORDED) for row in data)
        if len(found) == 1:
            return f"commit {next(iter(found))}"
        return "commits " + ", ".join(f"{name} ({n:,} rows)" for name, n in found.items())

    def content(
        self, data: Any, command: str, machine: str, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What ``NAME.json`` holds."""
        parts = data if isinstance(data, dict) else {"data": data}
        made: Row = {"commit": commit(), "settings": settings(options)}
        if self._took is not None:
            made["processor_seconds"] = self._took
        return {"command": command, "machine": machine, "made": made, **parts}

    @staticmethod
    def _chosen(function: Any, options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The options that a function names."""
        known = {**options, **more}
        return {
            name: known[name] for name in inspect.signature(function).parameters if name in known
        }


def measurement(
    key: str | KeyOf | None = None, title: str | None = None, **more: Any
) -> Callable[[Callable[..., Any]], Measurement]:
    """Register a function as the measurement of its name.

    Args:
        key: the fields that tell a row from others, in one text, or a function of the row.
        title: heading of the pages.
        more: other attributes of ``Measurement``.
    """

    def register(function: Callable[..., Any]) -> Measurement:
        name = function.__name__.rstrip("_")
        MEASUREMENTS[name] = Measurement(name, function, _key_of(key), title, **more)
        return MEASUREMENTS[name]

    return register


def settings(options: Mapping[str, Any]) -> Row:
    """Options that are numbers, texts or lists of them; of absolute paths the names alone."""
    found = {}
    for name, value in options.items():
        parts = value if isinstance(value, (tuple, list)) else [value]
        if all(part is None or isinstance(part, (bool, int, float, str, Path)) for part in parts):
            words = [
                (x.name if x.is_absolute() else str(x)) if isinstance(x, Path) else x for x in parts
            ]
            found[name] = words if isinstance(value, (tuple, list)) else words[0]
    return found


def plain(value: Any) -> Any:
    """Data as JSON types, as they are read from a file."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _key_of(key: str | KeyOf | None) -> KeyOf | None:
    if not isinstance(key, str):
        return key
    names = key.split()
    return lambda row: tuple(row[name] for name in names)


def _measured(case: Case) -> Row:
    """The row of a case."""
    key, measure = case
    begin = _spent()
    row = {**key, **measure()}
    return {**row, _TOOK: _spent() - begin}


def _spent() -> float:
    """Seconds of processors that this process and its ended children took."""
    return sum(os.times()[:4])


def _collected(data: Any, say: Say) -> Any:
    """Data as they are, or yielded rows: a list, or lists by part."""
    if not isinstance(data, Iterator):
        return data
    parts: dict[str, list[Any]] = {}
    for one in data:
        part, row = one if isinstance(one, tuple) else ("", one)
        parts.setdefault(part, []).append(row)
        values = row.values() if isinstance(row, dict) else row
        words = [part, *(str(x) for x in values if isinstance(x, str | int))]
        say(" ".join(words).strip()[:100])
    return parts if set(parts) - {""} else parts.get("", [])


def _read_json(path: Path) -> Any:
    """The data of a file."""
    if not path.exists():
        raise ParenvsError(f"{path}: no such run yet; leave out {RENDER}")
    content = json.loads(path.read_text(encoding="utf-8"))
    data = {key: value for key, value in content.items() if key not in HEAD}
    return data.get("data", data)
