"""Steps per second of ``PipelinePlan-v0`` with a new problem in every episode, by way of drawing.

Random legal actions, on one core, in processor seconds of ``step`` alone. The ways take turns, so
what else runs on the machine slows all of them.
"""

from __future__ import annotations

import tempfile
import time
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.framework import Column, columns, main, measurement, progress
from parenvs.datasets.pipeline import generators
from parenvs.datasets.pipeline.sequence import WINDOW
from parenvs.tasks.pipeline.points import PointSpace

WAYS: dict[str, dict[str, Any]] = {
    "one fixed problem": {"instance": "plan-test/cnn-003"},
    "draw=1": {},
    "draw=2, problems made when drawn": {"draw": 2},
    "draw=2, pool": {"draw": 2, "pool": True},
    "draw=2, pool, refilled": {"draw": 2, "pool": True, "refill": True},
}
"""Way of drawing -> arguments; ``pool`` becomes a folder."""
TARGET = 300_000
"""Steps per second that are asked of a pool at 1,024 environments with ``copy=False``."""


def speed(env: Any, masks: np.ndarray, seconds: float, rng: np.random.Generator) -> Any:
    """Return steps per processor second, and the masks after them."""
    luck = rng.random((8, *masks.shape), dtype=np.float32)
    spent, steps = 0.0, 0
    while spent < seconds:
        actions = (luck[steps % 8] * masks).argmax(axis=1)
        begin = time.process_time()
        infos = env.step(actions)[4]
        spent += time.process_time() - begin
        masks, steps = infos["action_mask"], steps + 1
    return steps * len(masks) / spent, masks


def drawing_milliseconds(count: int) -> tuple[float, float]:
    """Return the processor milliseconds in which a problem is drawn, and its tables are made."""
    rng = np.random.default_rng(0)
    begin = time.process_time()
    pipelines = [generators.draw(rng).pipeline for _ in range(count)]
    drawn = time.process_time()
    for pipeline in pipelines:
        PointSpace.build(pipeline)
    return (drawn - begin) / count * 1e3, (time.process_time() - drawn) / count * 1e3


@measurement(
    about={
        "seconds": "of a way in a turn",
        "warm": "of a pool before the first",
        "repeats": "turns",
    }
)
def drawing(
    sizes: tuple[int, ...] = (64, 1024), seconds: float = 1.0, warm: float = 2.0, repeats: int = 5
) -> dict[str, Any]:
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        gym.make_vec("PipelinePlan-v0", num_envs=1, draw=2, pool=folder).close()
        written = time.process_time() - begin
        progress(f"{WINDOW:,} problems written in {written:.0f} processor seconds")
        for size in sizes:
            for copy in (False, True):
                envs: dict[str, Any] = {}
                for way, kwargs in WAYS.items():
                    settings = {**kwargs, "pool": folder} if "pool" in kwargs else kwargs
                    env = gym.make_vec("PipelinePlan-v0", num_envs=size, copy=copy, **settings)
                    envs[way] = env, env.reset(seed=0)[1]["action_mask"]
                found: dict[str, list[float]] = {way: [] for way in WAYS}
                rng = np.random.default_rng(0)
                for way, (env, masks) in envs.items():
                    if "pool" in WAYS[way]:  # pages of the files are mapped when first read
                        envs[way] = env, speed(env, masks, warm, rng)[1]
                for turn in range(repeats):
                    for way, (env, masks) in envs.items():
                        steps, masks = speed(env, masks, seconds, rng)
                        envs[way] = env, masks
                        found[way].append(steps)
                    progress(f"{size} environments, copy={copy}: turn {turn + 1}")
                for way, (env, _) in envs.items():
                    env.close()
                    runs.append({"way": way, "envs": size, "copy": copy, "steps": found[way]})
    return {"written": written, "milliseconds": drawing_milliseconds(300), "runs": runs}


@drawing.page
def page(data: dict[str, Any], warm: float, repeats: int) -> list[str]:
    drawn, built = data["milliseconds"]
    told: list[Column] = [
        ("problems", "{way}"),
        ("environments", "{envs:,}"),
        ("copy", lambda row: "yes" if row["copy"] else "no"),
        ("steps/s", lambda row: f"{median(row['steps']):,.0f}"),
        ("best turn", lambda row: f"{max(row['steps']):,.0f}"),
    ]
    return [
        f"Every episode has a new problem (`repeat=1`). A pool holds {WINDOW:,} problems, written "
        f"once in {data['written']:.0f} processor seconds. A problem alone takes {drawn:.2f} ms to "
        f"draw, {built:.2f} ms of it for its legal starts. Medians and best of {repeats} turns, "
        f"in processor seconds of `step` on one core, of pools after {warm:g} s, in which "
        "their pages are mapped; refilled pools have another process that makes the next problems. "
        "Asked of a pool at 1,024 environments without copies: "
        f"{TARGET:,} steps a second.",
        columns(data["runs"], told),
    ]


if __name__ == "__main__":
    main(drawing)
