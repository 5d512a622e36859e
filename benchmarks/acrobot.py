"""Rainbow on known ground: each switch alone, all together, and SB3's DQN, at equal steps.

Acrobot-v1 pays -1 a step until the goal is reached, at most 500 times. Each line trains with the
settings of SB3's DQN that ``SHARED`` names; a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from common import parser, progress, publish, table

from parenvs.bench.runs import append, read, run_all

SHARED: dict[str, Any] = {
    "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 1_000,
    "train_freq": 4, "gradient_steps": 4, "target_update_interval": 250, "gamma": 0.99,
    "exploration_fraction": 0.12, "exploration_final_eps": 0.1, "exploration_initial_eps": 1.0,
    "policy_kwargs": {"net_arch": [128, 128]},
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


def perform(task: tuple[str, str, int, int]) -> dict[str, Any]:
    """Train a line with a seed; greedy episodes at the end."""
    from stable_baselines3 import DQN

    from parenvs.agents.rainbow.algorithm import Rainbow
    from parenvs.agents.vec_env import one_thread

    env_id, line, seed, steps = task
    switches = LINES[line]
    algorithm: Any = DQN if switches is None else Rainbow
    begin = time.process_time()
    with one_thread(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        env = gym.make(env_id)
        model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **SHARED, **(switches or {}))
        model.learn(steps)
    support = (
        model.q_net.support[[0, -1]].tolist() if (switches or {}).get("distributional") else []
    )
    returns = [info["r"] for info in model.ep_info_buffer]
    return {
        "env": env_id, "line": line, "seed": seed, "steps": steps, "support": support,
        "trained": float(np.mean(returns[-LAST:])), "greedy": greedy(model, env_id, seed),
        "warned": next((str(x.message) for x in said if "support of C51" in str(x.message)), ""),
        "seconds": time.process_time() - begin,
    }  # fmt: skip


def greedy(model: Any, env_id: str, seed: int) -> float:
    """Mean return of greedy episodes."""
    env, returns = gym.make(env_id), []
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=10_000 * (seed + 1) + episode)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a run from others."""
    return record["env"], record["line"], record["seed"], record["steps"]


def row(line: str, records: Sequence[dict[str, Any]]) -> list[str]:
    """The table's row of a line."""
    found = [record["greedy"] for record in records]
    trained = np.mean([record["trained"] for record in records])
    supports = {tuple(round(x, 1) for x in record["support"]) for record in records}
    warned = sum(bool(record["warned"]) for record in records)
    return [
        line,
        f"{np.mean(found):.1f}",
        ", ".join(f"{x:.1f}" for x in sorted(found)),
        f"{trained:.1f}",
        ", ".join(f"{low:g} to {high:g}" for low, high in sorted(filter(None, supports))),
        f"{warned} of {len(records)}" if any(supports) else "",
        f"{np.median([record['seconds'] for record in records]):.0f}",
    ]


def main() -> None:
    """Run what is missing, print and write."""
    options = parser(__doc__)
    options.add_argument("--env", default="Acrobot-v1", help="any id with Discrete actions")
    options.add_argument("--steps", type=int, default=30_000)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = options.parse_args()
    path = chosen.out / "acrobot.jsonl"
    done = read(path, key_of)
    tasks = [
        (chosen.env, line, seed, chosen.steps) for seed in range(chosen.seeds) for line in LINES
    ]
    missing = [task for task in tasks if task not in done]
    for number, record in enumerate(run_all(perform, missing, chosen.jobs), 1):
        append(path, record)
        progress(f"{number}/{len(missing)} {record['line']}: {record['greedy']:.1f}")
    done = read(path, key_of)
    of_line = partial(map, lambda task: done[task])
    header = ["switches", "greedy return", "each seed", "return at the end", "support"]
    header += ["warned", "seconds"]
    sections = [
        f"{chosen.env}, {chosen.steps:,} steps, {chosen.seeds} seeds. Greedy return: mean over "
        f"{EPISODES} episodes behind the training. Return at the end: mean of the last {LAST} "
        "episodes of the training, exploration included. Warned: runs that said that targets lie "
        "outside of the support. Processor seconds, median.",
        table(
            header,
            [row(line, list(of_line(t for t in tasks if t[1] == line))) for line in LINES],
        ),
    ]
    publish("acrobot", sections, None, chosen.out)


if __name__ == "__main__":
    main()
