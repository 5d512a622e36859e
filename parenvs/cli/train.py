"""The commands ``parenvs train``, ``parenvs evaluate`` and ``parenvs pretrain``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.cli import tables
from parenvs.cli.model import Model
from parenvs.cli.options import Seed, check_range, with_request
from parenvs.cli.report import out, say
from parenvs.errors import ParenvsError, need_extra
from parenvs.files import locked
from parenvs.instances import load_graph

if TYPE_CHECKING:
    from parenvs.agents.planners import Request


def add_training(app: typer.Typer) -> None:
    """Add the commands that train and evaluate agents."""
    app.command()(with_request(train, choosing=False))
    app.command()(evaluate)
    app.command()(pretrain)


def train(
    request: Request,
    model: Model,
    agent: Annotated[str, typer.Option(help="ppo, rainbow or rainbow-paper.")] = "ppo",
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run (default: runs/...).")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in the folder.")] = False,
    until_optimal: Annotated[
        bool, typer.Option(help="Stop once the proven optimum is reached.")
    ] = False,
) -> None:
    """Train an agent on one instance: checkpoints, logs, the model and its best plan."""
    trainer = _trainer()
    best = request.optimum()
    name = Path(request.problem.instance).stem
    place = folder or Path("runs") / f"{name}-{request.label}-{agent}-{request.seed}"
    with locked(place):
        trainer.check_free(place, resume)
        if model.kept:  # what evaluates the run later has nothing but its folder
            graph = place / "graph.npz"
            if not graph.exists() or not trainer.claimed(place):
                model.graph().save(graph)
            elif load_graph(str(graph)).fingerprint != model.graph().fingerprint:
                raise ParenvsError(f"{place}: holds a run on another graph than {model.instance}")
            request = replace(request, problem=replace(request.problem, instance=str(graph)))
        config = trainer.Config(
            request.env_id, request.env_kwargs, agent=agent, seed=request.seed, steps=request.steps
        )
        try:
            result, _ = trainer.train(
                config,
                place,
                resume=resume,
                target=request.target(best),
                stop_at_target=until_optimal,
                progress=True,
            )
        except KeyboardInterrupt:
            raise ParenvsError(f"interrupted; continue with --resume --out {place}") from None
    out.print(tables.training(result, best, place))


def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder of a training run.")],
    episodes: Annotated[int, typer.Option(help="Sampled episodes.")] = 100,
    seed: Seed = 0,
    trust: Annotated[
        bool, typer.Option(help="Let a run on a Python function run the function's file.")
    ] = False,
) -> None:
    """Evaluate a trained agent with masks: greedy and sampled, against the exact optimum."""
    check_range("--episodes", episodes, 1)
    check_range("--seed", seed, 0)
    _trainer()
    import gymnasium as gym

    from parenvs.agents.evaluate import evaluate as play
    from parenvs.agents.train.config import building, load_config
    from parenvs.agents.train.run import load_model
    from parenvs.agents.vec_env import one_thread

    config, model = load_config(folder), load_model(folder, trust)
    with one_thread():
        with building(folder):
            env = gym.make(config.env_id, **config.env_kwargs)
        out.print(tables.evaluation(play(model, env, episodes, seed)))


def pretrain(
    folder: Annotated[Path, typer.Option("--out", help="Folder of the network and its log.")],
    workers: Annotated[int, typer.Option(help="Processes that solve problems.")] = 2,
    seed: Seed = 0,
    parts: Annotated[int, typer.Option(help="Parts of 128 generated problems.")] = 600,
    passes: Annotated[int, typer.Option(help="Times that each part is used.")] = 20,
) -> None:
    """Train the network of the agent 'pretrained' from scratch, or go on with it."""
    for option, value, least in (
        ("--workers", workers, 1), ("--seed", seed, 0), ("--parts", parts, 1),
        ("--passes", passes, 1),
    ):  # fmt: skip
        check_range(option, value, least)
    _trainer()
    from parenvs.agents.pretrained.imitate import Recipe
    from parenvs.agents.pretrained.pretrain import CURVE, LOG, draw, pretrain

    with locked(folder):
        try:
            pretrain(Recipe(seed, parts, passes=passes), folder, workers, say)
        except KeyboardInterrupt:
            raise ParenvsError("interrupted; the same command goes on from here") from None
        draw(folder / LOG, folder / CURVE)


def _trainer() -> Any:
    with need_extra("agents", "training"):
        from parenvs.agents.train import run as trainer
    return trainer
