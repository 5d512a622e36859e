"""The ``parenvs`` command."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Annotated, Any

import typer

from parenvs import __version__
from parenvs.cli import clock, doctor, leaderboard, planning, plans, train
from parenvs.core.registry import TASKS
from parenvs.errors import ParenvsError, cut
from parenvs.view import terminal
from parenvs.view.commands import Command, Commands, Group

REFUSED = 2
"""Exit status after bad input, as of usage errors."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, 128 and the number of SIGINT."""
UNREAD = 141
"""Exit status when nobody reads what is printed any more, 128 and the number of SIGPIPE."""


shelf = Commands()
"""Every command; each is built when it is asked for, as a shell that completes a word must be."""


@cache
def _built(info: Any, tasks: tuple[str, ...]) -> Any:
    typed = getattr(info, "typer_instance", None)
    if typed is None:
        typed = typer.Typer(add_completion=False)
        typed.registered_commands.append(info)
    command = typer.main.get_command(typed)
    command.name = _name(info)
    return command


def _name(info: Any) -> str:
    return info.name or typer.main.get_command_name(info.callback.__name__)


def _stub(name: str, info: Any) -> Command:
    typed = getattr(info, "typer_instance", None)
    words: str | None = info.callback.__doc__ if typed is None else typed.info.help
    return Command(name, help=(words or "").partition("\n\n")[0])


class _Commands(Group):
    """Commands that are interrupted alike, and whose usage errors show as text what was typed."""

    def __init__(self, **options: Any) -> None:
        """Take the commands of the shelf, of each its name and what it is for."""
        super().__init__(**options)
        infos: list[Any] = [*shelf.registered_commands, *shelf.registered_groups]
        self._infos = {_name(info): info for info in infos}
        self.commands = {name: _stub(name, info) for name, info in self._infos.items()}
        self._builds = True

    def get_command(self, ctx: Any, name: str) -> Any:
        if self._builds and name in self._infos:
            return _built(self._infos[name], tuple(TASKS))
        return super().get_command(ctx, name)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the name of a command; none is built for it."""
        self._builds = False
        return super().shell_complete(ctx, incomplete)

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _ending():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _ending():
            return super().invoke(ctx)


@contextmanager
def _ending() -> Iterator[None]:
    """Choose the exit status after Ctrl-C, where versions of typer choose different ones."""
    with terminal.usage_in_one_line():
        try:
            yield
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Plan the parallel training of neural networks: environments, solvers, agents, a judge.",
    epilog="Example:\n\n$ parenvs plan t5-base --cluster C --out plan.json",
)


def _version(requested: bool) -> None:
    if requested:
        terminal.say(f"parenvs {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Carry the options that stand before a command's name."""


def _add(group: Commands, function: Callable[..., None], *lines: str) -> None:
    """Add a command, with lines as examples at the end of its help."""
    group.command(function.__name__.rstrip("_"), epilog=terminal.example(*lines))(function)


_add(shelf, plans.list_, "list")
_add(
    shelf,
    plans.show,
    "show t5-base --cluster C",
    "show my_model.py:step --args my_model.py:arguments",
)
_add(
    shelf,
    planning.plan,
    "plan t5-3b --cluster C --stages 4 --out plan.json --plot plan.png",
    "plan llama3-70b --task hybrid --cluster 16x8:h100 --batch 1024",
)
_add(shelf, planning.compare, "compare t5-base --cluster C --stages 4 --agent even --agent exact")
_add(shelf, plans.judge, "judge plan.json --plot plan.png")
_add(shelf, plans.diff, "diff even.json best.json")
_add(
    shelf,
    plans.explain,
    "explain plan.json --variable 'encoder/layer_0/*'",
    "explain t5-base --devices 8",
)
_add(shelf, plans.verify, "verify split.json --compile")
_add(shelf, plans.export, "export plan.json --to torchtitan --out plan.toml")
_add(shelf, plans.reshard, "reshard checkpoint --old old.json --new new.json --out moved")
_add(
    shelf,
    train.train,
    "train --task pipeline --seed 0 --steps 100000 --out runs/ppo-0",
    "train HybridPlan-v2 --agent group --out runs/group-0",
)
_add(shelf, train.evaluate, "evaluate runs/ppo-0 runs/ppo-1 --set plan-test")
_add(shelf, clock.calibrate, "calibrate --out machine.json")
_add(shelf, clock.profile, "profile my_model.py:make --args batch --out chain.csv")
_add(shelf, clock.run, "run plan.json my_model.py:make --args batch --calibration machine.json")
_add(shelf, doctor.doctor, "doctor")
_board = Commands(help="Enter plans, check entries, rank them.")
_add(
    _board,
    leaderboard.submit,
    "leaderboard submit --task data-parallel --agent greedy --folder submissions",
)
_add(_board, leaderboard.check, "leaderboard check submissions/pipeline-cut/mine.json")
_add(_board, leaderboard.table, "leaderboard table --folder submissions")
_add(_board, leaderboard.site, "leaderboard site --folder submissions --out site")
_add(_board, leaderboard.update, "leaderboard update submissions/hybrid/mine.json")
shelf.add_typer(_board, name="leaderboard")
for _task in TASKS.values():
    _task.add_commands(shelf)


def main() -> None:
    """Run the command.

    Bad input ends with one line and exit status 2, Ctrl-C with one and 130. When nobody reads what
    is printed any more (``| head -1``), the command ends without a word, with 141.
    """
    status: Any = REFUSED
    words = ""
    try:
        if "_PARENVS_COMPLETE" in os.environ:
            sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # a shell waits
        terminal.writable_streams()
        try:
            with terminal.warnings_as_notes():
                app(prog_name="parenvs")
        except SystemExit as ended:
            cause = ended.__context__
            unread = isinstance(cause, BrokenPipeError)  # rich's and typer's word: 1
            status = UNREAD if unread else ended.code
            words = str(cause) if isinstance(cause, KeyboardInterrupt) else ""
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = UNREAD
    except (ParenvsError, OSError) as error:
        _refuse(error)
    if status == INTERRUPTED:
        terminal.say_progress(f"parenvs: interrupted{words}")
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # Python would try it again at its end, and print the error
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def _refuse(error: ParenvsError | OSError) -> None:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        named = [str(name) for name in (error.filename, error.filename2) if name is not None]
        if not named and error.errno == errno.ENOSPC:  # what writes a file names it
            named = ["standard output"]
        text = f"{' and '.join(named)}: {error.strerror}" if named else text
    with suppress(OSError):  # standard error is full or closed, too
        terminal.say_progress(f"parenvs: {cut(' '.join(text.splitlines()))}")


if __name__ == "__main__":
    main()
