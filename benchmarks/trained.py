"""Agents that are trained once: their files, and the seconds of their trainings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parenvs.files import write_text


def kept(
    path: Path,
    train: Callable[[], Any],
    load: Callable[[Path], Any],
    save: Callable[[Any, Path], object] = lambda agent, path: agent.save(path),
) -> tuple[Any, float]:
    """The agent of a file, trained if it is not there, and the processor seconds it took.

    Args:
        path: the file; the seconds are beside it.
        train: makes the agent.
        load: reads it.
        save: writes it.
    """
    took = path.with_suffix(".json")
    if took.exists():
        return load(path), json.loads(took.read_text())
    begin = time.process_time()
    agent = train()
    seconds = time.process_time() - begin
    path.parent.mkdir(parents=True, exist_ok=True)
    save(agent, path)
    write_text(took, json.dumps(seconds))
    return agent, seconds


def greedy_returns(model: Any, env: Any, episodes: int, seed: int) -> list[float]:
    """Returns of greedy episodes."""
    returns = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=10_000 * (seed + 1) + episode)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns
