"""MaskablePPO with its rollouts, or its rollouts and its updates, on Ray actors.

Both are MaskablePPO, with the same network, masks, settings and loop; what differs is where rows
are played and gradients are taken. Callbacks see every step, as if this process had taken it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from parenvs.agents.learning.distributed.update import permutations
from parenvs.agents.learning.distributed.worker import ARRAYS, Play, State
from parenvs.agents.learning.distributed.workers import Workers


class ActorsPPO(MaskablePPO):
    """One learner, this process; the environments are the actors'.

    Attributes:
        workers: the actors; set before ``learn``.
    """

    workers: Workers

    def learn(self, *args: Any, **options: Any) -> Any:
        """Train; see ``MaskablePPO``."""
        if not self.num_timesteps:  # after ``restore_workers`` they have begun
            self.workers.start(0, [None] * len(self.workers.states), self._own())
        super().learn(*args, **options)
        self._fetch()
        return self

    def collect_rollouts(
        self,
        env: Any,
        callback: BaseCallback,
        rollout_buffer: Any,
        n_rollout_steps: int,
        use_masking: bool = True,
    ) -> bool:
        """Let the actors play, and show their steps to the callbacks; see ``MaskablePPO``."""
        callback.on_rollout_start()
        plays = self.workers.play(self._sent())
        self._keep(plays)
        actions, rewards, dones = (
            np.concatenate([getattr(play, name) for play in plays], axis=1)
            for name in ("actions", "rewards", "dones")
        )
        offsets = np.cumsum([0, *(play.actions.shape[1] for play in plays)])
        for step in range(len(actions)):
            infos: list[dict[str, Any]] = [{} for _ in range(actions.shape[1])]
            for play, offset in zip(plays, offsets[:-1].tolist(), strict=True):
                for row, statistics in play.ended[step].items():
                    infos[offset + row] = {"episode": statistics}
            self.num_timesteps += actions.shape[1]
            seen = {"rewards": rewards[step], "dones": dones[step], "infos": infos}
            callback.update_locals({"self": self, "env": env, "actions": actions[step], **seen})
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones[step])
        callback.on_rollout_end()
        return True

    def processor_seconds(self) -> float:
        """Processor seconds of this process and of the actors."""
        there = self.workers.seconds
        actors = there["environment"] + there["inference"] + there["learning"]
        return time.process_time() + actors

    def worker_states(self) -> list[State | None]:
        """What a checkpoint holds of the actors, as JSON types."""
        return self.workers.states

    def restore_workers(self, states: list[State | None]) -> None:
        """Let the actors go on from a checkpoint, whose weights and counters this agent has.

        Raises:
            ValueError: the states are not those of so many actors.
        """
        if len(states) != len(self.workers.states):
            raise ValueError(f"{len(states)} actors, not {len(self.workers.states)}")
        rollout_steps = self.n_steps * self.n_envs
        self.workers.start(self.num_timesteps // rollout_steps, states, self._own())

    def _sent(self) -> dict[str, Any] | None:
        """The weights that actors play with."""
        return self.policy.state_dict()

    def _fetch(self) -> None:
        """Take over what learners have learned."""

    def _own(self) -> dict[str, Any] | None:
        """Weights and optimiser that actors begin with, if they learn."""
        return None

    def _keep(self, plays: list[Play]) -> None:
        """Put the rows of all actors into the rollout buffer."""
        buffer: Any = self.rollout_buffer
        buffer.reset()
        parts: list[Any] = [play.rows for play in plays]
        for name in ARRAYS:
            setattr(buffer, name, np.concatenate([part[name] for part in parts], axis=1))
        if isinstance(buffer.observations, dict):
            for key in buffer.observations:
                rows = [part["observations"][key] for part in parts]
                buffer.observations[key] = np.concatenate(rows, axis=1)
        else:
            buffer.observations = np.concatenate([p["observations"] for p in parts], axis=1)
        buffer.pos, buffer.full = buffer.buffer_size, True

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "workers"]


class LearnersPPO(ActorsPPO):
    """Several learners, the actors; this process shows their steps and keeps checkpoints."""

    def train(self) -> None:
        """Let the learners update their weights."""
        self._update_learning_rate(self.policy.optimizer)
        rows = self.n_steps * self.n_envs
        before = np.random.get_state()
        orders = permutations(self.n_epochs, rows)
        figures = self.workers.learn(self._current_progress_remaining, orders)
        epochs = int(figures.pop("epochs"))
        if epochs < self.n_epochs:  # as if no more had been drawn
            np.random.set_state(before)
            permutations(epochs, rows)
        self._n_updates += epochs
        for name, value in figures.items():
            self.logger.record(f"train/{name}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def get_parameters(self) -> dict[str, Any]:
        """Weights and optimiser, which the learners have."""
        workers = getattr(self, "workers", None)
        there = None if workers is None else workers.parameters()
        return super().get_parameters() if there is None else there

    def _fetch(self) -> None:
        there = self.workers.parameters()
        if there is not None:
            self.set_parameters(there, device=self.device)

    def _sent(self) -> dict[str, Any] | None:
        return None

    def _own(self) -> dict[str, Any] | None:
        return MaskablePPO.get_parameters(self)

    def _keep(self, plays: list[Play]) -> None:
        """Rows stay with the learners."""
