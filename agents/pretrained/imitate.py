"""Trains the network that plans pipelines: it imitates proven optima of generated problems.

Every choice of an optimum is an example; the loss is the cross-entropy, so that the network says
how likely each choice is to be the optimum's. Plans drawn by these probabilities differ where it is
unsure and agree where it is sure, which is what drawing several of them lives on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from parenvs.agents.pretrained.examples import Lessons
from parenvs.agents.pretrained.network import HIDDEN, PlanNetwork
from parenvs.agents.pretrained.policy import PlanPolicy


@dataclass(frozen=True)
class Recipe:
    """What decides a training; equal recipes give equal networks on one machine.

    Attributes:
        seed: seed of everything random.
        parts: parts of labelled problems.
        part: problems in each.
        passes: times that each part is used.
        hidden: width of the network.
        rate: learning rate at first; it falls to a twentieth, by a cosine.
        family: problems of this family only.
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
        """Steps of the optimiser."""
        return self.parts * self.passes


class Trainer:
    """The network and its optimiser.

    Args:
        recipe: what decides the training.

    Attributes:
        step: steps done.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.step = recipe, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.network = PlanNetwork(recipe.hidden)
        self.optimizer = torch.optim.Adam(self.network.parameters())

    @property
    def policy(self) -> PlanPolicy:
        """The network as it is."""
        return PlanPolicy(self.network.weights())

    def imitate(self, examples: Sequence[Lessons]) -> float:
        """One step towards the examples; the mean loss in nats, of a point and a unit together."""
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
        self, examples: Sequence[Sequence[Lessons]], report: Callable[[Trainer, float], Any]
    ) -> PlanPolicy:
        """Go on until all passes are done.

        Args:
            examples: the parts.
            report: called after every step with the trainer and the loss.
        """
        for number in self._order():
            report(self, self.imitate(examples[number]))
        return self.policy

    def _order(self) -> Iterator[int]:
        """Parts of the steps that are left: each pass takes all of them in an order of its own."""
        parts = self.recipe.parts
        for turn in range(self.step // parts, self.recipe.passes):
            order = np.random.default_rng([self.recipe.seed, turn, 1]).permutation(parts)
            yield from order[self.step - turn * parts :].tolist()

    def state(self) -> dict[str, Any]:
        """What ``restore`` takes to go on from here."""
        return {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
