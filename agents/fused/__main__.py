"""Trains the planner of pipelines by PPO, all of it on one device.

    python -m parenvs.agents.fused --device cpu --envs 256 --iterations 200 --out runs/fused

Problems are made by other processes and copied to the device. From then on environment, masks,
policy and learner are tensors there. The host waits for the device only to learn the shapes of what
comes next (the number of legal choices, see ``fused_policy``) and, once in an iteration, the
figures of the log.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parenvs.agents.fused.env import FusedEnv
from parenvs.agents.fused.learner import OBJECTIVES, Learner, Settings
from parenvs.agents.fused.policy import greedy_lengths
from parenvs.agents.fused.pool import PlanPool, drawn, joined, parts
from parenvs.agents.vec_env import one_thread
from parenvs.datasets.families import FAMILIES
from parenvs.errors import ParenvsError
from parenvs.files import replacing, write_text
from parenvs.machine import cores, processor, versions

WEIGHTS, LOG = "fused-policy.npz", "fused-policy.json"
HELD_OUT, HELD_OUT_PART = 256, 2**32 - 1
"""Problems that are never trained on, and the number of their part."""
LOOKS = 10
"""Looks at them."""
DEVICES = ("cpu", "cuda")

Say = Callable[[str], None]


def device_of(name: str) -> torch.device:
    """A device to train on.

    Raises:
        ParenvsError: none of ``DEVICES``, or none that torch finds here.
    """
    kind, _, number = name.partition(":")
    if kind not in DEVICES or (number and not number.isdecimal()):
        raise ParenvsError(f"--device: one of {', '.join(DEVICES)}, not {name!r}")
    found = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= found:
        raise ParenvsError(
            f"--device {name}: torch {torch.__version__} finds {found} CUDA devices here; "
            "take --device cpu, or install torch for CUDA and its driver"
        )
    return torch.device(name)


def train(
    settings: Settings,
    folder: str | Path,
    device: str = "cpu",
    workers: int = 1,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Train, and write ``fused-policy.npz``, for ``PlanPolicy``, and ``fused-policy.json``.

    Args:
        settings: what decides the training.
        folder: where they go.
        device: ``"cpu"`` or ``"cuda"``.
        workers: processes that make problems; 0: this one. It changes no result.
        say: takes lines on how it goes.

    Returns:
        the content of the log.

    Raises:
        ParenvsError: no such device, or settings that make no sense.
    """
    check(settings)
    if workers < 0:
        raise ParenvsError(f"workers must not be negative, not {workers}")
    where = device_of(device)
    threads = one_thread() if where.type == "cpu" else contextlib.nullcontext()
    fresh = parts(settings.seed, settings.part, settings.family, workers)
    with threads, contextlib.closing(fresh):
        begin = time.perf_counter()
        first = joined([next(fresh) for _ in range(settings.problems // settings.part)])
        held_out = drawn(settings.seed, HELD_OUT_PART, HELD_OUT, settings.family)
        pool = PlanPool(first, where)
        learner = Learner(settings, FusedEnv(pool, settings.envs, settings.seed))
        judge = FusedEnv(PlanPool(held_out, where), HELD_OUT)
        points: list[dict[str, float]] = []
        say(f"{len(pool)} problems made in {time.perf_counter() - begin:.1f} s")
        seconds = 0.0

        def look(point: dict[str, float]) -> None:
            found = greedy_lengths(learner.policy, judge).log().mean().exp().item()
            point["held_out"] = round(found, 5)
            points.append(point)

        look({"iteration": 0})
        for iteration in range(1, settings.iterations + 1):
            begin = time.perf_counter()
            if settings.refill and iteration > 1 and (iteration - 1) % settings.refill == 0:
                pool.put(next(fresh))
                learner.restart()
            rollout = learner.play()
            figures = learner.learn(rollout)
            told = {"episodes": rollout.ended, "reward": rollout.reward, "length": rollout.length}
            point = {key: round(x.item(), 5) for key, x in {**told, **figures}.items()}
            seconds += (spent := time.perf_counter() - begin)
            point = {"iteration": iteration, **point, "seconds": round(seconds, 3)}
            if looks(iteration, settings) > looks(iteration - 1, settings):
                look(point)
                say(
                    f"iteration {iteration} of {settings.iterations}: mean length "
                    f"{point['length']:.4f}, of best rated plans of problems held out "
                    f"{point['held_out']:.4f}; entropy {point['entropy']:.3f}; "
                    f"{settings.samples / spent:,.0f} samples/s"
                )
            else:
                points.append(point)
    return _written(learner, points, seconds, Path(folder), where)


def looks(iteration: int, settings: Settings) -> int:
    """Looks at the problems held out until an iteration."""
    return iteration * LOOKS // settings.iterations


def check(settings: Settings) -> None:
    """Refuse settings that make no sense.

    Raises:
        ParenvsError: which one, and why.
    """
    for name in ("envs", "iterations", "choices", "epochs", "problems", "part", "hidden"):
        if getattr(settings, name) < 1:
            raise ParenvsError(f"{name} must be at least 1, not {getattr(settings, name)}")
    if settings.refill < 0 or settings.seed < 0:
        raise ParenvsError("refill and seed must not be negative")
    if settings.objective not in OBJECTIVES:
        raise ParenvsError(
            f"objective must be one of {', '.join(OBJECTIVES)}, not {settings.objective!r}"
        )
    if settings.problems % settings.part:
        raise ParenvsError(
            f"part must divide problems: {settings.part} does not divide {settings.problems}"
        )


def _written(
    learner: Learner, points: list[dict[str, float]], seconds: float, folder: Path, device: Any
) -> dict[str, Any]:
    """Write weights and log; the content of the log."""
    settings = learner.settings
    stored = io.BytesIO()
    np.savez(stored, **{k: v.astype(np.float32) for k, v in learner.policy.weights().items()})
    with replacing(folder / WEIGHTS) as stream:
        stream.write(stored.getvalue())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    content = {
        "settings": asdict(settings),
        "device": {"kind": device.type, "name": name},
        "machine": {"processor": processor(), "cores": cores(), **versions()},
        "samples": settings.samples * settings.iterations,
        "seconds": round(seconds, 1),
        "samples_per_second": round(settings.samples * settings.iterations / seconds, 1),
        "points": points,
    }
    write_text(folder / LOG, json.dumps(content, indent=1) + "\n")
    return content


def main(arguments: Iterable[str] | None = None) -> int:
    """The command line of this module; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m parenvs.agents.fused",
        description="Train a planner of pipelines by PPO, all of it on one device.",
    )
    parser.add_argument("--device", default="cpu", help=f"{' or '.join(DEVICES)} (default: cpu)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the results")
    parser.add_argument("--workers", type=int, default=1, help="processes that make problems")
    for field in fields(Settings):
        kind = {"int": int, "float": float}.get(str(field.type), str)
        choices = {"family": list(FAMILIES), "objective": OBJECTIVES}.get(field.name)
        words = "any family" if field.name == "family" else "%(default)s"
        parser.add_argument(
            f"--{field.name}", type=kind, default=field.default, choices=choices,
            help=f"default: {words}",
        )  # fmt: skip
    options = vars(parser.parse_args(None if arguments is None else list(arguments)))
    folder, device, workers = (options.pop(key) for key in ("out", "device", "workers"))
    try:
        say = partial(print, flush=True)
        content = train(Settings(**options), folder, device, workers, say)
    except ParenvsError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{content['samples']:,} samples in {content['seconds']} s; {folder / WEIGHTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
