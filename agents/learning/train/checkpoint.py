"""Checkpoints: an interrupted training goes on from one as if it had not been interrupted.

A checkpoint is a zip of weights (``.pth``), JSON and ``.npz`` arrays; reading it runs no code.
"""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from parenvs.agents.learning.rainbow.buffer import RainbowBuffer
from parenvs.agents.learning.train.best_plan import BestPlan
from parenvs.agents.learning.train.weights import (
    load_counters,
    load_weights,
    read_member,
    save_agent,
)
from parenvs.errors import ParenvsError, one_line
from parenvs.files import replacing
from parenvs.graph.checks.npz import read_arrays

STATE, REPLAY = "state.json", "replay.npz"
WORKERS = "workers"
"""Key of ``STATE`` for what agents hold of other processes that play for them."""
FIRST_STEPS, FIRST_SECONDS = 1000, 60.0
"""The first checkpoint is taken after so many environment steps or seconds, if not before."""


class Checkpoints(BaseCallback):
    """Saves the agent, the best plan and the random states every few rollouts.

    An agent whose environments other processes play tells their states (``worker_states``), and
    gives them back (``restore_workers``).

    A checkpoint is taken where a rollout starts. Environments may then be in the middle of an
    episode; ``BestPlan`` keeps its actions and replays them after a restart.

    Args:
        path: the file that each checkpoint replaces.
        tracker: the callback that keeps the best plan.
        every: number of rollouts between two checkpoints; the first comes early.
        random: random states of the checkpoint to continue from, or None for a fresh run.
    """

    def __init__(
        self,
        path: Path,
        tracker: BestPlan,
        every: int = 10,
        random: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self.tracker = tracker
        self.every = every
        self._random = random
        self._rollouts = 0
        self._early = random is not None
        self._begin = time.monotonic()

    def _on_training_start(self) -> None:
        if self._random is not None:
            _set_random_states(self._random)

    def _on_rollout_start(self) -> None:
        seconds = time.monotonic() - self._begin
        early = not self._early and (self.num_timesteps >= FIRST_STEPS or seconds >= FIRST_SECONDS)
        if self._rollouts and (early or self._rollouts % self.every == 0):
            self._early = True
            self.save()
        self._rollouts += 1

    def _on_step(self) -> bool:
        return True

    def save(self) -> None:
        """Write a checkpoint now."""
        state = {"tracker": self.tracker.state(), "random": _random_states()}
        if (workers := getattr(self.model, "worker_states", None)) is not None:
            state[WORKERS] = workers()
        buffer = getattr(self.model, "replay_buffer", None)
        with replacing(self.path) as stream, zipfile.ZipFile(stream, "w") as archive:
            save_agent(archive, self.model)
            if isinstance(buffer, RainbowBuffer):
                replay = io.BytesIO()
                np.savez(replay, **buffer.state())
                archive.writestr(REPLAY, replay.getvalue())
            archive.writestr(STATE, json.dumps(state))


def load_checkpoint(
    path: str | os.PathLike[str], model: BaseAlgorithm, tracker: BestPlan
) -> dict[str, Any]:
    """Bring a fresh agent, its environments and the best plan to where a checkpoint was taken.

    Args:
        path: the file.
        model: an agent of the run's configuration with its environments.
        tracker: the callback that keeps the best plan.

    Returns:
        the random states, as ``Checkpoints`` takes them.

    Raises:
        ParenvsError: the file is no checkpoint of such an agent.
    """
    assert model.env is not None
    try:
        with zipfile.ZipFile(path) as archive:
            state = json.loads(read_member(archive, STATE))
            load_weights(archive, model)
            load_counters(archive, model)
            buffer = getattr(model, "replay_buffer", None)
            if isinstance(buffer, RainbowBuffer):
                replay = io.BytesIO(read_member(archive, REPLAY))
                buffer.restore(read_arrays(replay, buffer.most_bytes))
        tracker.restore(state["tracker"])
        if (restore_workers := getattr(model, "restore_workers", None)) is not None:
            restore_workers(state[WORKERS])  # the episodes go on there
        else:
            tracker.replay(model.env, model)
        _set_random_states(state["random"])
    except Exception as error:  # broken files raise errors of many kinds
        raise ParenvsError(f"{path}: not a checkpoint ({one_line(error)}); train anew") from None
    return state["random"]


def _random_states() -> dict[str, Any]:
    """States of the global generators of torch and NumPy, as JSON types."""
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached],
    }


def _set_random_states(state: dict[str, Any]) -> None:
    """Set the global generators of torch and NumPy."""
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
