"""Trains the network of the agent ``pretrained`` from scratch, with a log and a learning curve.

First problems are drawn and solved by several processes, then the network imitates the solutions
on one thread. Plans and checkpoints are kept in the folder, so that an interrupted training goes on
where it was and ends with the same network.
"""

from __future__ import annotations

import io
import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parenvs.agents.learning.distributed.tasks import LOCAL, RAY, on_ray
from parenvs.agents.learning.play import one_thread
from parenvs.agents.learning.pretrained.examples import (
    Examples,
    OptimalPlans,
    draw_optimal_plans,
    examples_of,
)
from parenvs.agents.learning.pretrained.imitate import Recipe, Trainer
from parenvs.agents.learning.pretrained.policy import PlanPolicy
from parenvs.datasets.pipeline.sets import load_set
from parenvs.errors import ParenvsError, one_line
from parenvs.files import locked, replacing, write_text
from parenvs.machine import host
from parenvs.tensors import read_saved

WEIGHTS, LOG, CURVE = "plan-policy.npz", "plan-policy.json", "plan-policy.png"
PLANS, CHECKPOINT = "plans", "checkpoint.pt"
"""Folder and file of an unfinished training."""
LOOKS = 40
"""How often a training evaluates the network on the validation set."""
PERCENTILES = (50, 90, 95, 99)
"""Percentiles of the lengths over the optima that the log holds."""
DRAWS = 32
"""Plans drawn of each validation problem, of which the shortest counts."""
_CHUNK = 16  # validation problems that are planned side by side

Say = Callable[[str], object]
"""Takes a line on how the training goes."""


