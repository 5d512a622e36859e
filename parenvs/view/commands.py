"""Commands and groups of them: their help, and how fast a shell completes their words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

_ALL = "parenvs.view.commands.all"
MORE = "More: "
"""How the panels of options begin that help leaves to ``--help-all``."""


Completed = Callable[[typer.Context, str], list[str]]
"""Takes what is typed so far, and the beginning of a word; returns the words that it may be."""


def of(*words: str) -> Completed:
    """Return what completes one of some words, or the last word of a list with commas."""
    return completed(lambda _: words)


def completed(words: Callable[[Any], Iterable[str]]) -> Completed:
    """Return what completes one of the words that a function gives for the context."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{word}" for word in words(ctx) if word.startswith(last)]

    return complete


class _FastCompletion:
    """Takes arguments as texts where a shell completes a word.

    To make values of them takes some versions of typer longer than all else.
    """

    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing:
            return super().parse_args(ctx, args)  # type: ignore[misc]
        parser = self.make_parser(ctx)
        values, ctx.args, _ = parser.parse_args(args=list(args))
        ctx._opt_prefixes.update(parser._opt_prefixes)
        for parameter in self.get_params(ctx):
            ctx.params[parameter.name], source = parameter.consume_value(ctx, values)
            ctx.set_parameter_source(parameter.name, source)
        return ctx.args


class Group(_FastCompletion, TyperGroup):
    """A group of commands."""


class Command(_FastCompletion, TyperCommand):
    """A command whose help leaves the options of some panels to ``--help-all``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what typer gives; the lines of a paragraph of the help are joined."""
        super().__init__(*args, **options)
        self.help = "\n\n".join(" ".join(x.split()) for x in (self.help or "").split("\n\n"))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; with ``--help-all`` every option has its line."""
        panels = [(x, getattr(x, "rich_help_panel", None) or "") for x in self.params]
        more: list[Any] = [parameter for parameter, panel in panels if panel.startswith(MORE)]
        if not more or ctx.meta.get(_ALL):
            super().format_help(ctx, formatter)
            return
        epilog = self.epilog
        self.epilog = f"{len(more)} more options: {ctx.command_path} --help-all\n\n{epilog or ''}"
        # Hidden while the help is written alone: the options are taken all the same.
        for parameter in more:
            parameter.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = epilog
            for parameter in more:
                parameter.hidden = False


def _help_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", is_eager=True, callback=_help_all, help="Show all options and exit."
    ),
]
"""An option of commands with panels that begin with ``MORE``; its value says nothing."""


class Commands(typer.Typer):
    """A group of commands to which functions are added, as to any of typer."""

    def __init__(self, **options: Any) -> None:
        """Take options of typer."""
        super().__init__(**{"cls": Group, "no_args_is_help": True, **options})

    def command(self, *names: Any, **options: Any) -> Any:
        """Return what adds a function as a command."""
        return super().command(*names, **{"cls": Command, **options})
