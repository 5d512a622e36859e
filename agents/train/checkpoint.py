"""Checkpoints: an interrupted training goes on from one as if it had not been interrupted."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from parenvs.agents.train.best_plan import BestPlan
from parenvs.errors import ParenvsError
from parenvs.files import replacing


class Checkpoints(BaseCallback):
    """Saves the agent, the best plan and the random states every few rollouts.

    A checkpoint is taken where a rollout starts. Environments may then be in the middle of an
    episode; ``BestPlan`` keeps its actions and replays them after a restart.

    Args:
        path: the file that each checkpoint replaces.
        tracker: the callback that keeps the best plan.
        every: number of rollouts between two checkpoints.
        restored: state of the checkpoint to continue from, or None for a fresh run.
    """

    def __init__(
        self,
        path: Path,
        tracker: BestPlan,
        every: int = 10,
        restored: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self.tracker = tracker
        self.every = every
        self._restored = restored
        self._rollouts = 0

    def _on_training_start(self) -> None:
        if self._restored is not None:
            _set_random_states(self._restored["random"])

    def _on_rollout_start(self) -> None:
        if self._rollouts and self._rollouts % self.every == 0:
            self.save()
        self._rollouts += 1

    def _on_step(self) -> bool:
        return True

    def save(self) -> None:
        """Write a checkpoint now."""
        model = io.BytesIO()
        self.model.save(model)
        state = {"tracker": self.tracker.state(), "random": _random_states()}
        with replacing(self.path) as stream, zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("model.zip", model.getvalue())
            if isinstance(self.model, OffPolicyAlgorithm):
                replay = io.BytesIO()
                self.model.save_replay_buffer(replay)
                archive.writestr("replay.pkl", replay.getvalue())
            archive.writestr("state.json", json.dumps(state))


def load_checkpoint(
    path: str | os.PathLike[str], algorithm: type[BaseAlgorithm], **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Read a checkpoint.

    Args:
        path: the file.
        algorithm: class of the agent.
        **options: arguments of its ``load``, e.g. ``env``.

    Returns:
        the agent, and the state with the keys ``tracker`` and ``random``.

    Raises:
        ParenvsError: the file is no checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            state = json.loads(archive.read("state.json"))
            model = algorithm.load(io.BytesIO(archive.read("model.zip")), **options)
            if isinstance(model, OffPolicyAlgorithm):
                model.load_replay_buffer(io.BytesIO(archive.read("replay.pkl")))
        return model, {key: state[key] for key in ("tracker", "random")}
    except Exception as error:  # broken pickles and zip files raise errors of many kinds
        raise ParenvsError(f"{path}: not a checkpoint ({error}); train anew") from None


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
