"""Measurements: functions that give rows, their command line, their files and the text they print.

    @measurement(key="problem seed")
    def searches(seeds: int = 5, limit: float = 1.0) -> Iterator[Case]:
        for seed in range(seeds):
            yield {"problem": "t5-3b", "seed": seed}, partial(search, "t5-3b", seed, limit)

    @searches.page
    def page(rows: list[Row]) -> list[str]:
        return ["Best of one second.", columns(rows, [("problem", "{problem}"), ...])]

    if __name__ == "__main__":
        main(searches)

``python benchmarks/searches.py --seeds 3`` measures what is missing in ``results/searches.jsonl``
and prints the page. A measurement without a key returns its data, which go to ``searches.json``.
Both files hold the command and the machine, and rows the commit and the options they were made
with. ``benchmarks/pages.py`` puts the pages into README and ``docs/results``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import multiprocessing
import os
import re
import shlex
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from string import Formatter
from time import process_time
from typing import Any, get_args, get_origin, get_type_hints
from unittest.mock import patch

from parenvs.errors import ParenvsError
from parenvs.files import write_text
from parenvs.machine import commit, cores, counted, processor, versions
from parenvs.markdown import table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]
"""Figures that were measured together, as JSON types."""
Case = tuple[Row, Callable[[], Row]]
"""The key of a row, and a function that measures the rest of it."""
Column = tuple[str, "str | Callable[[Any], object]"]
"""Title of a column, and its content: a template (see ``cell``), or a function of the row."""
HEAD = ("command", "machine", "made")
"""Fields of a ``.json`` file beside its data."""


def progress(text: str) -> None:
    """Print a line to the error stream; it is not part of the output."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Measurement:
    """A function that measures, and the page of its results.

    Attributes:
        name: of its file.
        measure: takes options; also ``known``, the rows that exist, if it names them.
        key: fields that tell a row from others; empty if it has no cases.
        title: heading of its page.
        about: option -> help.
        among: option -> its choices.
        positional: options that are given without their name.
        wrong: what is wrong in the data; if there is something, the exit status is 1.
        derived: whether its data are made of other files in no time, and not kept.
    """

    name: str
    measure: Callable[..., Any]
    key: tuple[str, ...] = ()
    title: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    among: Mapping[str, Iterable[str]] = field(default_factory=dict)
    positional: Sequence[str] = ()
    wrong: Callable[[Any], object] | None = None
    derived: bool = False
    _page: Callable[[Any], Sequence[str]] | None = None

    def page(self, function: Callable[[Any], Sequence[str]]) -> Callable[[Any], Sequence[str]]:
        """Register the function that makes sections of Markdown from the data."""
        self._page = function
        return function

    def run(
        self, words: str, options: Mapping[str, Any], out: Path, again: bool = False, jobs: int = 1
    ) -> Any:
        """Measure what is missing, write the file, return its data.

        Args:
            words: the command.
            options: of the measurement.
            out: folder of the file.
            again: whether to measure existing rows, too.
            jobs: processes.
        """
        begin = process_time()
        if not self.key:
            data = plain(_collected(self.measure(**options)))
            if not self.derived:
                parts = data if isinstance(data, dict) else {"data": data}
                made = {"commit": commit(), "processor_seconds": process_time() - begin}
                content = {"command": words, "machine": host(), "made": made, **parts}
                write_text(out / f"{self.name}.json", json.dumps(content, indent=1) + "\n")
            return data
        path = out / f"{self.name}.jsonl"
        known = {self._key(row): row for row in read_rows(path)}
        if "known" in inspect.signature(self.measure).parameters:
            options = {**options, "known": list(known.values())}
        missing = (
            case for case in self.measure(**options) if again or self._key(case[0]) not in known
        )
        made = {"commit": commit(), "settings": _settings(options)}
        head = {"command": self.command(out) if known else words, "machine": host()}
        for number, (row, seconds) in enumerate(_measured_all(missing, jobs), 1):
            row = plain({**row, "made": {**made, "processor_seconds": seconds}})
            known[self._key(row)] = row
            lines = [json.dumps(line) for line in (head, *known.values())]
            write_text(path, "\n".join(lines) + "\n")
            progress(f"{number} {' '.join(map(str, self._key(row)))}")
        return list(known.values())

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self.key)

    def read(self, out: Path = RESULTS) -> Any:
        """Return the data of the file.

        Raises:
            FileNotFoundError: nothing was measured yet.
        """
        if self.derived:
            return plain(_collected(self.measure()))
        if self.key:
            return read_rows(out / f"{self.name}.jsonl", must_exist=True)
        content = json.loads((out / f"{self.name}.json").read_text(encoding="utf-8"))
        data = {key: value for key, value in content.items() if key not in HEAD}
        return data.get("data", data)

    def command(self, out: Path = RESULTS) -> str:
        """Return the command that made the file."""
        if self.derived:
            return f"python benchmarks/{self.name}.py"
        path = out / f"{self.name}.json{'l' * bool(self.key)}"
        text = path.read_text(encoding="utf-8")
        head = json.loads(text.partition("\n")[0] if self.key else text)
        return str(head["command"])

    def sections(self, data: Any) -> list[str]:
        """Return the sections of the page."""
        assert self._page is not None
        return list(self._page(data))


