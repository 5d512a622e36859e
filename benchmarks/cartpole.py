"""Rainbow on known ground: CartPole-v1 to a mean return over 475."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.framework import Column, Row, columns, main, measurement
from benchmarks.trained import greedy_returns

SOLVED = 475.0
"""Mean return from which Gymnasium considers CartPole-v1 solved."""
EVERY, EPISODES = 5_000, 100


def perform(seed: int, steps: int) -> Row:
    """Train until the greedy policy exceeds the mark or the steps are used up."""
    from parenvs.agents.learning.rainbow.algorithm import Rainbow
    from parenvs.agents.learning.train.learners import preset
    from parenvs.agents.learning.vec_env import one_thread

    curve: list[tuple[int, float]] = []
    begin = time.perf_counter()
    with one_thread():
        model = Rainbow("MlpPolicy", "CartPole-v1", seed=seed, **preset("tuned", device="cpu"))
        env, reached = gym.make("CartPole-v1"), None

        def greedy() -> float:
            return float(np.mean(greedy_returns(model, env, EPISODES, seed)))

        def check(*_: Any) -> bool:
            nonlocal reached
            if model.num_timesteps % EVERY == 0:
                curve.append((model.num_timesteps, greedy()))
                if curve[-1][1] > SOLVED:
                    reached = model.num_timesteps
            return reached is None

        model.learn(steps, callback=check)
    return {"seed": seed, "reached": reached, "curve": curve, "s": time.perf_counter() - begin}


@measurement(about={"jobs": "processes"})
def cartpole(seeds: int = 5, steps: int = 150_000, jobs: int = 1) -> Iterator[tuple[str, Row]]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for record in pool.map(perform, range(seeds), [steps] * seeds):
            yield "runs", record


@cartpole.page
def page(data: dict[str, list[Row]], steps: int, jobs: int) -> list[str]:
    records = data["runs"]
    told: list[Column] = [
        ("seed", "{seed}"),
        ("steps", lambda row: f"{row['reached']:,}" if row["reached"] else f"> {steps:,}"),
        (
            "mean return there, or the best",
            lambda row: f"{max(mean for _, mean in row['curve']):.1f}",
        ),
        ("seconds", "{s:.0f}"),
    ]
    done = sum(record["reached"] is not None for record in records)
    return [
        f"Preset `tuned`. Reached: the mean return of {EPISODES} greedy episodes, every {EVERY:,} "
        f"steps, is over {SOLVED:g}; training ends there. {jobs} seed(s) at a time, "
        "evaluation included in the seconds.",
        columns(records, told),
        f"{done} of {len(records)} seeds within {steps:,} steps.",
    ]


if __name__ == "__main__":
    main(cartpole)
