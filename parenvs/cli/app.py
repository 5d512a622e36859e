"""The ``parenvs`` command."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from parenvs import __version__
from parenvs.cli.bench import add_bench
from parenvs.cli.help import add_doctor, add_examples
from parenvs.cli.leaderboard import add_leaderboard
from parenvs.cli.listing import add_listing
from parenvs.cli.planning import add_planning
from parenvs.cli.plans import add_plans
from parenvs.cli.train import add_training
from parenvs.core.registry import TASKS
from parenvs.errors import ParenvsError
from parenvs.interrupts import INTERRUPTED, WORDS, raise_on_interrupt
from parenvs.view.terminal import (
    printable_usage,
    say,
    say_progress,
    warnings_as_notes,
    writable_streams,
)

REFUSED = 2
"""Exit status after bad input, as of usage errors."""
UNREAD = 141
"""Exit status when nobody reads what is printed any more, 128 and the number of SIGPIPE."""


class _Commands(TyperGroup):
    """Commands that are interrupted alike, and whose usage errors show as text what was typed."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments."""
        with _ending():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, which parses its own arguments."""
        with _ending():
            return super().invoke(ctx)


@contextmanager
def _ending() -> Iterator[None]:
    """Choose the exit status after Ctrl-C, where versions of typer choose different ones."""
    with printable_usage():
        try:
            yield
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan the parallel training of neural networks: environments, solvers, agents, a judge.",
    epilog="Example:\n\n$ parenvs plan t5-base --cluster C --out plan.json",
)


def _version(wanted: bool) -> None:
    """Print the version and end, if the option ``--version`` is given."""
    if wanted:
        say(f"parenvs {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Carry the options that stand before a command's name."""


add_listing(app)
add_planning(app)
add_plans(app)
add_training(app)
add_bench(app)
add_leaderboard(app)
for _task in TASKS.values():
    if "commands" in _task.hooks:
        _task.hook("commands")(app)
add_doctor(app)
add_examples(app)


def main() -> None:
    """Run the command.

    Bad input ends with one line and exit status 2, Ctrl-C with one and 130. When nobody reads what
    is printed any more (``| head -1``), the command ends without a word, with 141.
    """
    status: Any = REFUSED
    try:
        raise_on_interrupt()
        writable_streams()
        try:
            with warnings_as_notes():
                app()
        except SystemExit as ended:
            unread = isinstance(ended.__context__, BrokenPipeError)  # rich's and typer's word: 1
            status = UNREAD if unread else ended.code
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = UNREAD
    except (ParenvsError, OSError) as error:
        _refuse(error)
    if status == INTERRUPTED:
        say_progress(WORDS)
    if not _is_flushed():  # Python would try it again at its end, and tell
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def _refuse(error: ParenvsError | OSError) -> None:
    """Print one line on bad input, or on what the system refuses."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        named = [str(name) for name in (error.filename, error.filename2) if name is not None]
        if not named and error.errno == errno.ENOSPC:  # what writes a file names it
            named = ["standard output"]
        text = f"{' and '.join(named)}: {error.strerror}" if named else text
    with suppress(OSError):  # standard error is full or closed, too
        say_progress(f"parenvs: {' '.join(text.splitlines())}")


def _is_flushed() -> bool:
    """Whether all that was printed has left this process."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
