"""Steps per second of every environment, single and batched, beside Gymnasium's CartPole.

    python benchmarks/speed.py
    python benchmarks/speed.py --sizes 0 64 --repeats 1 --seconds 0.1

Legal actions of whole episodes are drawn beforehand, so that nothing but the environments is timed.
All environments take turns, so that they share the noise of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.framework import Row, main, measurement, progress, table
from parenvs.core.registry import environments

BASELINE = "CartPole-v1"
STEPS = 100
"""Most steps of a pass of a batch."""
SINGLE_STEPS = 1000
"""A pass of a single environment takes at least this many steps."""
PAPER: dict[str, dict[str, Any]] = {
    "PipelineCut-v0": {"instance": "t5-base"},
    "OperatorPartition-v0": {"instance": "t5-base"},
    "DataParallel-v0": {"instance": "t5-base"},
}
"""Environments of one problem, and their arguments; others generate problems."""
Play = tuple[Callable[[], object], int]
"""A function that is timed, and the number of environment steps of a call."""


def draw_actions(rng: np.random.Generator, info: dict[str, Any], count: int) -> np.ndarray:
    """Draw (count,) legal actions uniformly; an ``info`` without a mask means two legal actions."""
    masks = np.reshape(info.get("action_mask", np.ones((count, 2))), (count, -1))
    return (rng.random(masks.shape) * masks).argmax(axis=1)


def batch_play(envs: gym.vector.VectorEnv[Any, Any, Any]) -> Play:
    """Return a pass of a batch: a reset, then steps, autoresets included."""
    rng = np.random.default_rng(0)
    _, info = envs.reset(seed=0)
    actions = []
    for _ in range(STEPS):
        actions.append(draw_actions(rng, info, envs.num_envs))
        info = envs.step(actions[-1])[-1]

    def play() -> None:
        envs.reset(seed=0)
        for batch_actions in actions:
            envs.step(batch_actions)

    return play, STEPS * envs.num_envs


def single_play(env: gym.Env[Any, Any]) -> Play:
    """Return a pass of a single environment: whole episodes, whose resets count as no steps."""
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    actions: list[int] = []
    over = False
    while len(actions) < SINGLE_STEPS or not over:
        actions.append(int(draw_actions(rng, info, 1)[0]))
        _, _, terminated, truncated, info = env.step(actions[-1])
        over = terminated or truncated
        if over:
            _, info = env.reset()

    def play() -> None:
        env.reset(seed=0)
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return play, len(actions)


def rate(play: Callable[[], object], steps: int, seconds: float) -> float:
    """Return steps per second of processor time, over passes of ``seconds`` together."""
    passes, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds or not passes:
        play()
        passes += 1
    return steps * passes / max(spent, 1e-9)


@measurement(
    title="Speed of environments",
    about={
        "sizes": "environments of a batch; 0 for a single one", "seconds": "of each run",
        "repeats": "runs of each environment",
    },
)  # fmt: skip
def speed(
    sizes: tuple[int, ...] = (0, 1, 64, 1024), seconds: float = 0.2, repeats: int = 3
) -> dict[str, Any]:
    rows: list[Row] = []
    plays: list[Play] = []
    for size in sizes:
        for name in (BASELINE, *PAPER, *(x for x in environments() if x not in PAPER)):
            kwargs = PAPER.get(name, {})
            progress(f"{name} {size}")
            env: Any
            if size:
                env = gym.make_vec(name, size, "vector_entry_point", **kwargs)
                plays.append(batch_play(env))
            else:
                env = gym.make(name, **kwargs)
                plays.append(single_play(env))
            rows.append({"what": name, "kwargs": kwargs, "envs": size, "steps_per_second": []})
    for _ in range(repeats):
        for row, play in zip(rows, plays, strict=True):
            row["steps_per_second"].append(rate(*play, seconds))
    return {"environments": rows}


@speed.page
def page(data: dict[str, Any]) -> list[str]:
    rows = [row for row in data["environments"] if "bare" not in row["what"]]
    medians = {(row["what"], row["envs"]): median(row["steps_per_second"]) for row in rows}
    names = dict.fromkeys(row["what"] for row in rows)
    sizes = sorted({row["envs"] for row in rows} & {0, 1, 64, 1024})
    heads = [("single" if size == 0 else f"{size:,} at once") for size in sizes]

    def cells(name: str) -> Iterator[str]:
        for size in sizes:
            steps, base = medians.get((name, size)), medians[BASELINE, size]
            yield f"{steps:,.0f} ({steps / base:.3g})" if steps else ""

    return [
        "Environment steps per second of one core, median of the runs, and in brackets that over "
        "CartPole's with as many environments at once. `drawn`: each environment generates its own "
        "problems; `ahead`: action features look one step ahead.",
        table(["environment", *heads], [[name, *cells(name)] for name in names]),
    ]


if __name__ == "__main__":
    main(speed)
