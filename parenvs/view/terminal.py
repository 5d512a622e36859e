"""What commands take, print, draw and write, whatever the task."""

from __future__ import annotations

import errno
import functools
import json
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs import view
from parenvs.errors import InfeasibleError, ParenvsError, printable
from parenvs.view.words import WIDTH, printable_text

if TYPE_CHECKING:
    from rich.console import Console

    from parenvs.core.plan import Answer


class _Output:
    """Standard output for tables, as a console of rich, which is imported when it is first used.

    That nobody reads it is an error like any other. The variable ``NO_COLOR`` keeps it plain.
    """

    def print(self, *things: Any, **options: Any) -> None:
        self._console.print(*things, **options)

    @property
    def colored(self) -> bool:
        """Whether texts are to have colors: on a terminal, unless ``NO_COLOR`` is set."""
        return self._console.is_terminal and not self._console.no_color

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    @property
    def width(self) -> int:
        """Columns that lines may take."""
        return min(self._console.width, WIDTH)

    @functools.cached_property
    def _console(self) -> Console:
        from rich.console import Console

        class Checked(Console):
            def on_broken_pipe(self) -> None:
                """Raise the error, where newer versions of rich end the process."""
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

        # Without a terminal rich takes 80 columns, and would cut tables for that.
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        return Checked(width=None if is_terminal else WIDTH, highlight=False)


out = _Output()
"""Standard output, for tables; sentences go through ``say``."""


Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
PlanFile = Annotated[Path, typer.Argument(help="A plan file.")]
OtherInstance = Annotated[
    str | None, typer.Option("--instance", help="Judge on this instance instead of the plan's own.")
]
PlanOut = Annotated[Path | None, typer.Option("--out", help="Write the plan to this .json file.")]
Plot = Annotated[
    Path | None,
    typer.Option(
        callback=lambda path: _picture(path), help="Draw the plan (.png, .svg, .pdf, .html)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Address = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of a cluster of Ray, or auto (default: Ray on this machine)."),
]


def example(*lines: str) -> str:
    """Return the end of a command's help: lines that can be typed, without ``parenvs``.

    An empty line between two keeps rich from joining them.
    """
    return "\n\n".join(["Example:", *(f"$ parenvs {line}" for line in lines)])


def check_range(option: str, value: int, minimum: int) -> None:
    """Raise a ParenvsError unless ``value`` is from ``minimum`` to the largest 32-bit integer.

    Gymnasium, NumPy and torch fail on other numbers, with errors that do not name the option.
    """
    if not minimum <= value < 2**31:
        raise ParenvsError(f"{option} must be from {minimum} to {2**31 - 1}, not {value}")


def _picture(path: Path | None) -> Path | None:
    if path is not None:
        from parenvs.view.page import ending

        ending(path)
    return path


def trace_option(panel: str | None = None) -> Any:
    """Return the option of a trace's file, in a panel of the help."""

    def checked(path: Path | None) -> Path | None:
        if path is not None:
            from parenvs.view.trace import check_ending

            check_ending(path)
        return path

    words = "Write the simulated step for Perfetto (.json, .json.gz)."
    return typer.Option(callback=checked, help=words, rich_help_panel=panel)


def writable_streams() -> None:
    """Let standard output and error take every character, and be there if they are closed.

    What another encoding than UTF-8 does not have is written by its number.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(words: str) -> None:
    """Print one line to standard output as it is: no markup, not broken."""
    say_text(printable(words))


def say_text(words: str, painted: bool = False) -> None:
    """Print lines to standard output as they are, but for those that a terminal is too narrow for.

    These end in ``…``, so that tables and bars stay what they are; see ``printable_text``.
    """
    shown = printable_text(words, painted)
    # A narrow terminal would break lines, and bars and tables with them.
    if out.is_terminal and out.width < WIDTH:
        from rich.text import Text

        for line in shown.split("\n"):
            out.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis")
        return
    out.print(shown, markup=False, soft_wrap=True, emoji=False)


def say_line(words: str) -> None:
    """Print a sentence: on a terminal in lines of its width, elsewhere in one."""
    if out.is_terminal:
        for line in textwrap.wrap(printable(words), out.width, subsequent_indent="  "):
            say(line)
    else:
        say(words)


def say_progress(words: str) -> None:
    """Print a line for the person who waits to standard error: it is no part of the output."""
    print(printable(words), file=sys.stderr, flush=True)


@contextmanager
def usage_in_one_line() -> Iterator[None]:
    """Refuse what a command line cannot mean as any bad input: in one printable line.

    The error's class is that of click, or of the copy of it that some versions of typer have.

    Raises:
        ParenvsError: there is a usage error.
    """
    try:
        yield
    except Exception as error:
        context = getattr(error, "ctx", None)
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        if is_help or not (hasattr(error, "format_message") and hasattr(error, "ctx")):
            raise
        words = " ".join(str(error.format_message()).split())
        command = getattr(context, "command_path", "parenvs")
        raise ParenvsError(f"{printable(words).rstrip('.')}; see {command} --help") from None


_noted: dict[str, None] = {}


def note(words: str) -> None:
    """Print a line on what was assumed to standard error, the same one only once a command.

    A warning that begins with the file's name is the same as the graph's own note without it.
    """
    if not any(noted == words or noted.endswith(f": {words}") for noted in _noted):
        _noted[words] = None
        say_progress(f"parenvs: note: {words}")


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Turn the warnings of a command into notes: one line each, without file and line."""
    _noted.clear()
    with warnings.catch_warnings():
        plain = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if category is UserWarning:
                note(" ".join(str(message).split()))
            else:
                plain(message, category, *place)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


