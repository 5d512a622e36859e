"""Times the training of agents: environment steps per second, updates included."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.play import one_thread
from parenvs.agents.learning.trainer import Training

AGENTS = ("ppo", "rainbow")
"""Agents whose training is timed."""
CASES: list[tuple[str, dict[str, Any]]] = [
    ("PipelineCut-v0", {"instance": "t5-3b", "cluster": "C"}),
    ("OperatorPartition-v0", {"instance": "t5-3b"}),
]
"""Ids and arguments of the environments that they train on."""


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
                config = TrainConfig(env_id=env_id, env_kwargs=kwargs, agent=agent, steps=10**9)
                with contextlib.closing(Training(config)) as training:
                    runs = [_rate(training, steps) for _ in range(repeats + 1)][1:]
                    count = training.team.count
                row = {"agent": agent, "id": env_id, "kwargs": kwargs, "envs": count}
                rows.append({**row, "steps_per_second": runs})
    return rows


def _rate(training: Training, steps: int) -> float:
    """Steps per second of processor time, of at least so many steps in whole updates."""
    begin, before = time.process_time(), training.turns
    while training.turns < before + steps:
        training.update()
    return (training.turns - before) / (time.process_time() - begin)
