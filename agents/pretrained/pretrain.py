"""Trains the network that plans any model, from scratch, with a log of how it goes.

Problems are drawn and solved first, by as many processes as are asked for, then the network
imitates the solutions, on one thread. Both are kept in the folder as they come, so that an
interrupted training goes on where it was and ends with the same network.
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
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parenvs.agents.pretrained.examples import Labelled, Lessons, labelled, lessons
from parenvs.agents.pretrained.imitate import Recipe, Trainer
from parenvs.agents.pretrained.policy import PlanPolicy
from parenvs.agents.vec_env import one_thread
from parenvs.datasets.instance_sets import load_set
from parenvs.errors import ParenvsError
from parenvs.files import replacing, write_text
from parenvs.machine import cores, processor, versions

WEIGHTS, LOG, CURVE = "plan-policy.npz", "plan-policy.json", "plan-policy.png"
LABELS, CHECKPOINT = "labels", "checkpoint.pt"
LOOKS = 40
"""Looks at the validation set."""
PERCENTILES = (50, 90, 95, 99)
DRAWS = 32
_CHUNK = 16  # problems drawn side by side when the validation set is looked at

Say = Callable[[str], None]


class Log:
    """How the training goes, on the validation set.

    Args:
        recipe: what is trained.
        folder: where the log is kept.
        say: takes lines on how it goes.
    """

    def __init__(self, recipe: Recipe, folder: Path, say: Say) -> None:
        self.recipe, self.path, self.say = recipe, folder / LOG, say
        self.solved = validation()
        self.points: list[dict[str, float]] = []
        self.seconds = {"labels": 0.0, "training": 0.0}
        self._losses: list[float] = []

    def look(self, trainer: Trainer, loss: float) -> None:
        """Note the loss; every so often, also how far from the optimum the network plans."""
        self._losses.append(loss)
        step, steps = trainer.step, self.recipe.steps
        if step * LOOKS // steps == (step - 1) * LOOKS // steps:
            return
        point: dict[str, float] = {"step": step, "loss": round(float(np.mean(self._losses)), 4)}
        for name, draws in (("greedy", 1), ("drawn", DRAWS)):
            found = ratios(trainer.policy, self.solved, draws)
            point[f"{name}_mean"] = round(float(np.exp(np.log(found).mean())), 5)
            for p in PERCENTILES:
                point[f"{name}_p{p}"] = round(float(np.percentile(found, p)), 5)
        self.points.append(point)
        self._losses = []
        self.say(
            f"step {step} of {steps}: loss {point['loss']}; above the optimum (median, 95 %): "
            f"{_percent(point, 'greedy')} best rated, {_percent(point, 'drawn')} of {DRAWS} plans"
        )

    def write(self) -> dict[str, Any]:
        """Write the log; its content."""
        content = {
            "recipe": asdict(self.recipe),
            "draws": DRAWS,
            "machine": {"processor": processor(), "cores": cores(), **versions()},
            "seconds": {key: round(value, 1) for key, value in self.seconds.items()},
            "points": self.points,
        }
        write_text(self.path, json.dumps(content, indent=1) + "\n")
        return content


def _percent(point: dict[str, float], name: str) -> str:
    return ", ".join(f"{point[f'{name}_p{p}'] - 1:.2%}" for p in (50, 95))


def validation(name: str = "plan-validation") -> Labelled:
    """A set with its proven optima."""
    return Labelled.of([problem.space for problem in load_set(name)])


def ratios(policy: PlanPolicy, solved: Labelled, draws: int = 1) -> np.ndarray:
    """(b,) lengths over those of the labels, of the shortest of the best rated plan and drawn ones.

    Args:
        policy: the network.
        solved: problems.
        draws: plans of each problem, the best rated one among them.
    """
    count, found = len(solved.lengths), []
    for begin in range(0, count, _CHUNK):
        problems = np.arange(begin, min(begin + _CHUNK, count)).repeat(draws)
        rng = np.random.default_rng(begin)
        plans = solved.episodes.play(policy.drawing(rng, draws), problems)
        lengths = solved.episodes.lengths(*plans, problems).reshape(-1, draws)
        found.append(lengths.min(axis=1))
    return np.concatenate(found) / solved.lengths


def pretrain(
    recipe: Recipe, folder: str | Path, workers: int = 1, say: Say = lambda _: None
) -> dict[str, Any]:
    """Train, or go on with it, and write network and log into a folder.

    Args:
        recipe: what decides the training.
        folder: where ``plan-policy.npz`` and ``plan-policy.json`` go; ``labels/`` and
            ``checkpoint.pt`` are there until the end.
        workers: processes that solve problems.
        say: takes lines on how it goes.

    Returns:
        the content of the log.

    Raises:
        ParenvsError: the folder holds an unfinished training by another recipe.
    """
    place = Path(folder)
    checkpoint = place / CHECKPOINT
    trainer, log = Trainer(recipe), Log(recipe, place, say)
    if checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        if kept["recipe"] != asdict(recipe):
            raise ParenvsError(f"{checkpoint} is of another recipe; train into another folder")
        trainer.restore(kept["trainer"])
        log.points, log.seconds = kept["points"], kept["seconds"]
    else:
        _save(checkpoint, trainer, log)
    begin, before = time.perf_counter(), log.seconds["labels"]
    examples = []
    for part in _made(recipe, place / LABELS, workers):
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
    shutil.rmtree(place / LABELS)
    return content


def _save(path: Path, trainer: Trainer, log: Log) -> None:
    stored = io.BytesIO()
    content = {"points": log.points, "seconds": log.seconds, "recipe": asdict(log.recipe)}
    torch.save({"trainer": trainer.state(), **content}, stored)
    with replacing(path) as stream:
        stream.write(stored.getvalue())


def _part(recipe: Recipe, folder: Path, number: int) -> tuple[Lessons, Lessons]:
    """The examples of one part; its plans are kept in the folder."""
    file = folder / f"{number:04d}.npz"
    with one_thread():
        return lessons(labelled(recipe.seed, number, recipe.part, recipe.family, file))


def _made(recipe: Recipe, folder: Path, workers: int) -> Iterator[tuple[Lessons, Lessons]]:
    """The parts in their order, made in other processes a little ahead."""
    pending: deque[Future[tuple[Lessons, Lessons]]] = deque()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for number in range(recipe.parts):
            pending.append(pool.submit(_part, recipe, folder, number))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def draw(log: Path, picture: Path) -> None:
    """Draw the curve of a log: median and 95th percentile, best rated plan and drawn ones."""
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
