"""How often random episodes of the partition environments end in a conflict, and what they earn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.framework import INSTANCES, Column, Row, columns, main, measurement, percent
from parenvs.agents.planners import optimum

ENVIRONMENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("OperatorPartition-v0", {}),
    ("OperatorPartition-v0", {"linkage": False, "masked": False}),
    ("OperatorPartition-v0", {"linkage": False, "masked": True}),
    ("DataParallel-v0", {}),
    ("DataParallel-v0", {"masked": False}),
)
TOLERANCE = 1e-6
"""Tolerance of returns, which are multiples of 0.1."""


def episode(env: gym.Env[Any, Any], rng: np.random.Generator) -> tuple[float, int, bool]:
    """Play a random episode; returns its return, steps, and whether it ended in a conflict."""
    _, info = env.reset(seed=0)
    result, steps, over, reward = 0.0, 0, False, 0.0
    draws: list[int] = []
    while not over:
        if not draws:
            draws = rng.integers(2, size=1024).tolist()
        replicate, partition = info["action_mask"].tolist()
        action = draws.pop() if replicate and partition else partition
        _, step_reward, terminated, truncated, info = env.step(action)
        reward = float(step_reward)
        result += reward
        steps += 1
        over = terminated or truncated
    return result, steps, reward < 0  # under the paper's reward only a conflict is negative


def case(env_id: str, instance: str, kwargs: dict[str, Any], episodes: int) -> Row:
    """Play random episodes of one environment; returns their figures."""
    env = gym.make(env_id, instance=instance, reward="paper", **kwargs)
    space: Any = env.get_wrapper_attr("game").space
    rng = np.random.default_rng(0)
    best = optimum(space)
    begin = time.perf_counter()
    runs = [episode(env, rng) for _ in range(episodes)]
    returns, steps, conflicts = map(np.array, zip(*runs, strict=True))
    return {
        "instance": instance,
        "id": env_id,
        "kwargs": kwargs,
        "questions": len(space.questions),
        "episodes": episodes,
        "conflicts": int(conflicts.sum()),
        "mean_steps": float(steps.mean()),
        "longest": int(steps.max()),
        "mean_return": float(returns.mean()),
        "best_return": float(returns.max()),
        "optimum": best,
        "optimal": int((returns > best - TOLERANCE).sum()),
        "seconds": time.perf_counter() - begin,
    }


COLUMNS: list[Column] = [
    ("instance", "{instance}"),
    ("environment", "{id}"),
    ("arguments", lambda row: ", ".join(f"{k}={v}" for k, v in row["kwargs"].items())),
    ("questions", "{questions}"),
    ("conflicts", lambda row: percent(row["conflicts"] / row["episodes"])),
    ("mean steps", "{mean_steps:.1f}"),
    ("mean return", "{mean_return:.2f}"),
    ("best return", "{best_return:.2f}"),
    ("optimum", "{optimum:.1f}"),
    ("optimal episodes", lambda row: percent(row["optimal"] / row["episodes"])),
]


@measurement(title="Random episodes that end in a conflict", among={"instances": INSTANCES})
def conflicts(
    instances: tuple[str, ...] = INSTANCES, episodes: int = 2000
) -> Iterator[tuple[str, Row]]:
    for instance in instances:
        for env_id, kwargs in ENVIRONMENTS:
            yield "cases", case(env_id, instance, kwargs, episodes)


@conflicts.page
def page(data: dict[str, list[Row]], episodes: int) -> list[str]:
    return [
        f"{episodes:,} random episodes each through `gym.make`, seed 0, the paper's reward, "
        "actions uniform among those that the mask allows. `conflicts`: episodes that end in one; "
        "`questions`: steps of the longest possible episode. Without a mask (`masked=False`) and "
        "without linkage, nothing forbids an action that contradicts earlier ones. `optimal "
        "episodes` reach the optimum.",
        columns(data["cases"], COLUMNS, left=3),
    ]


if __name__ == "__main__":
    main(conflicts)
