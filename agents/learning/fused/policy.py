"""The pretrained planner's network with a critic beside it, on one device.

Only legal choices have rows, so their number decides the shapes of everything computed from them,
and the host has to wait for it, here and in the modules called from here. Rows for all 128 points
and 64 units would need no wait but several times the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import nn

from parenvs.agents.learning.fused.env import POINT, FusedEnv
from parenvs.agents.learning.pretrained.features import (
    POINT_FEATURES,
    UNIT_FEATURES,
    point_features,
    unit_features,
)
from parenvs.agents.learning.pretrained.network import HIDDEN, RatingNetwork
from parenvs.agents.learning.pretrained.situation import CONTEXT, Situation
from parenvs.tasks.pipeline.points import POINTS

FEATURES = {"points": POINT_FEATURES, "units": UNIT_FEATURES}


@dataclass(frozen=True)
class Choices:
    """The legal choices of n episodes, all of which choose a point or all of which choose a unit.

    Attributes:
        kind: ``"points"`` or ``"units"``.
        rows: (r, features) float32, a row per legal choice, one episode after the other.
        context: (n, CONTEXT) float32, numbers that all choices of an episode share.
        count: (n,) int64, number of rows of each episode; they add up to r.
        actions: (r,) int64, the action that each row stands for.
        whole: (n, 3 features + CONTEXT) float32, input of the critic: minimum, mean and maximum
            over each episode's rows, and its context.
    """

    kind: str
    rows: torch.Tensor
    context: torch.Tensor
    count: torch.Tensor
    actions: torch.Tensor
    whole: torch.Tensor

    @classmethod
    def of(cls, env: FusedEnv) -> Choices:
        """The legal choices of an environment's episodes.

        Raises:
            ValueError: some episodes choose a point next and others a unit.
        """
        if env.turn is None:
            raise ValueError("a policy takes the same turn in all episodes: reset them")
        points = env.turn == POINT
        mask = env.legal_points() if points else env.legal_units()
        owner, column = mask.nonzero(as_tuple=True)
        situation = Situation({**env.observation(), "outlook": env.outlook()})
        if points:
            kind, rows, first = "points", point_features(situation, owner, column), 0
        else:
            kind, rows, first = "units", unit_features(situation, owner, column), POINTS
        context, count = situation.context(), mask.sum(dim=1)
        pooled = [
            torch.segment_reduce(rows, how, lengths=count, unsafe=True)
            for how in ("min", "mean", "max")
        ]
        whole = torch.cat([*pooled, context], dim=1)
        return cls(kind, rows, context, count, column + first, whole)

    def action(self, rank: torch.Tensor) -> torch.Tensor:
        """The (n,) int64 actions of the choices that have ``rank`` (n,) in their episode."""
        return self.actions[self.count.cumsum(dim=0) - self.count + rank]

    def at(self, place: torch.Tensor) -> Choices:
        """The choices of (b,) episodes by their numbers, each as often as it is named."""
        count = self.count[place]
        first = (self.count.cumsum(dim=0) - self.count)[place]
        shift = (first - (count.cumsum(dim=0) - count)).repeat_interleave(count)
        row = torch.arange(len(shift), device=shift.device) + shift
        return Choices(
            self.kind, self.rows[row], self.context[place], count, self.actions[row],
            self.whole[place],
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Choices]) -> Choices:
        """The choices of the episodes of all parts, which have one kind, in their order."""
        names = [field.name for field in fields(cls) if field.name != "kind"]
        return cls(parts[0].kind, *(torch.cat([getattr(x, name) for x in parts]) for name in names))


class FusedPolicy(nn.Module):
    """The network of the pretrained planner, and a critic that predicts an episode's return.

    Args:
        device: the device of its parameters.
        hidden: width of the layers.
        seed: seed of the first parameters, which are the same on every device.

    Attributes:
        network: rates the choices; ``PlanPolicy`` takes its weights.
        critics: predict the return, one before the choice of a point and one before that of a unit.
    """

    def __init__(self, device: torch.device, hidden: int = HIDDEN, seed: int = 0) -> None:
        super().__init__()
        self.device = device
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(seed)
            self.network = RatingNetwork(hidden)
            self.critics = nn.ModuleDict({k: _critic(n, hidden) for k, n in FEATURES.items()})
        self.to(device)

    def logits(self, choices: Choices) -> torch.Tensor:
        """Log-probabilities of the choices.

        Returns:
            (n, m), m being the greatest number of legal choices of an episode; the surplus columns
            of an episode with fewer have about the lowest float32.
        """
        ratings = self.network.rate(choices.kind, choices.rows, choices.context, choices.count)
        return ratings.log_softmax(dim=1)

    def values(self, choices: Choices) -> torch.Tensor:
        """(n,) predicted returns."""
        return self.critics[choices.kind](choices.whole).squeeze(1)

    def weights(self) -> dict[str, np.ndarray]:
        """The weights that ``PlanPolicy`` takes, without those of the critic."""
        return self.network.weights()


def draw(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw (n,) int64 ranks with the probabilities that the (n, m) ``logits`` stand for."""
    # Gumbel's trick: with such noise added, the index of the maximum is distributed by the softmax.
    exponential = torch.empty_like(logits).exponential_(generator=generator)
    # The logarithm of an exponential draw of 0 would make any choice the maximum, legal or not.
    return (logits - exponential.clamp(min=torch.finfo(logits.dtype).tiny).log()).argmax(dim=1)


def greedy_lengths(policy: FusedPolicy, env: FusedEnv) -> torch.Tensor:
    """Lengths of the greedy plans of all b problems of a pool.

    Args:
        policy: the network that plans.
        env: an environment of b episodes on the pool; it is reset.

    Returns:
        (b,) float64, in units of the bubble-free time.
    """
    env.reset(torch.arange(len(env.pool), device=env.device))
    lengths = torch.zeros(env.count, dtype=torch.float64, device=env.device)
    stages = int(env.pool.tensors.stages.max())
    with torch.no_grad():
        for _ in range(2 * (stages - 1)):
            choices = Choices.of(env)
            actions = choices.action(policy.logits(choices).argmax(dim=1))
            rewards, ended = env.step(actions)
            lengths = torch.where(ended & (lengths == 0.0), 1.0 / rewards, lengths)
    return lengths


def _critic(features: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3 * features + CONTEXT, hidden), nn.ReLU(), nn.Linear(hidden, 1))
