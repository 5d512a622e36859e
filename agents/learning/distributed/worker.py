"""A process that plays a share of the environments, and learns, if it is a learner.

It is a plain class, which ``workers`` makes a Ray actor of. What it needs to take up its work where
it was, or where a process before it was killed, is in the state that each rollout ends with.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger

from parenvs.agents.learning.distributed.update import Gloo, update
from parenvs.agents.learning.train.best_plan import BestPlan
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.learners import learner_of
from parenvs.agents.learning.vec_env import make_env

ARRAYS = (
    "actions", "rewards", "returns", "episode_starts", "values", "log_probs", "advantages",
    "action_masks",
)  # fmt: skip
"""Arrays of a rollout buffer besides the observations; the first axes are steps, environments."""
State = dict[str, Any]


class LostError(RuntimeError):
    """The process is a new one, or its group has met anew: it has not what is asked for."""


@dataclass(frozen=True)
class Play:
    """What a worker tells of a rollout of t steps in n environments.

    Attributes:
        actions: (t, n), as the callbacks of SB3 see them.
        rewards: (t, n), likewise.
        dones: (t, n) bool, likewise.
        ended: for each step the number of an environment -> the statistics of its ended episode.
        rows: arrays of the rollout buffer, ``ARRAYS`` and the observations; None if they stay.
        state: where the worker is after the rollout, as JSON types.
        seconds: processor seconds of ``environment`` and ``inference``, and ``wall`` seconds.
    """

    actions: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    ended: list[dict[int, dict[str, Any]]]
    rows: dict[str, Any] | None
    state: State
    seconds: dict[str, float]


class _Recorder(BestPlan):
    """Keeps the steps of a rollout, and the actions of the episodes that go on."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.ended: list[dict[int, dict[str, Any]]] = []

    def _on_step(self) -> bool:
        actions, rewards, dones = (self.locals[k] for k in ("actions", "rewards", "dones"))
        self.steps.append((actions.copy(), rewards.copy(), dones.copy()))
        infos = self.locals["infos"]
        self.ended.append({int(k): infos[k]["episode"] for k in np.flatnonzero(dones)})
        return super()._on_step()


