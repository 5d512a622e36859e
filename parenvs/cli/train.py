"""The commands ``parenvs train``, ``parenvs evaluate`` and ``parenvs pretrain``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.agents.learning.distributed.distribution import FUSED, SINGLE, Distribution
from parenvs.agents.learning.distributed.session import check_ray
from parenvs.cli import tables
from parenvs.cli.hybrid import samples_of
from parenvs.cli.model import Model
from parenvs.cli.options import (
    Actors,
    Address,
    Engine,
    Learners,
    Seed,
    Word,
    check_engine_options,
    check_range,
    with_request,
)
from parenvs.cli.report import out, say
from parenvs.datasets.order.drawing import TIERS
from parenvs.errors import ParenvsError, need_extra
from parenvs.files import locked
from parenvs.instances import load_graph

if TYPE_CHECKING:
    from parenvs.core.request import Request


DRAWN_STEPS = 100_000
"""Default environment steps of a training on drawn problems."""
PLAYED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "pipeline-plan": ("PipelinePlan-v0", {"draw": 2}, ()),
    "hybrid": ("HybridPlan-v0", {}, ("cluster", "batch", "stack", "precision")),
    "hetero": ("HybridPlan-v0", {"instance": "hetero-32"}, ()),
    "partition-plan": ("PartitionPlan-v0", {}, ()),
    "order": ("MicroBatchOrder-v0", {"tier": None, "pool": 1024}, ()),
    "sharding": ("IntraOpSharding-v0", {"pool": 256}, ()),
}
"""Task of ``train`` on drawn problems -> environment, its arguments, options of one problem."""


def add_training(app: typer.Typer) -> None:
    """Add the commands that train and evaluate agents."""
    app.command()(with_request(train, choosing=False, drawn=train_drawn))
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
    distribution: Word = "single",
    actors: Actors = None,
    learners: Learners = None,
    address: Address = None,
) -> None:
    """Train an agent on one instance: checkpoints, logs, the model and its best plan."""
    spread = _spread(distribution, actors, learners, address)
    if spread.word == FUSED:
        raise ParenvsError(
            f"--distribution {FUSED} plays drawn problems: --task pipeline-plan without a model"
        )
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
            request.env_id, request.env_kwargs, agent=agent, seed=request.seed,
            steps=request.steps, distribution=spread.to_json(),
        )  # fmt: skip
        try:
            result, _ = trainer.train(
                config,
                place,
                resume=resume,
                target=request.target(best),
                stop_at_target=until_optimal,
                progress=True,
                address=address,
            )
        except KeyboardInterrupt:
            if model.kept and not trainer.claimed(place):
                (place / "graph.npz").unlink()
            raise _interrupted(trainer, place) from None
    out.print(tables.training(result, best, place))


def train_drawn(
    task: str,
    instance: str | None = None,
    agent: str = "ppo",
    seed: int = 0,
    steps: int = DRAWN_STEPS,
    folder: Path | None = None,
    resume: bool = False,
    distribution: str = "single",
    actors: int | None = None,
    learners: int | None = None,
    address: str | None = None,
    **others: Any,
) -> None:
    """Train an agent on drawn problems, on a set, or on one problem.

    Args:
        task: a key of ``PLAYED``.
        instance: what the environment takes, or a tier of orders; None: problems are drawn.
        agent: name of the agent.
        seed: seed of everything random.
        steps: environment steps.
        folder: folder of the run (default: ``runs/...``).
        resume: whether to continue the run in the folder.
        distribution: how the training is spread, see ``Distribution``.
        actors: processes that play.
        learners: processes that learn.
        address: of the cluster of Ray that is used.
        **others: further options of the command line.

    Raises:
        ParenvsError: an option is one of other tasks, or training fails.
    """
    env_id, drawing, settings = PLAYED[task]
    for name in others:
        if name not in settings or instance is None:
            where = f"train --task {task}" + (" without an instance" * (name in settings))
            raise ParenvsError(f"--{name.replace('_', '-')} is not an option of {where}")
    check_range("--steps", steps, 1)
    check_range("--seed", seed, 0)
    spread = _spread(distribution, actors, learners, address)
    trainer = _trainer()
    place = folder or Path("runs") / f"{Path(instance or 'drawn').stem}-{task}-{agent}-{seed}"
    if spread.word == FUSED:
        _train_fused(task, instance, agent, seed, steps, place, resume)
        return
    kwargs = dict(drawing)
    if task == "order" and instance in TIERS:
        kwargs["tier"] = instance
    elif instance is not None:
        kwargs = {"instance": instance, **others}
    if "batch" in others:
        kwargs["batch"] = samples_of(others["batch"])
    config = trainer.Config(
        env_id, kwargs, agent=agent, seed=seed, steps=steps, distribution=spread.to_json()
    )
    try:
        result, _ = trainer.train(config, place, resume=resume, progress=True, address=address)
    except KeyboardInterrupt:
        raise _interrupted(trainer, place) from None
    out.print(tables.training(result, None, place))


def _spread(
    word: str, actors: int | None, learners: int | None, address: str | None
) -> Distribution:
    """Return the distribution that options describe."""
    found = Distribution.of(word, actors=actors, learners=learners)
    if word not in (SINGLE, FUSED):
        check_ray(address)
    elif address is not None:
        raise ParenvsError(f"--address is not an option of --distribution {word}")
    return found


def _train_fused(
    task: str,
    instance: str | None,
    agent: str,
    seed: int,
    steps: int,
    place: Path,
    resume: bool,
) -> None:
    """Train by the loop whose environments and updates are tensors on one device."""
    if task != "pipeline-plan" or instance is not None:
        raise ParenvsError(
            f"--distribution {FUSED} plays drawn problems: --task pipeline-plan without a model"
        )
    from parenvs.agents.learning.fused.checkpoint import CHECKPOINT
    from parenvs.agents.learning.fused.learner import AGENTS
    from parenvs.agents.learning.fused.run import LOG, WEIGHTS, train

    if agent not in AGENTS:
        raise ParenvsError(f"--agent {agent} is not an option of --distribution {FUSED}")

    if (place / LOG).exists():
        raise ParenvsError(f"{place}: holds a run already; choose another folder")
    kind = AGENTS[agent]
    settings = kind(seed=seed, iterations=-(-steps // kind().samples))
    with locked(place):
        try:
            log = train(settings, place, say=say, resume=resume)
        except KeyboardInterrupt:
            kept = (place / CHECKPOINT).exists()
            ending = f"continue with --resume --out {place}" if kept else "nothing is kept"
            raise ParenvsError(f"interrupted; {ending}") from None
    say(f"{log['samples']:,} samples in {log['seconds']} s; {place / WEIGHTS}")


def _interrupted(trainer: Any, place: Path) -> ParenvsError:
    """Return the error of an interrupted training; a run that left nothing leaves no folder."""
    if trainer.claimed(place):
        return ParenvsError(f"interrupted; continue with --resume --out {place}")
    with contextlib.suppress(OSError):  # something else is in it
        place.rmdir()
    return ParenvsError("interrupted before the first checkpoint; nothing is kept")


def evaluate(
    folder: Annotated[
        list[Path], typer.Argument(help="Folder of a training run; with --set several seeds.")
    ],
    episodes: Annotated[
        int | None, typer.Option(help="Sampled episodes (default: 100; not with --set).")
    ] = None,
    seed: Seed = 0,
    set_: Annotated[
        str | None,
        typer.Option("--set", help="Play a set of problems: plan-test, plan-outside, ..."),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="With --set: problems of this family only.")
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(help="With --set: folders of another agent's runs, to compare; again."),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option("--out", help="With --set: write the returns to this .json.")
    ] = None,
    trust: Annotated[
        bool, typer.Option(help="Let a run on a Python function run the function's file.")
    ] = False,
) -> None:
    """Evaluate a trained agent with masks, against the exact optimum, or on a set of problems."""
    if episodes is not None:
        check_range("--episodes", episodes, 1)
    check_range("--seed", seed, 0)
    _trainer()
    if set_ is not None:
        if episodes is not None:
            raise ParenvsError(
                "--episodes is not an option of --set, which plays each problem once"
            )
        _evaluate_set(folder, set_, family, seed, against or [], scores, trust)
        return
    if len(folder) > 1 or against or family is not None or scores is not None:
        raise ParenvsError("several runs, --family, --against and --out are options of --set")
    import gymnasium as gym

    from parenvs.agents.evaluation.evaluate import evaluate as play
    from parenvs.agents.evaluation.validation import validation_set
    from parenvs.agents.learning.train.config import building, load_config
    from parenvs.agents.learning.train.learners import plain
    from parenvs.agents.learning.train.run import load_model
    from parenvs.agents.learning.vec_env import one_thread

    config, model = load_config(folder[0]), load_model(folder[0], trust)
    with one_thread():
        with building(folder[0]):
            env = gym.make(config.env_id, **config.env_kwargs)
        if env.get_wrapper_attr("draws"):
            near = validation_set(plain(config.env_id), config.env_kwargs)[0]
            raise ParenvsError(
                f"{folder[0]}: trained on drawn problems, of which no single one can be judged; "
                f"add --set {near.replace('validation', 'test')}"
            )
        if not hasattr(getattr(env.unwrapped, "game", env.unwrapped), "space"):
            is_judged = plain(config.env_id) != "ElasticPlan-v0"
            raise ParenvsError(
                f"{folder[0]}: {config.env_id} has no exact optimum at hand to evaluate against; "
                f"the best plan is {folder[0] / 'plan.json'}" + ": parenvs judge" * is_judged
            )
        out.print(tables.evaluation(play(model, env, 100 if episodes is None else episodes, seed)))


def _player(run: Path, name: str, env_id: str, trust: bool) -> tuple[Any, dict[str, Any]]:
    """Load what plays a set for a run, and the rules that it was trained by.

    Raises:
        ParenvsError: the run was trained in another environment than that of the set.
    """
    from parenvs.agents.evaluation.validation import rules_of
    from parenvs.agents.learning.fused.run import WEIGHTS
    from parenvs.agents.learning.pretrained.policy import PlanPolicy
    from parenvs.agents.learning.train.config import load_config
    from parenvs.agents.learning.train.learners import plain
    from parenvs.agents.learning.train.run import load_model

    if (run / WEIGHTS).exists():  # of the fused loop, which has no further rules
        return PlanPolicy.load(run / WEIGHTS), {}
    config = load_config(run)
    if plain(config.env_id) != env_id:
        raise ParenvsError(f"{run}: trained in {config.env_id}; {name} is a set of {env_id}")
    return load_model(run, trust), rules_of(config.env_kwargs)


def _evaluate_set(
    folders: Sequence[Path],
    name: str,
    family: str | None,
    seed: int,
    against: Sequence[Path],
    scores: Path | None,
    trust: bool,
) -> None:
    """Print how the agents of runs, all seeds of one, do on a set; see ``evaluate``."""
    from parenvs.agents.evaluation.evaluate_set import evaluate_set
    from parenvs.agents.learning.vec_env import one_thread
    from parenvs.core.sets import set_of

    found, env_id = [], set_of(name).env_id
    for runs in filter(None, (folders, against)):
        with one_thread():
            players = [_player(run, name, env_id, trust) for run in runs]
            rules = players[0][1]
            for run, (_, own) in zip(runs, players, strict=True):
                if own != rules:
                    raise ParenvsError(f"{run}: trained by other rules than {runs[0]}: {own}")
            policies = [policy for policy, _ in players]
            found.append(evaluate_set(policies, name, family, seed=seed, settings=rules))
    ours, theirs = found[0], found[1] if against else None
    out.print(tables.set_evaluation(ours, theirs))
    if scores is not None:
        ours.save(scores)
        say(f"written: {scores}")


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
    for option, value, least in (
        ("--workers", workers, 1), ("--seed", seed, 0), ("--parts", parts, 1),
        ("--passes", passes, 1),
    ):  # fmt: skip
        check_range(option, value, least)
    check_engine_options(engine, address)
    _trainer()
    from parenvs.agents.learning.pretrained.imitate import Recipe
    from parenvs.agents.learning.pretrained.pretrain import CURVE, LOG, draw, pretrain

    with locked(folder):
        try:
            pretrain(Recipe(seed, parts, passes=passes), folder, workers, say, engine, address)
        except KeyboardInterrupt:
            raise ParenvsError("interrupted; the same command goes on from here") from None
        draw(folder / LOG, folder / CURVE)


def _trainer() -> Any:
    with need_extra("agents", "training"):
        from parenvs.agents.learning.train import run as trainer
    return trainer
