"""One training run of a fused loop: problems, iterations, the log and the weights.

Other processes make the problems, which are copied to the device. From then on environment, masks,
policy and updates are tensors there. The host waits for the device only to learn the shapes of what
comes next (the number of legal choices, see ``policy``) and, once in an iteration, the figures of
the log.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parenvs.agents.learning.fused.checkpoint import CHECKPOINT, load, save
from parenvs.agents.learning.fused.env import FusedEnv
from parenvs.agents.learning.fused.learner import AGENTS, Learner, learner_of
from parenvs.agents.learning.fused.policy import greedy_lengths
from parenvs.agents.learning.fused.pool import ProblemPool, concatenated, draw_part, draw_parts
from parenvs.agents.learning.fused.rainbow import RainbowSettings
from parenvs.agents.learning.fused.settings import OBJECTIVES, Settings
from parenvs.agents.learning.vec_env import one_thread
from parenvs.errors import ParenvsError
from parenvs.files import locked, replacing, write_text
from parenvs.machine import host, processor

WEIGHTS, LOG = "fused-policy.npz", "fused-policy.json"
HELD_OUT, HELD_OUT_PART = 256, 2**32 - 1
"""Number of problems that are never trained on, and the number of the part that they are."""
LOOKS = 10
"""How often a training evaluates the policy on the problems held out, the start not counted."""
DEVICES = ("cpu", "cuda")
KEPT_EVERY = 60.0
"""Seconds of training between two checkpoints."""

Say = Callable[[str], object]
"""Takes a line on how the training goes."""


def train_named(
    agent: str, seed: int, steps: int, place: Path, say: Say, resume: bool = False
) -> None:
    """Train an agent by its name for so many steps; see ``train``.

    Raises:
        ParenvsError: the loop has no such agent, the folder holds a run, or it is interrupted.
    """
    if agent not in AGENTS:
        raise ParenvsError(f"--agent {agent} is not an option of --distribution fused")
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


def train(
    settings: Settings,
    folder: str | Path,
    device: str = "cpu",
    workers: int = 1,
    say: Say = lambda _: None,
    resume: bool = False,
) -> dict[str, Any]:
    """Train, and write the weights (``fused-policy.npz``) and the log (``fused-policy.json``).

    Args:
        settings: what decides the training.
        folder: where both files go; ``PlanPolicy`` takes the weights.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:<number>"``.
        workers: processes that make problems; 0 makes them in this one. It changes no result.
        say: is called with lines on how the training goes.
        resume: go on from the last checkpoint in the folder, which is written every minute and
            removed at the end; the result is that of a training without an interruption.

    Returns:
        The content of the log, as JSON types.

    Raises:
        ParenvsError: there is no such device, a setting is out of its range, or the folder holds a
            training that was interrupted, or, with ``resume``, no training of these settings.
    """
    check(settings)
    kept = Path(folder) / CHECKPOINT
    if kept.exists() and not resume:
        raise ParenvsError(
            f"{folder}: holds a training that was interrupted; continue with --resume, or choose "
            "another folder"
        )
    standing = load(kept, settings) if resume else None
    if workers < 0:
        raise ParenvsError(f"workers must not be negative, not {workers}")
    torch_device = device_of(device)
    threads = one_thread() if torch_device.type == "cpu" else contextlib.nullcontext()
    done = 0 if standing is None else standing.iteration
    refills = (done - 1) // settings.refill if settings.refill and done else 0
    new_parts = draw_parts(settings.seed, settings.part, settings.family, workers, refills)
    with threads, contextlib.closing(new_parts):
        begin = time.perf_counter()
        parts = settings.problems // settings.part
        first_parts = [next(new_parts) for _ in range(parts)]
        first_problems = concatenated([first_parts[(k - refills) % parts] for k in range(parts)])
        held_out = draw_part(settings.seed, HELD_OUT_PART, HELD_OUT, settings.family)
        pool = ProblemPool(first_problems, torch_device, refills % parts * settings.part)
        learner = learner_of(settings, FusedEnv(pool, settings.envs, settings.seed))
        held_out_env = FusedEnv(ProblemPool(held_out, torch_device), HELD_OUT)
        points: list[dict[str, float]] = []
        say(f"{len(pool)} problems made in {time.perf_counter() - begin:.1f} s")
        seconds = written = 0.0
        if standing is not None:
            try:
                standing.put(learner)
            except ParenvsError as error:
                raise ParenvsError(f"{kept}: {error}; start anew elsewhere") from None
            points, seconds, written = standing.points, standing.seconds, standing.seconds
            say(f"goes on behind iteration {done}")

        def look(point: dict[str, float]) -> None:
            """Add the mean length of the greedy plans of the problems held out to a point."""
            mean_length = greedy_lengths(learner.policy, held_out_env).log().mean().exp().item()
            point["held_out"] = round(mean_length, 5)
            points.append(point)

        if standing is None:
            look({"iteration": 0})
        for iteration in range(done + 1, settings.iterations + 1):
            begin = time.perf_counter()
            if settings.refill and iteration > 1 and (iteration - 1) % settings.refill == 0:
                pool.put(next(new_parts))
                learner.restart()
            figures = learner.advance()
            point = {key: round(figure.item(), 5) for key, figure in figures.items()}
            seconds += (spent := time.perf_counter() - begin)
            point = {"iteration": iteration, **point, "seconds": round(seconds, 3)}
            if looks(iteration, settings) > looks(iteration - 1, settings):
                look(point)
                say(
                    f"iteration {iteration} of {settings.iterations}: mean length "
                    f"{point['length']:.4f}, of best rated plans of problems held out "
                    f"{point['held_out']:.4f}; "
                    f"{settings.samples / spent:,.0f} samples/s"
                )
            else:
                points.append(point)
            if seconds - written > KEPT_EVERY and iteration < settings.iterations:
                save(kept, learner, points, seconds)
                written = seconds
    log = _write(learner, points, seconds, Path(folder), torch_device)
    kept.unlink(missing_ok=True)
    return log


def device_of(name: str) -> torch.device:
    """The torch device of a name such as ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Raises:
        ParenvsError: the kind is none of ``DEVICES``, or torch finds no such device here.
    """
    kind, _, number = name.partition(":")
    if kind not in DEVICES or (number and not number.isdecimal()):
        raise ParenvsError(f"--device: one of {', '.join(DEVICES)}, not {name!r}")
    count = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= count:
        raise ParenvsError(
            f"--device {name}: torch {torch.__version__} finds {count} CUDA devices here; "
            "take --device cpu, or install torch for CUDA and its driver"
        )
    return torch.device(name)


def looks(iteration: int, settings: Settings) -> int:
    """How many looks at the problems held out are due by the end of ``iteration``."""
    return iteration * LOOKS // settings.iterations


def check(settings: Settings) -> None:
    """Check that every setting is in its range.

    Raises:
        ParenvsError: a setting is not; the message names it and its value.
    """
    for field in fields(settings):
        least, value = int(field.name not in ("seed", "refill")), getattr(settings, field.name)
        if field.type == "int" and value < least:
            raise ParenvsError(f"{field.name} must be at least {least}, not {value}")
    if settings.objective not in OBJECTIVES:
        raise ParenvsError(
            f"objective must be one of {', '.join(OBJECTIVES)}, not {settings.objective!r}"
        )
    if settings.problems % settings.part:
        raise ParenvsError(
            f"part must divide problems: {settings.part} does not divide {settings.problems}"
        )
    if isinstance(settings, RainbowSettings) and settings.steps >= 2 * settings.choices:
        raise ParenvsError(
            f"steps must be fewer than those of a rollout, {2 * settings.choices}, not "
            f"{settings.steps}"
        )


def _write(
    learner: Learner,
    points: list[dict[str, float]],
    seconds: float,
    folder: Path,
    device: torch.device,
) -> dict[str, Any]:
    """Write the weights and the log into the folder; returns the content of the log."""
    settings = learner.settings
    weights = io.BytesIO()
    np.savez(weights, **{k: v.astype(np.float32) for k, v in learner.policy.weights().items()})
    with replacing(folder / WEIGHTS) as stream:
        stream.write(weights.getvalue())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    content = {
        "settings": asdict(settings),
        "device": {"kind": device.type, "name": name},
        "machine": host(),
        "samples": settings.samples * settings.iterations,
        "seconds": round(seconds, 1),
        "samples_per_second": round(settings.samples * settings.iterations / seconds, 1),
        "points": points,
    }
    write_text(folder / LOG, json.dumps(content, indent=1) + "\n")
    return content
