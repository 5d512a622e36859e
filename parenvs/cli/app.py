"""The ``parenvs`` command."""

from __future__ import annotations

import sys
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
from parenvs.view.terminal import printable_usage, say, say_progress, warnings_as_notes


class _Commands(TyperGroup):
    """Commands whose usage errors show as text what was typed."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments."""
        with printable_usage():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, which parses its own arguments."""
        with printable_usage():
            return super().invoke(ctx)


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
    """Run the command; bad input ends with one line and exit status 2."""
    try:
        with warnings_as_notes():
            app()
    except BrokenPipeError:
        sys.exit(1)
    except (ParenvsError, OSError) as error:
        say_progress(f"parenvs: {' '.join(str(error).splitlines())}")
        sys.exit(2)


if __name__ == "__main__":
    main()
