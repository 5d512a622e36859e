"""Updates per second of Rainbow beside those of SB3's DQN with the same network."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import gymnasium as gym
from stable_baselines3 import DQN
from stable_baselines3.common.logger import configure

from benchmarks.framework import Column, Row, columns, main, measurement, progress
from parenvs.agents.learning.rainbow.algorithm import Rainbow
from parenvs.agents.learning.vec_env import one_thread

PLAIN: dict[str, Any] = {"double_q": False, "dueling": False, "prioritized": False, "n_steps": 1}
CASES: dict[str, dict[str, Any]] = {
    "all switches off": PLAIN,
    "double, dueling, PER": {"n_steps": 1},
    "double, dueling, PER, 3 steps": {"n_steps": 3},
    "double, dueling, PER, 3 steps, C51": {"n_steps": 3, "distributional": True},
    "double, dueling, PER, 3 steps, C51, noisy": {
        "n_steps": 3, "distributional": True, "noisy": True,
    },
}  # fmt: skip
SHARED: dict[str, Any] = {
    "buffer_size": 10_000, "batch_size": 64, "learning_starts": 0, "train_freq": 1,
    "gradient_steps": 0, "seed": 0, "device": "cpu", "policy_kwargs": {"net_arch": [64, 64]},
}  # fmt: skip
FUSED = {**SHARED["policy_kwargs"], "optimizer_kwargs": {"fused": True}}
TARGET = 0.6
"""Ratio that is asked of Rainbow with double Q-learning, dueling and priorities."""


def filled(algorithm: type[DQN], steps: int, **options: Any) -> DQN:
    """An agent on ``CartPole-v1`` whose buffer holds ``steps`` steps."""
    model = algorithm("MlpPolicy", gym.make("CartPole-v1"), **{**SHARED, **options})
    model.set_logger(configure(None, []))
    return model.learn(steps)


def updates_per_second(models: list[DQN], updates: int, repeats: int) -> list[float]:
    """Median updates per second of each agent; the agents take turns of ``updates`` updates."""
    seconds: list[list[float]] = [[] for _ in models]
    for _ in range(repeats):
        for model, spent in zip(models, seconds, strict=True):
            begin = time.perf_counter()
            model.train(updates, batch_size=SHARED["batch_size"])
            spent.append(time.perf_counter() - begin)
    return [updates / median(spent) for spent in seconds]


@measurement(about={"updates": "of each agent in a turn", "repeats": "turns"})
def rainbow_speed(updates: int = 400, repeats: int = 5) -> list[Row]:
    with one_thread():
        progress("filling the buffers")
        models = [filled(DQN, 2000), filled(DQN, 2000, policy_kwargs=FUSED)]
        models += [filled(Rainbow, 2000, **switches) for switches in CASES.values()]
        for model in models:
            model.train(20, batch_size=SHARED["batch_size"])
        progress("updates")
        speeds = updates_per_second(models, updates, repeats)
    names = ["DQN (Stable-Baselines3)", "DQN with fused Adam", *CASES]
    return [{"agent": n, "updates_per_second": s} for n, s in zip(names, speeds, strict=True)]


@rainbow_speed.page
def page(rows: list[Row], updates: int, repeats: int) -> list[str]:
    base = rows[0]["updates_per_second"]
    told: list[Column] = [
        ("agent", "{agent}"),
        ("updates/s", "{updates_per_second:.0f}"),
        ("over DQN", lambda row: f"{row['updates_per_second'] / base:.2f}"),
    ]
    return [
        f"Median of {repeats} turns of {updates} updates of 64 transitions each, "
        f"`CartPole-v1`, two layers of 64, one thread. The ratio with double Q-learning, dueling "
        f"and prioritised replay has to be {TARGET} at least.",
        columns(rows, told),
    ]


if __name__ == "__main__":
    main(rainbow_speed)