class Step:
    """A part of a command that takes its time, told on standard error as one line.

    A terminal shows the line from the beginning on; elsewhere it is written at the end, if the step
    took at least ``least`` seconds, so that what fails leaves its error alone.

    >>> with Step("reading model.pb") as step:
    ...     step.result = "12 instructions"
    """

    def __init__(self, words: str, min_seconds: float = 0.0) -> None:
        """Describe the step in words."""
        self.words, self.least, self.result = words, min_seconds, ""
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Step:
        """Begin: show the words on a terminal."""
        self._begin = time.perf_counter()
        if self._live:
            print(f"{printable(self.words)} ... ", end="", file=sys.stderr, flush=True)
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """End the line with the result, or else the seconds."""
        seconds = time.perf_counter() - self._begin
        result = "" if kind else self.result or f"{seconds:.1f} s"
        if self._live:
            say_progress(result)
        elif kind is None and seconds >= self.least:
            say_progress(f"{self.words} ... {result}")


def say_json(content: Any) -> None:
    """Print an object of JSON types as one line, with what was noted in the command."""
    if isinstance(content, dict) and _noted:
        notes = [*content.get("notes", ()), *_noted]
        content = {**content, "notes": list(dict.fromkeys(notes))}
    sys.stdout.write(json.dumps(content) + "\n")


def say_tables(*tables: Any, as_json: bool = False, **more: Any) -> None:
    """Print tables; as JSON their titles, columns and rows, with what else belongs to them."""
    from parenvs.view.tables import to_json

    if as_json:
        say_json({"tables": [to_json(table) for table in tables], **more})
        return
    for table in tables:
        out.print(table)


def print_report(report: Any) -> None:
    """Print what the judge says of a plan, and its price."""
    say_text(view.text(report, color=out.colored), painted=out.colored)
    say_price(report)


def say_price(report: Any) -> None:
    """Print the seconds of a plan by the cost model that prices plans of every task."""
    for line in report.price.lines() if report.price else ():
        say(line)


def proof(answer: Answer) -> str:
    """One line on what a planner knows of its answer."""
    words = f"{answer.method}: {answer.claim}"
    if answer.bound:
        side, unit = answer.report.bound_words
        of_these = " of these" if answer.among else ""
        number = f"{answer.bound:,}" if isinstance(answer.bound, int) else f"{answer.bound:.6g}"
        words += f", proven {side} bound{of_these} {number}{unit}"
    if answer.evaluations:
        words += f"; {answer.evaluations:,} evaluations"
    return f"{words}; {answer.seconds:.2f} s"


@contextmanager
def written(work: Callable[[], None], *lines: str, quiet: bool = False) -> Iterator[None]:
    """Write files, then run the block, which prints, and then say what was written.

    So neither is lost: the files if nobody reads what is printed any more, nor what is printed if
    the files cannot be written.

    Raises:
        ParenvsError: of the work, after the block.
        OSError: likewise.
    """
    failed: Exception | None = None
    try:
        work()
    except (ParenvsError, OSError) as error:
        failed = error
    yield
    if failed is not None:
        raise failed
    for line in () if quiet else lines:
        say(line)


def files_of(
    report: Any,
    path: Path | None = None,
    plot: Path | None = None,
    trace: Path | None = None,
    every_rank: bool = False,
) -> tuple[Callable[[], None], tuple[str, ...]]:
    """Return what writes a report's plan, picture and trace, if asked for, and what to say."""
    writers: list[tuple[str, Path | None, Callable[[Path], None]]] = [
        ("plan", path, lambda path: report.plan.save(path)),
        ("picture", plot, lambda path: view.save(path, report)),
        ("trace", trace, lambda path: view.save_trace(path, report, every_rank)),
    ]

    def work() -> None:
        for _, target, write in writers:
            if target is not None:
                write(target)

    return work, tuple(f"{name} written to {x}" for name, x, _ in writers if x is not None)


def refuse_illegal(report: Any, what: str) -> None:
    """End with the reasons of an illegal plan.

    Raises:
        InfeasibleError: it is illegal.
    """
    if not report.legal:
        raise InfeasibleError(f"{what}: {'; '.join(report.reasons)}")
