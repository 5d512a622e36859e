"""Where a fused training stands, in a file of numbers that runs no code when it is read."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parenvs.agents.learning.fused.learner import Learner
from parenvs.agents.learning.fused.settings import Settings
from parenvs.errors import ParenvsError
from parenvs.files import replacing
from parenvs.graph.checks.npz import UNREADABLE, read_arrays
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS

CHECKPOINT = "fused-checkpoint.npz"
_HEAD = "head"
_FIELDS = {"settings", "iteration", "turn", "seconds", "points"}


@dataclass(frozen=True)
class Standing:
    """A training between two iterations.

    Attributes:
        iteration: number of rollouts learned from so far.
        seconds: what they took.
        points: the log so far.
        arrays: the tensors of policy, optimiser, episodes and generators, by name.
        turn: what all episodes choose next.
    """

    iteration: int
    seconds: float
    points: list[dict[str, float]]
    arrays: Mapping[str, np.ndarray]
    turn: int | None

    def put(self, learner: Learner) -> None:
        """Let a new training stand there; its pool holds the problems of that iteration.

        Raises:
            ParenvsError: the arrays are not those of such a training.
        """
        for parameter in learner.optimizer.param_groups[0]["params"]:
            learner.optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        wanted = _tensors(learner)
        limits = {"env/problem": np.array(len(learner.env.pool)), **_LIMITS, **learner.limits()}
        for name, tensor in wanted.items():
            array = self.arrays.get(name)
            if array is None or (array.shape, array.dtype) != _kind(tensor):
                raise ParenvsError(f"array {name!r} is not that of such a training")
            most = limits.get(name)
            if most is not None and not ((array >= 0) & (array < most)).all():
                raise ParenvsError(f"array {name!r} must hold numbers from 0 to {most.max() - 1}")
        with torch.no_grad():
            for name, tensor in wanted.items():
                if not name.startswith("random/"):
                    tensor.copy_(torch.from_numpy(self.arrays[name].copy()))
        for name, generator in _generators(learner).items():
            try:
                generator.set_state(torch.from_numpy(self.arrays[name].copy()))
            except RuntimeError:
                raise ParenvsError(f"array {name!r} is no state of a generator") from None
        learner.env.turn, learner.iteration = self.turn, self.iteration
        learner.resume()


_LIMITS = {
    "env/choices_made": np.array(2 * (STAGES - 1)),
    "env/cuts": np.array(POINTS),
    "env/units": np.array(UNITS),
}


def save(path: Path, learner: Learner, points: list[dict[str, float]], seconds: float) -> None:
    """Write where a training stands; the file that was there is replaced in one step."""
    head = {
        "settings": asdict(learner.settings), "iteration": learner.iteration,
        "turn": learner.env.turn, "seconds": seconds, "points": points,
    }  # fmt: skip
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in _tensors(learner).items()}
    arrays[_HEAD] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    with replacing(path) as stream:
        stream.write(content.getvalue())


def load(path: Path, settings: Settings) -> Standing:
    """Read where a training of these settings stands.

    Raises:
        ParenvsError: there is no such file, it is damaged, or of another training.
    """
    if not path.exists():
        raise ParenvsError(f"{path.parent}: no training to continue there (no {path.name})")
    try:
        arrays = read_arrays(path)
        head = json.loads(bytes(arrays.pop(_HEAD)))
        if not isinstance(head, dict) or set(head) != _FIELDS:
            raise ValueError(f"its head must have the fields {', '.join(sorted(_FIELDS))}")
        iteration, points, seconds = head["iteration"], head["points"], head["seconds"]
        if type(iteration) is not int or iteration < 1:
            raise ValueError(f"field 'iteration' must be a number from 1 on, not {iteration!r}")
        if type(seconds) is not float or not seconds >= 0 or head["turn"] not in (0, 1, None):
            raise ValueError("field 'seconds' or 'turn' is none")
        if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
            raise ValueError("field 'points' must be a list of objects")
    except UNREADABLE as error:
        raise ParenvsError(f"{path}: cannot be read ({error}); start anew elsewhere") from None
    _check_settings(path, head["settings"], asdict(settings))
    return Standing(iteration, seconds, points, arrays, head["turn"])


def _check_settings(path: Path, there: Any, here: dict[str, Any]) -> None:
    """Check that a file is of a training with these settings."""
    if not isinstance(there, dict) or there.keys() != here.keys():
        raise ParenvsError(f"{path}: field 'settings' is not that of a training")
    for name, value in here.items():
        if there[name] != value:
            raise ParenvsError(
                f"{path}: of a training with {name} {there[name]!r}, not {value!r}; give the "
                "same options, or another folder"
            )


def _tensors(learner: Learner) -> dict[str, torch.Tensor]:
    """Name -> the tensors that change in a training."""
    found = {f"policy/{name}": tensor for name, tensor in learner.policy.state_dict().items()}
    for number, parameter in enumerate(learner.optimizer.param_groups[0]["params"]):
        state = learner.optimizer.state[parameter]
        found |= {f"adam/{number}/{name}": tensor for name, tensor in state.items()}
    env = learner.env
    found |= {
        "env/problem": env.problem, "env/choices_made": env.choices_made, "env/cuts": env.cuts,
        "env/units": env.units,
    }  # fmt: skip
    found |= learner.memory()
    return found | {name: one.get_state() for name, one in _generators(learner).items()}


def _generators(learner: Learner) -> dict[str, torch.Generator]:
    """Name -> the generators of a training."""
    return {"random/choices": learner.generator, "random/problems": learner.env.generator}


def _kind(tensor: torch.Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and element type of a tensor as an array."""
    return tuple(tensor.shape), tensor.detach().cpu().numpy().dtype