class Worker:
    """Plays environments ``first`` to ``first + count`` of a run's.

    Args:
        config: the run's configuration.
        index: number of this worker.
        shares: number of environments of each worker.
    """

    def __init__(self, config: Config, index: int, shares: tuple[int, ...]) -> None:
        self.index, self.number, self._group = index, -1, None
        self._config, self._shares = config, shares
        self._made = False
        self.envs, self.first = sum(shares), sum(shares[:index])
        self._seed = config.seed + self.first

    def _make(self) -> None:
        """Make environments and agent; Ray would hide the errors of ``__init__``."""
        config, index, shares = self._config, self.index, self._shares
        torch.set_num_threads(1)
        self.env = make_env(config.env_id, config.env_kwargs, self._seed, shares[index])
        self._environment_seconds = 0.0
        self._step, self.env.step = self.env.step, self._timed_step
        steps = self.env.get_attr("episode_steps")[0]
        learner = learner_of(config.agent)
        self.model = learner.make(self.env, config.env_id, steps, config.seed, **config.overrides)
        self.model.set_logger(Logger(None, []))
        self.model.ep_info_buffer = self.model.ep_success_buffer = deque(maxlen=1)
        self._recorder = _Recorder()
        self._recorder.drawn = bool(self.env.get_attr("draws")[0])
        self._recorder.init_callback(self.model)
        if index:  # the first goes on as the process that has all environments does
            sequence = np.random.SeedSequence([config.seed, index])
            torch.manual_seed(int(sequence.generate_state(1)[0]))
        self._fresh = torch.get_rng_state()
        self._made = True

    def start(
        self, number: int = 0, state: State | None = None, parameters: dict[str, Any] | None = None
    ) -> bool:
        """Be ready for a rollout, and return True.

        Args:
            number: number of the rollout, from 0 on.
            state: what the rollout before ended with; None: the episodes begin.
            parameters: weights and optimiser, as ``get_parameters`` gives them; None: those that
                there are.
        """
        if not self._made:
            self._make()
        self.model.num_timesteps = number * self.model.n_steps * self.envs + self.first
        if parameters is not None:
            self.model.set_parameters(parameters, device=self.model.device)
        self.env.seed(self._seed)
        self._recorder._running = []
        self._recorder.on_training_start({}, {})
        if state is None:
            self.model._last_obs = self.env.reset()
            self.model._last_episode_starts = np.ones(self.env.num_envs, dtype=bool)
            torch.set_rng_state(self._fresh)
        else:
            self._recorder.restore(state["tracker"])
            self._recorder.replay(self.env, self.model)
            torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
        self.number = number
        return True

    def play(self, number: int, weights: dict[str, Any] | None, whole: bool) -> Play:
        """Play a rollout.

        Args:
            number: its number.
            weights: of the policy; None: those that there are.
            whole: whether the rows of the rollout buffer are told; else they stay here.

        Raises:
            LostError: ``start`` was not called for this rollout.
        """
        if number != self.number:
            raise LostError(f"worker {self.index} is at rollout {self.number}, not {number}")
        begin, wall, self._environment_seconds = time.process_time(), time.perf_counter(), 0.0
        model, recorder = self.model, self._recorder
        if weights is not None:
            model.policy.load_state_dict(weights)
        recorder.steps, recorder.ended = [], []
        model.num_timesteps = number * model.n_steps * self.envs + self.first
        model.collect_rollouts(self.env, recorder, model.rollout_buffer, model.n_steps)
        self.number += 1
        actions, rewards, dones = (np.stack(parts) for parts in zip(*recorder.steps, strict=True))
        rows = None
        if whole:
            buffer = model.rollout_buffer
            rows = {name: getattr(buffer, name) for name in ARRAYS}
            rows["observations"] = buffer.observations
        tracker = {**recorder.state(), "best_actions": [], "seconds": 0.0}
        state = {"torch": torch.get_rng_state().tolist(), "tracker": tracker}
        spent = time.process_time() - begin
        seconds = {
            "environment": self._environment_seconds,
            "inference": spent - self._environment_seconds,
            "wall": time.perf_counter() - wall,
        }
        return Play(actions, rewards, dones, recorder.ended, rows, state, seconds)

    def invite(self) -> tuple[str, int]:
        """Open a store at which the learners meet; returns its address and port."""
        import ray
        from torch.distributed import TCPStore

        host = ray.util.get_node_ip_address()
        self._store = TCPStore(host, 0, None, True, wait_for_workers=False)
        return host, self._store.port

    def join(self, place: tuple[str, int], count: int, generation: int) -> bool:
        """Meet the other learners, and return True.

        Args:
            place: what ``invite`` of the first of them gave.
            count: number of learners.
            generation: number of the meeting.
        """
        import ray
        from torch.distributed import TCPStore

        self._group = None
        store = self._store if self.index == 0 else TCPStore(*place, None, False)
        host = ray.util.get_node_ip_address()
        self._group = Gloo(store, self.index, count, generation, host)
        self._generation = generation
        return True

    def learn(
        self, number: int, generation: int, progress: float, orders: np.ndarray
    ) -> tuple[dict[str, float], dict[str, Any] | None]:
        """Update the weights by the rollout before ``number``, together with the other learners.

        Args:
            number: number of the next rollout.
            generation: number of the learners' meeting.
            progress: share of the run's steps that remain, on which schedules depend.
            orders: see ``update``.

        Returns:
            the figures of ``update`` and the processor ``seconds``; of the first learner the
            weights and the optimiser, else None.

        Raises:
            LostError: the rollout is not here, or the learners met in another generation.
            RuntimeError: another learner is gone.
        """
        if number != self.number or self._group is None or generation != self._generation:
            raise LostError(f"worker {self.index} is at rollout {self.number}, not {number}")
        begin = time.process_time()
        self.model._current_progress_remaining = progress
        rows = self.first * self.model.n_steps
        figures = update(self.model, orders, rows, self._group)
        figures["seconds"] = time.process_time() - begin
        return figures, None if self.index else self.model.get_parameters()

    def pid(self) -> int:
        """Number of the process, by which tests kill it."""
        return os.getpid()

    def at(self) -> int:
        """Number of the next rollout; -1 before ``start``."""
        return self.number

    def restore(self, parameters: dict[str, Any]) -> bool:
        """Take other weights and another state of the optimiser, and return True."""
        self.model.set_parameters(parameters, device=self.model.device)
        return True

    def _timed_step(self, actions: np.ndarray) -> Any:
        begin = time.process_time()
        outcome = self._step(actions)
        self._environment_seconds += time.process_time() - begin
        return outcome
