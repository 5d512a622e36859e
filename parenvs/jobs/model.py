"""What a job trains: a module, its loss, its data set and its optimiser, from the user's file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import default_collate

from parenvs.errors import ParenvsError, shown
from parenvs.exports.stream import Stream
from parenvs.graph.python_source import called

RATE = 1e-3
"""Learning rate of Adam where the user gives no optimiser."""


@dataclass(frozen=True)
class Model:
    """What a job trains.

    Attributes:
        module: with the values that it begins with.
        loss: ``loss(output, target)``, a mean over samples.
        samples: ``samples[i]`` is a sample: its inputs, then its target.
        optimiser: makes the optimiser of some parameters.
        takes_keys: whether the module's last input is ``keys``, for dropout that belongs to samples
            (``parenvs.exports.stream``).
    """

    module: nn.Module
    loss: Callable[..., torch.Tensor]
    samples: Any
    optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    takes_keys: bool

    @classmethod
    def made(cls, source: str, seed: int = 0) -> Model:
        """Make the model of a user's function, the same in every process.

        Args:
            source: ``FILE.py:NAME`` of a function that returns a module, its loss and a data set,
                and, if wanted, a function that makes an optimiser of parameters.
            seed: of PyTorch's generator, for initial values.

        Raises:
            ParenvsError: there is no such function, it fails, or it returns something else.
        """
        torch.manual_seed(seed)
        made = called(source)
        parts: tuple[Any, ...] = made if isinstance(made, tuple) else (made,)
        known = len(parts) in (3, 4) and isinstance(parts[0], nn.Module) and callable(parts[1])
        if not known or not hasattr(parts[2], "__getitem__") or not hasattr(parts[2], "__len__"):
            raise ParenvsError(
                f"{source}: returns {shown(made)}; it has to return a torch.nn.Module, its loss "
                "and a data set with a length and items (inputs, then the target), and may return "
                "a function that makes an optimiser of parameters"
            )
        module, loss, samples = parts[:3]
        names = list(inspect.signature(module.forward).parameters)

        def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return torch.optim.Adam(parameters, RATE)

        optimiser = parts[3] if len(parts) == 4 else adam
        return cls(module, loss, samples, optimiser, names[-1:] == ["keys"])

    def batch(self, stream: Stream) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Return the inputs and the targets of a stream's next step."""
        *inputs, target = default_collate([tuple(self.samples[i]) for i in stream.ids().tolist()])
        if self.takes_keys:
            inputs.append(torch.from_numpy(stream.keys()))
        return tuple(inputs), target


def alone(source: str, batch: int, seed: int, steps: int) -> tuple[list[float], list[list[int]]]:
    """Train without a change in this process, and return losses and samples of each step.

    Args:
        source: see ``Model.made``.
        batch: samples of a step.
        seed: of initial values and of the order of samples.
        steps: how many.
    """
    model = Model.made(source, seed)
    stream = Stream(len(model.samples), batch, seed)
    optimiser = model.optimiser(model.module.parameters())
    losses, ids = [], []
    for _ in range(steps):
        inputs, target = model.batch(stream)
        optimiser.zero_grad()
        value = model.loss(model.module(*inputs), target)
        value.backward()
        optimiser.step()
        ids.append(np.asarray(stream.ids()).tolist())
        stream.advance()
        losses.append(value.item())
    return losses, ids
