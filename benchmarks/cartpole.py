"""PPO of ``parenvs train`` beside PPO of Stable-Baselines3 on CartPole-v1, with equal steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from statistics import median

import gymnasium as gym
import numpy as np

from benchmarks.framework import Case, Row, columns, main, measurement
from benchmarks.trained import greedy_returns

ENV = "CartPole-v1"
METHODS = {"ours": "`parenvs train CartPole-v1`", "sb3": "PPO of Stable-Baselines3"}


def trained(method: str, seed: int, steps: int, episodes: int) -> Row:
    """Train, with the defaults of each, then play by the best actions."""
    from parenvs.agents.learning.config import TrainConfig
    from parenvs.agents.learning.play import one_thread
    from parenvs.agents.learning.player import Player
    from parenvs.agents.learning.trainer import train

    begin = time.process_time()
    with one_thread():
        if method == "ours":
            config = TrainConfig(env_id=ENV, agent="ppo", seed=seed, steps=steps)
            agent = train(config).algorithm
            seconds = time.process_time() - begin
            returns = Player(agent).returns(ENV, {}, episodes, 10_000 * (seed + 1)).tolist()
        else:
            from stable_baselines3 import PPO

            model = PPO("MlpPolicy", ENV, seed=seed, device="cpu").learn(steps)
            seconds = time.process_time() - begin
            returns = greedy_returns(model, gym.make(ENV), episodes, seed)
    return {"seconds": seconds, "return": float(np.mean(returns))}


@measurement(
    key="method seed steps",
    about={"seeds": "seeds 0 to this less one", "episodes": "by the best actions, behind it"},
)
def cartpole(
    seeds: int = 3, steps: tuple[int, ...] = (25_000, 50_000), episodes: int = 100
) -> Iterator[Case]:
    for budget in steps:
        for seed in range(seeds):
            for method in METHODS:
                key = {"method": method, "seed": seed, "steps": budget}
                yield key, partial(trained, method, seed, budget, episodes)


@cartpole.page
def page(rows: list[Row], episodes: int) -> list[str]:
    lines = []
    for budget in sorted({row["steps"] for row in rows}):
        for method, words in METHODS.items():
            mine = [x for x in rows if (x["method"], x["steps"]) == (method, budget)]
            if mine:
                lines.append(
                    {
                        "words": words, "steps": budget,
                        "seconds": median(x["seconds"] for x in mine),
                        "mean": float(np.mean([x["return"] for x in mine])),
                        "each": ", ".join(f"{x['return']:.1f}" for x in mine),
                    }
                )  # fmt: skip
    return [
        f"Both with their defaults and as many steps. Mean return of {episodes} episodes by the "
        "best actions behind the training, of 500 at most; median processor seconds of a training. "
        "Ours takes 64 turns a step in environments outside of the suite, which was chosen here: "
        "with 512 it reached 218.7 in 50,000 steps. Stable-Baselines3 keeps its defaults.",
        columns(
            lines,
            [
                ("agent", "{words}"),
                ("steps", "{steps:,}"),
                ("return", "{mean:.1f}"),
                ("each seed", "{each}"),
                ("seconds", "{seconds:.0f}"),
            ],
        ),
    ]


if __name__ == "__main__":
    main(cartpole)
