"""Times the training of agents: environment steps per second, updates included."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv

from parenvs.agents.learning.train.best_plan import BestPlan
from parenvs.agents.learning.train.learners import learner_of
from parenvs.agents.learning.vec_env import make_env, one_thread

AGENTS = ("ppo", "rainbow")
"""Agents whose training is timed."""
CASES: list[tuple[str, dict[str, Any]]] = [
    ("PipelineCut-v0", {"instance": "t5-3b", "cluster": "C"}),
    ("OperatorPartition-v0", {"instance": "t5-3b"}),
]
"""Ids and arguments of the environments that they train on."""
TimedTurn = Callable[[], int]
"""Does what is timed, and returns the number of environment steps that it took."""


def training_turn(agent: str, env_id: str, env: VecEnv, steps: int) -> TimedTurn:
    """A turn of training: collecting and updates, with the callback that ``train`` uses.

    Args:
        agent: name of the agent.
        env_id: id of the environment, which decides the agent's settings.
        env: the environments.
        steps: environment steps of a turn, or the whole updates that hold them.
    """
    learner = learner_of(agent)
    model = learner.make(env, env_id, env.get_attr("episode_steps")[0], 0)
    model.set_logger(configure(None, []))
    tracker = BestPlan(scale=env.get_attr("largest_return")[0])

    def turn() -> int:
        before = model.num_timesteps
        model.learn(
            steps, callback=tracker, log_interval=learner.log_interval, reset_num_timesteps=False
        )
        return model.num_timesteps - before

    return turn


def turn_rate(turn: TimedTurn) -> float:
    """Steps per second of processor time of one turn."""
    begin = time.process_time()
    steps = turn()
    return steps / (time.process_time() - begin)


def training_rates(
    steps: int, repeats: int, say: Callable[[str], object] = lambda text: None
) -> list[dict[str, Any]]:
    """Time every agent in every case, on native batches and one thread.

    Args:
        steps: environment steps of a turn, or the whole updates that hold them.
        repeats: number of turns; one more comes before them and does not count.
        say: is called with a line on each agent and case.

    Returns:
        for each agent and case ``agent``, ``id``, ``kwargs``, ``envs`` and, for each turn,
        ``steps_per_second``.
    """
    rows = []
    with one_thread():
        for agent in AGENTS:
            for env_id, kwargs in CASES:
                say(f"{agent} on {env_id}")
                count = learner_of(agent).envs[env_id]
                turn = training_turn(agent, env_id, make_env(env_id, kwargs, 0, count), steps)
                turn()
                runs = [turn_rate(turn) for _ in range(repeats)]
                row = {"agent": agent, "id": env_id, "kwargs": kwargs, "envs": count}
                rows.append({**row, "steps_per_second": runs})
    return rows
