"""Trains the network that plans any model, from scratch, with a log of how it goes.

Trains by the recipe, looks at the validation set on the way, and keeps the network that does best
there. The log says, step by step, how long its plans are against the proven optima.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.plan_labels import Labelled
from parenvs.agents.plan_policy import PlanPolicy
from parenvs.agents.plan_training import Recipe, Trainer, train
from parenvs.datasets.instance_sets import load_set
from parenvs.files import replacing, write_text
from parenvs.plan_space import PlanSpace

WEIGHTS, LOG = "plan-policy.npz", "plan-policy.json"
EVERY = {"imitate": 250, "improve": 25}
"""Steps of each phase between two looks at the validation set."""
PERCENTILES = (50, 90, 95, 99, 100)


def validation(name: str = "plan-validation") -> Labelled:
    """A set with its proven optima."""
    problems = load_set(name)
    return Labelled.of([PlanSpace.build(p.pipeline, p.stages) for p in problems], seconds=60.0)


def ratios(policy: PlanPolicy, solved: Labelled) -> np.ndarray:
    """(b,) lengths of the policy's plans over those of the labels."""
    return policy.lengths(solved.episodes) / solved.lengths


def pretrain(
    recipe: Recipe,
    folder: str | Path,
    workers: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Train, and write the best network and the log into a folder.

    Args:
        recipe: what decides the training.
        folder: where ``plan-policy.npz`` and ``plan-policy.json`` go.
        workers: processes that make problems.
        say: takes lines on how it goes.

    Returns:
        the content of the log.
    """
    solved, begin = validation(), time.perf_counter()
    log: dict[str, Any] = {"recipe": asdict(recipe), "points": []}
    best: dict[str, np.ndarray] = {}
    least = np.inf

    def report(trainer: Trainer, phase: str, step: int, figures: dict[str, float]) -> None:
        nonlocal best, least
        if step % EVERY[phase]:
            return
        found = ratios(trainer.policy, solved)
        mean = float(np.exp(np.log(found).mean()))
        spread = np.percentile(found, PERCENTILES)
        point = {
            "phase": phase,
            "step": step,
            "seconds": round(time.perf_counter() - begin, 1),
            **{key: round(value, 5) for key, value in figures.items()},
            "mean": round(mean, 5),
            **{f"p{p}": round(float(x), 5) for p, x in zip(PERCENTILES, spread, strict=True)},
        }
        log["points"].append(point)
        if mean < least:
            best, least = trainer.network.weights(), mean
        say(" ".join(f"{key}={value}" for key, value in point.items()))

    last = train(recipe, report, workers)
    weights = best or last.weights
    log["seconds"] = round(time.perf_counter() - begin, 1)
    log["mean"] = round(least, 5)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    stored = io.BytesIO()
    arrays: dict[str, Any] = dict(weights)
    np.savez(stored, **arrays)
    with replacing(path / WEIGHTS) as stream:
        stream.write(stored.getvalue())
    write_text(path / LOG, json.dumps(log, indent=1) + "\n")
    return log
