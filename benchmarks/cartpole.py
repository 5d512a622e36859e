"""Agents of ``parenvs train`` beside Stable-Baselines3's on small control tasks, with equal steps.

    python benchmarks/cartpole.py
    python benchmarks/cartpole.py --envs Acrobot-v1 --methods ppo sb3-ppo --seeds 1

MinAtar's Breakout needs its package, ``pip install minatar``, and is left out without it.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from functools import partial
from statistics import median

import gymnasium as gym
import numpy as np

from benchmarks.framework import Case, Row, columns, forked, main, measurement
from benchmarks.trained import greedy_returns

MINATAR = "MinAtar/Breakout-v1"
ENVS = ("CartPole-v1", "Acrobot-v1", MINATAR)
METHODS = {
    "ppo": "`parenvs train --agent ppo`", "rainbow": "`parenvs train --agent rainbow`",
    "sb3-ppo": "PPO of Stable-Baselines3", "sb3-dqn": "DQN of Stable-Baselines3",
}  # fmt: skip
LONGEST = 2_500
"""Steps after which an episode of MinAtar, which may never end, is cut off."""


def prepare(env_id: str) -> None:
    """Register MinAtar's environments, its state flat, as multilayer perceptrons take it."""
    if env_id != MINATAR or env_id in gym.registry:
        return
    from minatar.gym import BaseEnv

    def make() -> gym.Env[np.ndarray, int]:
        return gym.wrappers.FlattenObservation(BaseEnv("breakout"))

    gym.register(env_id, make, max_episode_steps=LONGEST)


def trained(env_id: str, method: str, seed: int, steps: int, episodes: int) -> Row:
    """Train, with the defaults of each, then play by the best actions."""
    from parenvs.agents.learning.config import TrainConfig
    from parenvs.agents.learning.play import Player, one_thread
    from parenvs.agents.learning.trainer import train

    prepare(env_id)
    begin = time.process_time()
    with one_thread():
        if not method.startswith("sb3"):
            config = TrainConfig(env_id=env_id, agent=method, seed=seed, steps=steps)
            agent = train(config).algorithm
            seconds = time.process_time() - begin
            returns = Player(agent).returns(env_id, {}, episodes, 10_000 * (seed + 1)).tolist()
        else:
            import stable_baselines3

            kind = getattr(stable_baselines3, method.removeprefix("sb3-").upper())
            model = kind("MlpPolicy", env_id, seed=seed, device="cpu").learn(steps)
            seconds = time.process_time() - begin
            returns = greedy_returns(model, gym.make(env_id), episodes, seed)
    return {"seconds": seconds, "return": float(np.mean(returns))}


@measurement(
    key="env method seed steps",
    title="Small control tasks",
    among={"envs": ENVS, "methods": METHODS},
    about={"seeds": "seeds 0 to this less one", "episodes": "by the best actions, behind it"},
)
def cartpole(
    envs: tuple[str, ...] = ENVS,
    methods: tuple[str, ...] = tuple(METHODS),
    seeds: int = 3,
    steps: tuple[int, ...] = (25_000, 50_000),
    episodes: int = 100,
) -> Iterator[Case]:
    has_minatar = importlib.util.find_spec("minatar") is not None
    for budget in steps:
        for seed in range(seeds):
            for env_id in (x for x in envs if x != MINATAR or has_minatar):
                for method in methods:
                    key = {"env": env_id, "method": method, "seed": seed, "steps": budget}
                    work = partial(trained, env_id, method, seed, budget, episodes)
                    yield key, partial(forked, work)


@cartpole.page
def page(rows: list[Row], episodes: int) -> list[str]:
    lines = []
    for env_id in ENVS:
        for budget in sorted({row["steps"] for row in rows}):
            for method, words in METHODS.items():
                known = (env_id, method, budget)
                mine = [x for x in rows if (x["env"], x["method"], x["steps"]) == known]
                if mine:
                    lines.append(
                        {
                            "env": env_id, "words": words, "steps": budget,
                            "seconds": median(x["seconds"] for x in mine),
                            "mean": float(np.mean([x["return"] for x in mine])),
                            "each": ", ".join(f"{x['return']:.1f}" for x in mine),
                        }
                    )  # fmt: skip
    return [
        f"All with their defaults and as many steps. Mean return of {episodes} episodes by the "
        "best actions behind the training, of 500 at most on CartPole and -500 at least on "
        f"Acrobot; MinAtar's Breakout, its state flat, is cut off after {LONGEST:,} steps. Median "
        "processor seconds of a training. "
        "Our PPO takes 64 turns a step in environments outside of the suite, which was chosen on "
        "CartPole: with 512 it reached 218.7 there in 50,000 steps. Stable-Baselines3 keeps its "
        "defaults. What is missing was not run.",
        columns(
            lines,
            [
                ("environment", "{env}"),
                ("agent", "{words}"),
                ("steps", "{steps:,}"),
                ("return", "{mean:.1f}"),
                ("each seed", "{each}"),
                ("seconds", "{seconds:.0f}"),
            ],
            left=2,
        ),
    ]


if __name__ == "__main__":
    main(cartpole)
