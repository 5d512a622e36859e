"""The training that makes the network imitate proven optima of generated problems.

Every choice of an optimum is an example. The loss is the cross-entropy, so the network learns how
likely each choice is to be the optimum's. Plans drawn with these probabilities differ where the
network is unsure and agree where it is sure, so that several draws are better than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from parenvs.agents.learning.pretrained.examples import Examples
from parenvs.agents.learning.pretrained.network import HIDDEN, RatingNetwork
from parenvs.agents.learning.pretrained.policy import PlanPolicy


@dataclass(frozen=True)
class Recipe:
    """What decides a training; equal recipes give equal networks on one machine.

    Attributes:
        seed: seed of everything random.
        parts: number of parts of solved problems; a part is one batch.
        part: number of problems in a part.
        passes: how often each part is used.
        hidden: width of the network.
        rate: learning rate at first; it falls to a twentieth along a cosine.
        family: draw problems of this family only.
    """

    seed: int = 0
    parts: int = 600
    part: int = 128
    passes: int = 20
    hidden: int = HIDDEN
    rate: float = 2e-3
    family: str | None = None

    @property
    def steps(self) -> int:
        """Number of optimiser steps: one per part and pass."""
        return self.parts * self.passes


class Trainer:
    """The network and its optimiser.

    Args:
        recipe: what decides the training.

    Attributes:
        network: the network in training.
        step: number of optimiser steps done.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.step = recipe, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.network = RatingNetwork(recipe.hidden)
        self.optimizer = torch.optim.Adam(self.network.parameters())

    @property
    def policy(self) -> PlanPolicy:
        """The network as it is now, without torch."""
        return PlanPolicy(self.network.weights())

    def imitate(self, examples: Sequence[Examples]) -> float:
        """Take one optimiser step on a part.

        Args:
            examples: the part's choices of points and those of units.

        Returns:
            the mean loss of a point plus that of a unit, in nats.
        """
        losses = [
            functional.cross_entropy(self.network.rate(x.kind, x.rows, x.context, x.count), x.right)
            for x in examples
        ]
        loss = torch.stack(losses).sum()
        done = self.step / self.recipe.steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate * (0.05 + 0.475 * (1 + math.cos(math.pi * done)))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def run(
        self, examples: Sequence[Sequence[Examples]], report: Callable[[Trainer, float], Any]
    ) -> PlanPolicy:
        """Train until all passes are done.

        Args:
            examples: the choices of points and of units, for each part.
            report: is called after every step with the trainer and the loss.

        Returns:
            the trained network, without torch.
        """
        for number in self._order():
            report(self, self.imitate(examples[number]))
        return self.policy

    def _order(self) -> Iterator[int]:
        """The parts of the remaining steps; each pass takes all parts in an order of its own."""
        parts = self.recipe.parts
        for number in range(self.step // parts, self.recipe.passes):
            order = np.random.default_rng([self.recipe.seed, number, 1]).permutation(parts)
            yield from order[self.step - number * parts :].tolist()

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` takes to continue from here."""
        return {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state of an equal recipe's trainer."""
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