class Log:
    """The log of a training: evaluations on the validation set, and seconds.

    Args:
        recipe: what decides the training.
        folder: where the log is written.
        say: is called with a line on each evaluation.

    Attributes:
        points: the evaluations so far.
        seconds: wall seconds of solving problems (``labels``) and of ``training``.
        losses: of the steps since the last evaluation.
    """

    def __init__(self, recipe: Recipe, folder: Path, say: Say) -> None:
        self.recipe, self.path, self.say = recipe, folder / LOG, say
        self.solved = validation()
        self.points: list[dict[str, float]] = []
        self.seconds = {"labels": 0.0, "training": 0.0}
        self.losses: list[float] = []

    def look(self, trainer: Trainer, loss: float) -> None:
        """Note the loss of a step; ``LOOKS`` times a training, evaluate the network.

        Args:
            trainer: the trainer after the step.
            loss: the loss of the step.
        """
        self.losses.append(loss)
        step, steps = trainer.step, self.recipe.steps
        if step * LOOKS // steps == (step - 1) * LOOKS // steps:
            return
        point: dict[str, float] = {"step": step, "loss": round(float(np.mean(self.losses)), 4)}
        for name, draws in (("greedy", 1), ("drawn", DRAWS)):
            over_optima = ratios(trainer.policy, self.solved, draws)
            point[f"{name}_mean"] = round(float(np.exp(np.log(over_optima).mean())), 5)
            for p in PERCENTILES:
                point[f"{name}_p{p}"] = round(float(np.percentile(over_optima, p)), 5)
        self.points.append(point)
        self.losses = []
        self.say(
            f"step {step} of {steps}: loss {point['loss']}; above the optimum (median, 95 %): "
            f"{_percent(point, 'greedy')} best rated, {_percent(point, 'drawn')} of {DRAWS} plans"
        )

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what a checkpoint says of the log."""
        points = [{str(name): value for name, value in x.items()} for x in saved["points"]]
        if not np.isfinite([value for point in points for value in point.values()]).all():
            raise ValueError("evaluations that are no numbers")
        self.points = points
        self.seconds = {name: float(saved["seconds"][name]) for name in self.seconds}
        self.losses = [float(x) for x in saved.get("losses", [])]

    def write(self) -> dict[str, Any]:
        """Write the log; returns its content."""
        content = {
            "recipe": asdict(self.recipe),
            "draws": DRAWS,
            "machine": host(),
            "seconds": {key: round(value, 1) for key, value in self.seconds.items()},
            "points": self.points,
        }
        write_text(self.path, json.dumps(content, indent=1) + "\n")
        return content


def _percent(point: dict[str, float], name: str) -> str:
    """Median and 95th percentile above the optimum, in words."""
    return ", ".join(f"{point[f'{name}_p{p}'] - 1:.2%}" for p in (50, 95))


def validation(name: str = "plan-validation") -> OptimalPlans:
    """The problems of the set ``name`` with their proven optima."""
    return OptimalPlans.of([problem.space for problem in load_set(name)])


def ratios(policy: PlanPolicy, solved: OptimalPlans, draws: int = 1) -> np.ndarray:
    """Lengths of the network's plans over the optima.

    Args:
        policy: the network.
        solved: b problems with their optima.
        draws: number of plans per problem, of which the shortest counts: the best rated plan, and
            drawn ones.

    Returns:
        (b,) ratios, at least 1.
    """
    count, shortest = len(solved.lengths), []
    for begin in range(0, count, _CHUNK):
        problems = np.arange(begin, min(begin + _CHUNK, count)).repeat(draws)
        rng = np.random.default_rng(begin)
        plans = solved.episodes.play(policy.drawing(rng, draws), problems)
        lengths = solved.episodes.lengths(*plans, problems).reshape(-1, draws)
        shortest.append(lengths.min(axis=1))
    return np.concatenate(shortest) / solved.lengths


def pretrain(
    recipe: Recipe,
    folder: str | Path,
    workers: int = 1,
    say: Say = lambda _: None,
    engine: str = LOCAL,
    address: str | None = None,
) -> dict[str, Any]:
    """Train a network, or continue an interrupted training, and write network and log.

    Args:
        recipe: what decides the training.
        folder: where ``plan-policy.npz`` and ``plan-policy.json`` go; until the training ends it
            holds ``plans/`` and ``checkpoint.pt`` too.
        workers: number of processes that solve problems.
        say: is called with lines on how the training goes.
        engine: one of ``ENGINES``: which kind of processes solves problems. It changes no result.
        address: of the cluster of Ray that the engine uses; None: this machine. Its machines have
            to see the folder.

    Returns:
        the content of the log.

    Raises:
        ParenvsError: the folder holds an unfinished training by another recipe, or another process
            writes to it.
    """
    with locked(folder):
        return _pretrain(recipe, Path(folder).resolve(), workers, say, engine, address)


def _pretrain(
    recipe: Recipe, place: Path, workers: int, say: Say, engine: str, address: str | None
) -> dict[str, Any]:
    """Train a network in a folder whose lock is held; see ``pretrain``."""
    checkpoint = place / CHECKPOINT
    trainer, log = Trainer(recipe), Log(recipe, place, say)
    if checkpoint.exists():
        saved = read_saved(checkpoint)
        if not isinstance(saved, dict) or saved.get("recipe") != asdict(recipe):
            raise ParenvsError(f"{checkpoint} is of another recipe; train into another folder")
        try:
            trainer.restore(saved["trainer"])
            log.restore(saved)
        except Exception as error:  # of many kinds, as anything may be in a file
            raise ParenvsError(
                f"{checkpoint}: of another training ({one_line(error)}); remove it"
            ) from None
    else:
        _save(checkpoint, trainer, log)
    begin, before = time.perf_counter(), log.seconds["labels"]
    examples = []
    for part in _example_parts(recipe, place / PLANS, workers, engine, address):
        examples.append(part)
        log.seconds["labels"] = before + time.perf_counter() - begin
        if len(examples) % 10 == 0 or len(examples) == recipe.parts:
            say(f"{len(examples)} of {recipe.parts} parts of {recipe.part} problems solved")
            _save(checkpoint, trainer, log)
    begin, before = time.perf_counter(), log.seconds["training"]

    def report(trainer: Trainer, loss: float) -> None:
        log.look(trainer, loss)
        log.seconds["training"] = before + time.perf_counter() - begin
        if trainer.step % recipe.parts == 0:
            _save(checkpoint, trainer, log)

    with one_thread():
        policy = trainer.run(examples, report)
    stored = io.BytesIO()
    np.savez(stored, **{k: v.astype(np.float32) for k, v in policy.weights.items()})
    with replacing(place / WEIGHTS) as stream:
        stream.write(stored.getvalue())
    content = log.write()
    checkpoint.unlink()
    shutil.rmtree(place / PLANS)
    return content


def _save(path: Path, trainer: Trainer, log: Log) -> None:
    """Write a checkpoint."""
    stored = io.BytesIO()
    content = {"points": log.points, "seconds": log.seconds, "recipe": asdict(log.recipe)}
    torch.save({"trainer": trainer.state(), "losses": log.losses, **content}, stored)
    with replacing(path) as stream:
        stream.write(stored.getvalue())


def _part(recipe: Recipe, folder: Path, number: int) -> tuple[Examples, Examples]:
    """The examples of one part, whose plans are kept in the folder."""
    file = folder / f"{number:04d}.npz"
    with one_thread():
        return examples_of(
            draw_optimal_plans(recipe.seed, number, recipe.part, recipe.family, file)
        )


def _example_parts(
    recipe: Recipe, folder: Path, workers: int, engine: str, address: str | None
) -> Iterator[tuple[Examples, Examples]]:
    """The examples of all parts in their order; other processes make them a little ahead."""
    if engine == RAY:
        part = partial(_part, recipe, folder)
        yield from on_ray(part, range(recipe.parts), workers, address, in_order=True)
        return
    pending: deque[Future[tuple[Examples, Examples]]] = deque()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for number in range(recipe.parts):
            pending.append(pool.submit(_part, recipe, folder, number))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def draw(log: Path, picture: Path) -> None:
    """Draw the learning curve of a log.

    Args:
        log: the file that ``pretrain`` wrote.
        picture: the .png to write: median and 95th percentile above the optimum, of the best rated
            plans and of the shortest of several drawn ones.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    content = json.loads(log.read_text(encoding="utf-8"))
    points, parts = content["points"], content["recipe"]["parts"]
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    passes = [point["step"] / parts for point in points]
    words = {"greedy": "best rated plan", "drawn": f"shortest of {content['draws']} plans"}
    for (name, label), colour in zip(words.items(), ("tab:orange", "tab:blue"), strict=True):
        for p, style in ((50, "-"), (95, "--")):
            values = [100 * (point[f"{name}_p{p}"] - 1) for point in points]
            axes.plot(passes, values, style, color=colour, label=f"{label}, {p} %")
    axes.set_yscale("symlog", linthresh=0.1)
    top = axes.get_ylim()[1]
    axes.set_yticks(ticks := [0, 0.1, 1, 10, 100], labels=[f"{x:g}" for x in ticks])
    axes.set_ylim(0, top)
    axes.set_xlabel("passes over the training problems")
    axes.set_ylabel("% above the optimum")
    axes.set_title("Problems of plan-validation, never trained on", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    with replacing(picture) as stream:
        figure.savefig(stream, format="png", dpi=130)
