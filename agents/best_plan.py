"""A callback that keeps the best episode of a training run, whatever the agent and the task."""

from __future__ import annotations

import time
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback


class BestPlan(BaseCallback):
    """Remembers the actions of the best episode and when they were found.

    Environments of the suite are deterministic once reset, so that the actions give back the plan.

    Args:
        target: an episode return; the run notes when it is first reached.
        stop: whether to end training there.
    """

    def __init__(self, target: float | None = None, stop: bool = False) -> None:
        super().__init__()
        self.target = target
        self.stop = stop
        self.best_return = float("-inf")
        self.best_actions: list[int] = []
        self.best_steps = 0
        self.episodes = 0
        self.target_steps: int | None = None
        self.target_seconds: float | None = None
        self.seconds = 0.0
        self._running: list[list[int]] = []
        self._returns: list[float] = []
        self._started = 0.0

    def _on_training_start(self) -> None:
        count = self.training_env.num_envs
        self._running = [[] for _ in range(count)]
        self._returns = [0.0] * count
        self._started = time.perf_counter() - self.seconds

    def _on_step(self) -> bool:
        for index, (action, reward, done) in enumerate(
            zip(self.locals["actions"], self.locals["rewards"], self.locals["dones"], strict=True)
        ):
            self._running[index].append(int(action))
            self._returns[index] += float(reward)
            if done:
                self._finish(index)
        self.seconds = time.perf_counter() - self._started
        return not (self.stop and self.target_steps is not None)

    def _finish(self, index: int) -> None:
        self.episodes += 1
        if self._returns[index] > self.best_return:
            self.best_return = self._returns[index]
            self.best_actions = self._running[index]
            self.best_steps = self.num_timesteps
            if (
                self.target is not None
                and self.target_steps is None
                and self.best_return >= self.target
            ):
                self.target_steps = self.num_timesteps
                self.target_seconds = time.perf_counter() - self._started
        self._running[index] = []
        self._returns[index] = 0.0

    def _on_rollout_end(self) -> None:
        self.logger.record("plan/best_return", self.best_return)

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs, as JSON types."""
        return {key: getattr(self, key) for key in _STATE}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        for key in _STATE:
            setattr(self, key, state[key])


_STATE = (
    "best_return",
    "best_actions",
    "best_steps",
    "episodes",
    "target_steps",
    "target_seconds",
    "seconds",
)
