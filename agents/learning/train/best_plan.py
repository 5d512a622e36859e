"""A callback that keeps the best episode of a training run, for any agent and any task."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from parenvs.agents.learning.vec_env import NativeVecEnv

_STATE: dict[str, Any] = {
    "best_return": float,
    "best_actions": [int],
    "best_steps": int,
    "episodes": int,
    "target_steps": (int, type(None)),
    "target_seconds": (float, type(None)),
    "seconds": float,
    "_running": [[int]],
    "_returns": [float],
}
"""Attributes of ``BestPlan`` that a checkpoint holds, and their kinds."""


class BestPlan(BaseCallback):
    """Remembers the actions of the best episode, and when it was found.

    Seconds are processor seconds: training runs on one thread, so they are what an idle machine
    would take, whatever else runs; an agent that trains in several processes gives the seconds of
    all (``processor_seconds``). Environments of the suite are deterministic after a reset, so
    the actions alone restore the plan.

    Args:
        target: an episode return; the callback notes when it is first reached.
        stop: whether training ends when ``target`` is reached.
        scale: the number that the rewards were divided by.

    Attributes:
        drawn: whether environments draw their problems, so that actions restore no plan.
        best_return: return of the best episode so far; minus infinity before the first ends.
        best_actions: its actions.
        best_steps: environment steps of the run when it ended.
        episodes: number of episodes that have ended.
        target_steps: environment steps when ``target`` was reached, or None.
        target_seconds: processor seconds when ``target`` was reached, or None.
        seconds: processor seconds of training so far.
    """

    def __init__(self, target: float | None = None, stop: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.target = target
        self.stop = stop
        self.scale = scale
        self.drawn = False
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
        self._clock: Callable[[], float] = time.process_time

    def _on_training_start(self) -> None:
        count = self.training_env.num_envs
        if len(self._running) != count:  # after ``restore`` they are there
            self._running = [[] for _ in range(count)]
            self._returns = [0.0] * count
        self._clock = getattr(self.model, "processor_seconds", time.process_time)
        self._started = self._clock() - self.seconds

    def _on_step(self) -> bool:
        for index, (action, reward, done) in enumerate(
            zip(self.locals["actions"], self.locals["rewards"], self.locals["dones"], strict=True)
        ):
            self._running[index].append(int(action))
            self._returns[index] += float(reward) * self.scale
            if done:
                self._finish(index)
        self.seconds = self._clock() - self._started
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
                self.target_seconds = self._clock() - self._started
        self._running[index] = []
        self._returns[index] = 0.0

    def _on_rollout_end(self) -> None:
        self.logger.record("plan/best_return", self.best_return)

    def _on_training_end(self) -> None:
        self.seconds = self._clock() - self._started  # with the last update

    def replay(self, env: VecEnv, model: BaseAlgorithm) -> None:
        """Bring environments back into the middle of their episodes, after ``restore``.

        Args:
            env: the environments.
            model: the agent, which is given their observations.

        Raises:
            ValueError: the number of environments is another one, or an episode has ended.
        """
        if not len(self._running) == len(self._returns) == env.num_envs:
            found = f"{len(self._running)} episodes and {len(self._returns)} returns"
            raise ValueError(f"{found} for {env.num_envs} environments")
        if self.drawn:  # the problems are gone, so new ones begin, which the run has not seen
            env.seed(model.num_timesteps)
            model._last_obs = env.reset()  # type: ignore[assignment]
            model._last_episode_starts = np.ones(env.num_envs, dtype=bool)
            self._running = [[] for _ in range(env.num_envs)]
            self._returns = [0.0] * env.num_envs
            return
        longest, steps = max(map(len, self._running)), env.get_attr("episode_steps")[0]
        if longest >= steps:
            raise ValueError(f"an episode of {steps} steps is in the middle after {longest}")
        if isinstance(env, NativeVecEnv):
            model._last_obs = env.replay(self._running)
        else:
            assert isinstance(env, DummyVecEnv)
            env.reset()
            for index, actions in enumerate(self._running):
                for action in actions:
                    observation, *_ = env.envs[index].step(action)
                    env._save_obs(index, observation)
            model._last_obs = env._obs_from_buf()  # type: ignore[assignment]
        model._last_episode_starts = np.array([not actions for actions in self._running])

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint holds, as JSON types."""
        return {key: getattr(self, key) for key in _STATE}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint.

        Raises:
            ValueError: an entry is of another kind than ``state`` gives.
        """
        for key, kind in _STATE.items():
            if not _is(state[key], kind):
                raise ValueError(f"the best plan's {key.strip('_')} is not of its kind")
        for key in _STATE:
            setattr(self, key, state[key])


def _is(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is of a kind: a type, several, or a list of one kind."""
    if isinstance(kind, list):
        return isinstance(value, list) and all(_is(one, kind[0]) for one in value)
    return type(value) in (kind if isinstance(kind, tuple) else (kind,))
