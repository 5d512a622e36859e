"""The command ``parenvs pretrain``: trains the network of the planner ``pretrained``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parenvs.agents.learning.distributed.tasks import check_engine
from parenvs.errors import ParenvsError, need_extra
from parenvs.files import locked
from parenvs.view.terminal import Address, Engine, Seed, check_range, example, say


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=example("pretrain --out runs/network"))(pretrain)


def pretrain(
    folder: Annotated[Path, typer.Option("--out", help="Folder of the network and its log.")],
    workers: Annotated[int, typer.Option(help="Processes that solve problems.")] = 2,
    seed: Seed = 0,
    parts: Annotated[int, typer.Option(help="Parts of 128 generated problems.")] = 600,
    passes: Annotated[int, typer.Option(help="Times that each part is used.")] = 20,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """Train the network of the agent 'pretrained' from scratch, or go on with it."""
    for option, value, minimum in (
        ("--workers", workers, 1), ("--seed", seed, 0), ("--parts", parts, 1),
        ("--passes", passes, 1),
    ):  # fmt: skip
        check_range(option, value, minimum)
    check_engine(engine, address)
    with need_extra("agents", "training"):
        from parenvs.agents.learning.pretrained.imitate import Recipe
        from parenvs.agents.learning.pretrained.pretrain import CURVE, LOG, draw, pretrain

    with locked(folder):
        try:
            pretrain(Recipe(seed, parts, passes=passes), folder, workers, say, engine, address)
        except KeyboardInterrupt:
            raise ParenvsError("interrupted; the same command goes on from here") from None
        draw(folder / LOG, folder / CURVE)
