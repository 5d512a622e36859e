"""How often random episodes of the partition environments end in a conflict, and what they earn."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

import parenvs  # noqa: F401 (registers the environments)
from benchmarks.common import INSTANCES, parser, percent, progress, publish, table
from parenvs.agents.reference import optimum

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


def case(env_id: str, instance: str, kwargs: dict[str, Any], episodes: int) -> dict[str, Any]:
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


def row(raw: dict[str, Any]) -> list[object]:
    """The table's row of one case."""
    arguments = ", ".join(f"{key}={value}" for key, value in raw["kwargs"].items())
    cells: list[object] = [raw["instance"], raw["id"], arguments, raw["questions"]]
    cells += [percent(raw["conflicts"] / raw["episodes"]), f"{raw['mean_steps']:.1f}"]
    cells += [f"{raw['mean_return']:.2f}", f"{raw['best_return']:.2f}", f"{raw['optimum']:.1f}"]
    return [*cells, percent(raw["optimal"] / raw["episodes"])]


def main() -> None:
    """Play, print and write."""
    options = parser(__doc__)
    options.add_argument("--instances", nargs="+", default=INSTANCES, choices=INSTANCES)
    options.add_argument("--episodes", type=int, default=2000)
    chosen = options.parse_args()
    cases = []
    for instance in chosen.instances:
        for env_id, kwargs in ENVIRONMENTS:
            progress(f"{instance} {env_id} {kwargs}")
            cases.append(case(env_id, instance, kwargs, chosen.episodes))
    header = ["instance", "environment", "arguments", "questions", "conflicts", "mean steps"]
    header += ["mean return", "best return", "optimum", "optimal episodes"]
    sections = [
        f"{chosen.episodes:,} random episodes each through `gym.make`, seed 0, the paper's reward, "
        "actions uniform among those that the mask allows. `conflicts`: episodes that end in one; "
        "`questions`: steps of the longest possible episode. Without a mask (`masked=False`) and "
        "without linkage, nothing forbids an action that contradicts earlier ones. `optimal "
        "episodes` reach the optimum.",
        table(header, map(row, cases), left=3),
    ]
    publish("conflicts", sections, {"cases": cases}, chosen.out)


if __name__ == "__main__":
    main()
