"""How fast agents train: environment steps a second, updates included."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv

from parenvs.agents.train.best_plan import BestPlan
from parenvs.agents.train.learners import learner_of
from parenvs.agents.vec_env import make_env, one_thread

AGENTS = ("ppo", "rainbow")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("PipelineCut-v0", {"instance": "t5-3b", "cluster": "C"}),
    ("OperatorPartition-v0", {"instance": "t5-3b"}),
]
Turn = Callable[[], int]
"""Plays, and returns the environment steps that it made."""


def training(agent: str, env_id: str, env: VecEnv, steps: int) -> Turn:
    """A turn of training, collecting and updates, with the callback that ``train`` uses."""
    kind = learner_of(agent)
    model = kind.make(env, env_id, env.get_attr("episode_steps")[0], 0)
    model.set_logger(configure(None, []))
    tracker = BestPlan(scale=env.get_attr("largest_return")[0])

    def turn() -> int:
        before = model.num_timesteps
        model.learn(
            steps, callback=tracker, log_interval=kind.log_interval, reset_num_timesteps=False
        )
        return model.num_timesteps - before

    return turn


def turn_rate(turn: Turn) -> float:
    """Steps a second of processor time of one turn."""
    begin = time.process_time()
    steps = turn()
    return steps / (time.process_time() - begin)


def training_rates(
    steps: int, repeats: int, say: Callable[[str], object] = lambda text: None
) -> list[dict[str, Any]]:
    """Steps a second of every agent in every case, on native batches and one thread.

    A turn has so many steps, or the whole updates that hold them; a first one does not count.
    """
    rows = []
    with one_thread():
        for agent in AGENTS:
            for env_id, kwargs in CASES:
                say(f"{agent} on {env_id}")
                count = learner_of(agent).envs[env_id]
                turn = training(agent, env_id, make_env(env_id, kwargs, 0, count), steps)
                turn()
                runs = [turn_rate(turn) for _ in range(repeats)]
                row = {"agent": agent, "id": env_id, "kwargs": kwargs, "envs": count}
                rows.append({**row, "steps_per_second": runs})
    return rows
