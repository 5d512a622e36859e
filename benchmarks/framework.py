"""What every script shares: its command line, made of the options of its measurement, and helpers.

    @measurement(key="problem seed")
    def searches(seeds: int = 5, limit: float = 1.0) -> Iterator[Case]:
        for seed in range(seeds):
            yield {"problem": "t5-3b", "seed": seed}, partial(search, "t5-3b", seed, limit)

    @searches.page
    def page(rows: list[Row], limit: float) -> list[str]:
        return [f"Within {limit:g} s.", columns(rows, [("problem", "{problem}"), ...])]

    if __name__ == "__main__":
        main(searches)

``python benchmarks/searches.py --seeds 3`` then measures what is missing in ``searches.jsonl`` and
writes ``searches.md``; ``--render-only`` writes the page anew. See ``parenvs.bench.measurement``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import shlex
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from time import process_time
from typing import Any, get_args, get_origin, get_type_hints
from unittest.mock import patch

from parenvs.bench.measurement import (
    MEASUREMENTS,
    RENDER,
    Case,
    Measurement,
    Page,
    Row,
    measurement,
    plain,
    progress,
)
from parenvs.bench.page import Column, cell, columns, percent
from parenvs.bench.runs import Rows
from parenvs.errors import ParenvsError
from parenvs.markdown import table
from parenvs.shipped import PAPER as INSTANCES

__all__ = (
    "INSTANCES",
    "ROOT",
    "Case",
    "Column",
    "Measurement",
    "Page",
    "Row",
    "Rows",
    "apart",
    "cell",
    "columns",
    "forked",
    "main",
    "measurement",
    "numbers",
    "parser",
    "percent",
    "plain",
    "progress",
    "spent",
    "table",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
SCRIPT = "python benchmarks/"
MADE = 4
"""Line of a page that says on which machine and of which commit it was made."""
GIVEN = ("rows", "folder", "again", "say")
"""Parameters of a measurement that are no options."""


def main(measured: Measurement) -> None:
    """Run the command line of a measurement."""
    try:
        sys.exit(run(measured, sys.argv[1:]))
    except ParenvsError as error:
        sys.exit(f"{measured.name}: {error}")


def run(measured: Measurement, words: list[str]) -> int:
    """Measure what is missing, print and write the page; returns the exit status."""
    given = vars(parser(measured).parse_args(words))
    folder, render = given["out"], given["render_only"]
    words, machine = _shown_words(words), None
    if render and (folder / f"{measured.name}.md").exists():
        # Whatever is not given is that of the page.
        lines = (folder / f"{measured.name}.md").read_text(encoding="utf-8").splitlines()
        words, machine = shlex.split(lines[2].strip("`"))[2:] + words, lines[MADE]
        given = vars(parser(measured).parse_args(words))
    keyed = ("again", "jobs") if measured.key_of is not None else ()
    common = {key: given.pop(key) for key in keyed}
    data = measured.run(folder, given, render, **common)
    command = shlex.join(["python", f"benchmarks/{measured.name}.py", *words])
    print(measured.publish(data, folder, given, command, machine, render), end="")
    return int(bool(measured.wrong and measured.wrong(data)))


def pages() -> dict[str, str]:
    """Name of every committed page that a script of this folder makes -> the script's command."""
    heads = {path.stem: path.read_text(encoding="utf-8") for path in sorted(RESULTS.glob("*.md"))}
    commands = {name: text.splitlines()[2].strip("`") for name, text in heads.items()}
    return {name: words for name, words in commands.items() if words.startswith(SCRIPT)}


def remade(name: str) -> str:
    """Return a page of ``RESULTS`` as today's script makes it of the rows there.

    Machine and commit stay those of the page.

    Raises:
        ModuleNotFoundError: the script needs a package that is not installed.
    """
    lines = (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    _, script, *words = shlex.split(lines[2].strip("`"))
    import_module(f"benchmarks.{Path(script).stem}")
    measured = MEASUREMENTS[Path(script).stem]
    options = vars(parser(measured).parse_args(words))
    data = measured.run(RESULTS, options, render=True, say=lambda _: None)
    return measured.shown(data, RESULTS, options, lines[2].strip("`"), lines[MADE])[name]


def _shown_words(words: list[str]) -> list[str]:
    """A command line without what makes no difference, and without places of this machine."""
    kept, places = [], iter(words)
    for word in places:
        if word == "--out":
            next(places)
        elif word not in (RENDER, "--again"):
            kept.append(Path(word).name if Path(word).is_absolute() else word)
    return kept


def parser(measured: Measurement) -> argparse.ArgumentParser:
    """The parser of the options that a measurement names, and of those that all have."""
    module = sys.modules[measured.measure.__module__]
    result = argparse.ArgumentParser(
        description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    hints = get_type_hints(measured.measure)
    for name, parameter in inspect.signature(measured.measure).parameters.items():
        if name not in GIVEN:
            flag = name if name in measured.positional else f"--{name.replace('_', '-')}"
            result.add_argument(flag, **_argument(measured, name, hints[name], parameter.default))
    result.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    result.add_argument(RENDER, action="store_true", help="write the page of what is there")
    if measured.key_of is not None:
        result.add_argument("--again", action="store_true", help="measure anew what is there")
        result.add_argument("--jobs", type=int, default=1, help="processes")
    return result


def _argument(measured: Measurement, name: str, hint: Any, default: Any) -> dict[str, Any]:
    """What argparse is told of an option."""
    if hint is bool:
        return {"action": "store_true", "help": measured.about.get(name)}
    more: dict[str, Any] = {"default": default, "help": measured.about.get(name)}
    if get_origin(hint) is types.UnionType:  # of something and None
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    if get_origin(hint) is tuple:
        hint, more["nargs"] = get_args(hint)[0], "*"
    if name in measured.positional:
        if default is inspect.Parameter.empty:
            del more["default"]
        else:
            more.setdefault("nargs", "?")
    if name in measured.among:
        more["choices"] = list(measured.among[name])
    return {**more, "type": hint}


def numbers(values: Any) -> str:
    """``(8, 16, 24)``, without the trailing comma of a single one; nothing of none."""
    return f"({', '.join(map(str, values))})" if len(values) else ""


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
    """What ``work`` returns in a copy of this process, whose memory is that of nothing else."""
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


def apart(
    work: Callable[..., Any], *arguments: Any, seconds: float | None = None, **environment: str
) -> Any:
    """What ``work`` returns in a fresh process.

    Args:
        work: the function.
        *arguments: its arguments.
        seconds: after which the process is stopped.
        **environment: more environment variables.

    Raises:
        ParenvsError: the process failed, or was stopped.
    """
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(writer, work, arguments))
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    writer.close()
    try:
        if reader.poll(seconds):
            return reader.recv()
        raise ParenvsError(f"{work.__name__} {arguments}: stopped after {seconds} s")
    except EOFError:
        raise ParenvsError(f"{work.__name__} {arguments}: the process failed") from None
    finally:
        process.terminate()
        process.join()


def _send(writer: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    writer.send(work(*arguments))
