"""Rainbow on known ground: each switch alone, all together, and SB3's DQN, at equal steps.

    python benchmarks/rainbow_switches.py                       # all runs that are missing
    python benchmarks/rainbow_switches.py --env Acrobot-v1      # of one game

Acrobot-v1 pays -1 a step until the goal is reached, at most 500 times. MinAtar's Breakout pays 1
for a brick (``pip install minatar``; Young and Tian, arXiv 1903.03176). All lines of a game train
with the same settings.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.framework import Case, Column, Row, columns, main, measurement
from benchmarks.trained import greedy_returns


@dataclass(frozen=True)
class Game:
    """What a game is played with.

    Attributes:
        steps: environment steps of a training.
        most: steps of an episode at most.
        settings: of DQN and Rainbow alike.
    """

    steps: int
    most: int
    settings: dict[str, Any]


COMMON: dict[str, Any] = {
    "batch_size": 128, "buffer_size": 50_000, "learning_starts": 1_000, "train_freq": 4,
    "gamma": 0.99, "exploration_final_eps": 0.1, "policy_kwargs": {"net_arch": [128, 128]},
}  # fmt: skip
GAMES = {
    "Acrobot-v1": Game(30_000, 500, {
        **COMMON, "learning_rate": 6.3e-4, "gradient_steps": 4, "target_update_interval": 250,
        "exploration_fraction": 0.12,
    }),
    "MinAtar/Breakout-v1": Game(100_000, 1_000, {
        **COMMON, "learning_rate": 2.5e-4, "gradient_steps": 1, "target_update_interval": 1_000,
        "exploration_fraction": 0.2,
    }),
}  # fmt: skip
OFF: dict[str, Any] = {
    "double_q": False, "dueling": False, "prioritized": False, "n_steps": 1,
    "distributional": False, "noisy": False,
}  # fmt: skip
ON: dict[str, Any] = {
    "double_q": True, "dueling": True, "prioritized": True, "n_steps": 3, "distributional": True,
    "noisy": True,
}  # fmt: skip
LINES: dict[str, dict[str, Any] | None] = {
    "DQN of SB3": None,
    "no switch": OFF,
    "double Q": {**OFF, "double_q": True},
    "dueling": {**OFF, "dueling": True},
    "priorities": {**OFF, "prioritized": True},
    "3-step returns": {**OFF, "n_steps": 3},
    "C51, support of the rewards seen": {**OFF, "distributional": True},
    "C51, support -10 to 10": {**OFF, "distributional": True, "v_min": -10.0, "v_max": 10.0},
    "noisy layers": {**OFF, "noisy": True},
    "all six": ON,
}
EPISODES, LAST = 50, 20


def perform(env_id: str, line: str, seed: int, steps: int) -> Row:
    """Train a line with a seed; greedy episodes at the end."""
    from stable_baselines3 import DQN

    from parenvs.agents.learning.rainbow.algorithm import Rainbow
    from parenvs.agents.learning.vec_env import one_thread

    switches, game = LINES[line], GAMES[env_id]
    algorithm: Any = DQN if switches is None else Rainbow
    begin = time.process_time()
    with one_thread(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        options = {**game.settings, **(switches or {})}
        model = algorithm("MlpPolicy", made(env_id), seed=seed, device="cpu", **options)
        model.learn(steps)
    support = (
        model.q_net.support[[0, -1]].tolist() if (switches or {}).get("distributional") else []
    )
    returns = [info["r"] for info in model.ep_info_buffer]
    return {
        "support": support,
        "trained": float(np.mean(returns[-LAST:])),
        "greedy": float(np.mean(greedy_returns(model, made(env_id), EPISODES, seed))),
        "warned": next((str(x.message) for x in said if "support of C51" in str(x.message)), ""),
        "seconds": time.process_time() - begin,
    }  # fmt: skip


def made(env_id: str) -> gym.Env[Any, Any]:
    """Make a game."""
    if env_id.startswith("MinAtar/"):
        from minatar.gym import register_envs

        if env_id not in gym.registry:
            register_envs()
    return gym.make(env_id, max_episode_steps=GAMES[env_id].most)


def told(line: str, records: Sequence[Row]) -> Row:
    """Figures of a line."""
    found = [record["greedy"] for record in records]
    supports = {tuple(round(x, 1) for x in record["support"]) for record in records}
    warned = sum(bool(record["warned"]) for record in records)
    return {
        "line": line,
        "greedy": np.mean(found),
        "each": ", ".join(f"{x:.1f}" for x in sorted(found)),
        "trained": np.mean([record["trained"] for record in records]),
        "supports": ", ".join(f"{x:g} to {y:g}" for x, y in sorted(filter(None, supports))),
        "warned": f"{warned} of {len(records)}" if any(supports) else "",
        "seconds": np.median([record["seconds"] for record in records]),
    }


COLUMNS: list[Column] = [
    ("switches", "{line}"),
    ("greedy return", "{greedy:.1f}"),
    ("each seed", "{each}"),
    ("return at the end", "{trained:.1f}"),
    ("support", "{supports}"),
    ("warned", "{warned}"),
    ("seconds", "{seconds:.0f}"),
]


@measurement(
    key="env line seed steps",
    among={"env": GAMES},
    about={"steps": "of a training, for a quick try"},
)
def rainbow_switches(
    env: tuple[str, ...] = tuple(GAMES), steps: int | None = None, seeds: int = 3
) -> list[Case]:
    cases: list[Case] = []
    for env_id in env:
        for seed in range(seeds):
            for line in LINES:
                count = steps or GAMES[env_id].steps
                key = {"env": env_id, "line": line, "seed": seed, "steps": count}
                cases.append((key, partial(perform, env_id, line, seed, count)))
    return cases


@rainbow_switches.page
def page(records: list[Row]) -> list[str]:
    sections = [
        f"Greedy return: mean over {EPISODES} episodes behind the training. Return at the end: "
        f"mean of the last {LAST} episodes of the training, exploration included. Warned: runs "
        "that said that targets lie outside of the support. Processor seconds, median.",
    ]
    for env_id in dict.fromkeys(record["env"] for record in records):
        mine = [record for record in records if record["env"] == env_id]
        lines = [line for line in LINES if any(record["line"] == line for record in mine)]
        rows = [told(line, [x for x in mine if x["line"] == line]) for line in lines]
        seeds = len({record["seed"] for record in mine})
        title = f"**{env_id}**, {mine[0]['steps']:,} steps, {seeds} seeds"
        sections += [title, columns(rows, COLUMNS)]
    return sections


if __name__ == "__main__":
    main(rainbow_switches)
