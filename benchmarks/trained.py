"""Agents that are trained once: their files, the seconds of their trainings, their curves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from parenvs.agents.evaluation.evaluate_set import evaluate_set
from parenvs.files import write_text

VALIDATION, FIRST = "plan-validation", 80
"""What curves are judged on, its first problems."""
LOOKS = 8
"""Points of a learning curve after the start."""


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


class Looks(BaseCallback):
    """Judges the agent on ``VALIDATION`` in the course of training.

    Args:
        steps: environment steps of the training.
        path: a file that keeps the points; a training that goes on reads it. None: no file.

    Attributes:
        points: of each look, environment steps and the interquartile mean of the regrets.
        spent: processor seconds of looking before the end, which ``TrainResult.seconds`` has in.
    """

    def __init__(self, steps: int, path: Path | None = None) -> None:
        super().__init__()
        self.steps, self.path, self.spent = steps, path, 0.0
        self.points: list[list[float]] = []
        if path is not None and path.exists():
            self.points = json.loads(path.read_text())

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= len(self.points) * self.steps / LOOKS:
            begin = time.process_time()
            self.look()
            self.spent += time.process_time() - begin

    def _on_training_end(self) -> None:
        self.look()

    def look(self) -> None:
        """Add a point."""
        regret = evaluate_set(self.model, VALIDATION, first=FIRST).regret
        self.points.append([self.num_timesteps, round(regret, 5)])
        if self.path is not None:
            write_text(self.path, json.dumps(self.points))