def measurement(
    key: str = "", title: str = "", **more: Any
) -> Callable[[Callable[..., Any]], Measurement]:
    """Make the measurement of a function, by its name.

    Args:
        key: the fields that tell a row from others, with spaces.
        title: heading of the page.
        more: other attributes of ``Measurement``.
    """

    def register(function: Callable[..., Any]) -> Measurement:
        name = function.__name__.rstrip("_")
        return Measurement(name, function, tuple(key.split()), title or name, **more)

    return register


def read_rows(path: Path, must_exist: bool = False) -> list[Row]:
    """Return the rows of a ``.jsonl`` file, without its first line, the head."""
    if not path.exists() and not must_exist:
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "command" not in row or "machine" not in row]


def host() -> str:
    """Return the processor, its cores, and the versions that change times."""
    installed = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"{processor()}, {counted(cores())}; {installed}"


def main(measured: Measurement) -> None:
    """Run the command line of a measurement: measure what is missing, print the page."""
    given = vars(parser(measured).parse_args())
    keyed = {key: given.pop(key) for key in ("again", "jobs") if key in given}
    words = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    out, as_json = given.pop("out"), given.pop("json", False)
    try:
        if as_json:
            print(json.dumps(plain(_collected(measured.measure(**given))), indent=1))
            return
        data = measured.run(words, given, out, **keyed)
        print("\n\n".join([f"# {measured.title}", *measured.sections(data)]))
    except ParenvsError as error:
        sys.exit(f"{measured.name}: {error}")
    sys.exit(int(bool(measured.wrong and measured.wrong(data))))


def parser(measured: Measurement) -> argparse.ArgumentParser:
    """Return the parser of the options that a measurement names, and of those that all have."""
    module = sys.modules[measured.measure.__module__]
    result = argparse.ArgumentParser(
        description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    hints = get_type_hints(measured.measure)
    for name, parameter in inspect.signature(measured.measure).parameters.items():
        if name != "known":
            flag = name if name in measured.positional else f"--{name.replace('_', '-')}"
            result.add_argument(flag, **_argument(measured, name, hints[name], parameter.default))
    result.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    if measured.key:
        result.add_argument("--again", action="store_true", help="measure existing rows anew")
        result.add_argument("--jobs", type=int, default=1, help="processes")
    else:
        result.add_argument("--json", action="store_true", help="print the data, write no file")
    return result


def _argument(measured: Measurement, name: str, hint: Any, default: Any) -> dict[str, Any]:
    """Return what argparse needs of an option."""
    if hint is bool:
        return {"action": "store_true", "help": measured.about.get(name)}
    more: dict[str, Any] = {"default": default, "help": measured.about.get(name)}
    if get_origin(hint) is types.UnionType:  # of something and None
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    if get_origin(hint) is tuple:
        hint, more["nargs"] = get_args(hint)[0], "*"
    if name in measured.positional:
        more.setdefault("nargs", "?")
    if name in measured.among:
        more["choices"] = list(measured.among[name])
    return {**more, "type": hint}


def columns(
    rows: Iterable[Mapping[str, Any]], shown: Sequence[Column], left: int | Sequence[int] = 1
) -> str:
    """Return a table with a line for each row; ``left`` as of ``markdown.table``."""
    lines = [[cell(content, row) for _, content in shown] for row in rows]
    return table([title for title, _ in shown], lines, left)


def cell(shown: str | Callable[[Any], object], row: Mapping[str, Any]) -> object:
    """Return the content of a cell.

    Args:
        shown: a function of the row, or a template of ``str.format`` with the row's fields:
            ``"{plan[seconds]:.2f}"``. None, NaN and missing fields are empty, ``:.1%`` has a space
            before the sign, and a factor may follow: ``:.1f*1e3``, ``:.1f/1e9``.
        row: the row.
    """
    return shown(row) if callable(shown) else _Form().vformat(shown, (), row)


def percent(share: float | None, digits: int = 2) -> str:
    """Return a share as per cent; empty if it is None or NaN."""
    if share is None or math.isnan(share):
        return ""
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"  # + 0.0: no minus before a zero


class _Form(Formatter):
    """The templates of ``cell``."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        try:
            return super().get_field(field_name, args, kwargs)
        except (KeyError, IndexError, TypeError):
            return None, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        match = re.fullmatch(r"(.*?)(?:([*/])([\d.e]+))?", format_spec)
        assert match is not None
        form, sign, factor = match.groups()
        if sign:
            value = value * float(factor) if sign == "*" else value / float(factor)
        if form.endswith("%"):
            return percent(value, int(form[1:-1]))
        return format(value, form)


def plain(value: Any) -> Any:
    """Return data as JSON types, as they are read from a file."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _settings(options: Mapping[str, Any]) -> Row:
    """Return the options that JSON can hold; of absolute paths the names alone."""
    options = {key: value for key, value in options.items() if key != "known"}
    return {key: x.name if isinstance(x, Path) else plain(x) for key, x in options.items()}


def _collected(data: Any) -> Any:
    """Return data, or a list of the rows that were yielded."""
    return list(data) if isinstance(data, Iterator) else data


def _measured_all(cases: Iterable[Case], jobs: int) -> Iterator[tuple[Row, float]]:
    """Yield the rows of cases, and the processor seconds that each took."""
    if jobs == 1:
        yield from map(_measured, cases)
        return
    # Spawned, as torch's threads do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_measured, cases)


def _measured(case: Case) -> tuple[Row, float]:
    key, measure = case
    begin = sum(os.times()[:4])  # of ended children, too
    return {**key, **measure()}, sum(os.times()[:4]) - begin


@contextmanager
def spent(row: Row, key: str = "seconds", clock: Callable[[], float] = process_time) -> Iterator:
    """Put the seconds that a block takes into a row."""
    begin = clock()
    yield
    row[key] = clock() - begin


def processor_clock() -> AbstractContextManager:
    """Let limits of searches count processor seconds: other work on the machine changes nothing."""
    return patch("time.perf_counter", process_time)


def forked(work: Callable[[], Row]) -> Row:
    """Return what ``work`` returns in a copy of this process, whose memory holds nothing else."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            with os.fdopen(writer, "w") as stream:
                stream.write(json.dumps(plain(work())))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.wait()
    if not text:
        raise SystemExit("the process of a case failed")
    return json.loads(text)
