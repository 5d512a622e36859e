"""The network that plans any model, with a head that foresees returns, on a device.

Only legal choices have rows, and how many there are decides the shapes of all that is computed of
them: for that the host waits, here and in the modules it calls. Rows for all of 128 points and 64
units would need no wait, and take several times the work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from parenvs.agents.fused.env import POINT, FusedEnv
from parenvs.agents.pretrained.features import (
    POINT_FEATURES,
    UNIT_FEATURES,
    point_features,
    unit_features,
)
from parenvs.agents.pretrained.network import HIDDEN, PlanNetwork
from parenvs.agents.pretrained.situation import CONTEXT, Situation
from parenvs.pipeline.points import POINTS

FEATURES = {"points": POINT_FEATURES, "units": UNIT_FEATURES}


@dataclass(frozen=True)
class Choices:
    """What n episodes have to choose now, the same turn in all.

    Attributes:
        kind: ``"points"`` or ``"units"``.
        rows: (r, features) float32 of the legal choices, one episode after the other.
        context: (n, CONTEXT) float32.
        count: (n,) int64, rows of each episode; r in all.
        actions: (r,) int64, the action that each row stands for.
        whole: (n, 3 features + CONTEXT) float32: least, mean and most of each episode's rows, and
            its context.
    """

    kind: str
    rows: torch.Tensor
    context: torch.Tensor
    count: torch.Tensor
    actions: torch.Tensor
    whole: torch.Tensor

    @classmethod
    def of(cls, env: FusedEnv) -> Choices:
        """Those of an environment's episodes.

        Raises:
            ValueError: it is not the same turn in all episodes.
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
        """(n,) int64, the actions of the rows that are ``rank``-th of their episode's."""
        return self.actions[self.count.cumsum(dim=0) - self.count + rank]


class FusedPolicy(nn.Module):
    """Rates choices as ``PlanNetwork`` does, and foresees what an episode will return.

    Args:
        device: where its parameters are.
        hidden: width.
        seed: of the first parameters, the same on every device.

    Attributes:
        network: the part that ``PlanPolicy`` takes.
        critics: one for points, one for units.
    """

    def __init__(self, device: torch.device, hidden: int = HIDDEN, seed: int = 0) -> None:
        super().__init__()
        self.device = device
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(seed)
            self.network = PlanNetwork(hidden)
            self.critics = nn.ModuleDict({k: _critic(n, hidden) for k, n in FEATURES.items()})
        self.to(device)

    def logits(self, choices: Choices) -> torch.Tensor:
        """(n, m) log-probabilities of each episode's legal choices, m the most; rest: lowest."""
        ratings = self.network.rate(choices.kind, choices.rows, choices.context, choices.count)
        return ratings.log_softmax(dim=1)

    def values(self, choices: Choices) -> torch.Tensor:
        """(n,) returns that are foreseen."""
        return self.critics[choices.kind](choices.whole).squeeze(1)

    def weights(self) -> dict[str, np.ndarray]:
        """What ``PlanPolicy`` takes."""
        return self.network.weights()


def draw(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """(n,) int64 ranks, drawn with the probabilities."""
    # The largest of them with Gumbel's noise is drawn by the softmax.
    waiting = torch.empty_like(logits).exponential_(generator=generator)
    # No waiting at all would make anything the largest, legal or not.
    return (logits - waiting.clamp(min=torch.finfo(logits.dtype).tiny).log()).argmax(dim=1)


def greedy_lengths(policy: FusedPolicy, env: FusedEnv) -> torch.Tensor:
    """(b,) float64 lengths of the best rated plans of a pool, for ``env`` of b episodes of it."""
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
