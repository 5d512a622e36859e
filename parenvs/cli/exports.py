"""The commands ``parenvs export`` and ``parenvs reshard``, and ``parenvs verify --compile``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parenvs.cli.options import Json, OtherInstance, PlanFile
from parenvs.cli.report import Step, note, say, say_json, say_text
from parenvs.errors import ParenvsError

if TYPE_CHECKING:
    from parenvs.plan import Plan


def add_exports(app: typer.Typer) -> None:
    """Add the commands ``export`` and ``reshard``."""
    app.command()(export)
    app.command()(reshard)


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


def reshard(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Folder with index.json and its parts.")
    ],
    new: Annotated[Path, typer.Option("--to", help="A hybrid plan's file: what it is read under.")],
    old: Annotated[
        Path | None, typer.Option("--from", help="The plan that it has to be of (default: any).")
    ] = None,
    path: Annotated[
        Path | None, typer.Option("--out", help="Folder to write (default: it is replaced).")
    ] = None,
    instance: OtherInstance = None,
    as_json: Json = False,
) -> None:
    """Write a PyTorch checkpoint anew for a plan with other degrees and another number of ranks.

    Prints the bytes that each rank reads beside those predicted. A kill leaves the old checkpoint
    whole.
    """
    from parenvs.exports.checkpoint import reshard as resharding
    from parenvs.instances import load_graph
    from parenvs.plan import load_plan

    plans = [None if file is None else load_plan(file) for file in (old, new)]
    assert plans[1] is not None
    graph = None if instance is None else load_graph(instance)
    with Step(f"writing {path or checkpoint} for {new}", 1.0):
        found = resharding.reshard(checkpoint, plans[1], plans[0], path, graph)
    if as_json:
        say_json(found.to_json())
    else:
        say_text(found.text())
        say(f"written to {path or checkpoint}")
    if not found.agrees:
        note(
            "the bytes read are not those predicted: some weights have no optimiser state, or "
            "replicas cannot share rows evenly"
        )


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
