"""The command ``parenvs export``, and what ``parenvs verify --compile`` does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parenvs.cli.options import PlanFile
from parenvs.cli.report import note, say, say_json, say_text
from parenvs.errors import ParenvsError

if TYPE_CHECKING:
    from parenvs.plan import Plan


def add_exports(app: typer.Typer) -> None:
    """Add the command ``export``."""
    app.command()(export)


def export(
    file: PlanFile,
    to: Annotated[str, typer.Option(help="jax, torch, megatron, torchtitan or deepspeed.")],
    path: Annotated[
        Path | None, typer.Option("--out", help="Write to this file instead of standard output.")
    ] = None,
) -> None:
    """Write a plan in the words of a framework that runs it."""
    from parenvs.exports.formats import exported
    from parenvs.files import write_text
    from parenvs.plan import load_plan

    result = exported(load_plan(file), to)
    for words in result.notes:
        note(words)
    if path is None:
        say_text(result.text.rstrip("\n"))
        return
    write_text(path, result.text)
    say(f"written to {path}")


def verify_compiled(plan: Plan, file: Path, module: str | None, as_json: bool) -> None:
    """Compile a plan's step on virtual devices, and print what XLA makes of it.

    Raises:
        ParenvsError: XLA shards it otherwise, or communicates more than the judge predicts.
    """
    from parenvs.exports.compilation import compile_plan

    compilation = compile_plan(plan, module)
    if as_json:
        say_json(compilation.to_json())
    else:
        say(compilation.text())
    if not compilation.agrees:
        raise ParenvsError(f"{file}: XLA shards it otherwise, or communicates other than predicted")
