"""A policy for ``IntraOpSharding-v0`` that rates every action by the same weights.

A strategy (or block) is rated from its row of the observation and what all have in common: the
numbers of the episode, and the mean and the best of the legal rows. So one policy takes nodes of
any number of strategies, and problems of any size.
"""

from __future__ import annotations

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import TensorDict
from torch import nn

from parenvs.agents.learning.rating import RatingPolicy
from parenvs.tasks.sharding.turns import construct
from parenvs.tasks.sharding.turns.construct import DEEPEST

WIDTH = 64
"""Width of the layers."""
_SHARP = 1 << 12  # makes a difference of 1e-4 of a logarithm seen
_TRUST = 8.0  # in the guide at first


class ActionExtractor(BaseFeaturesExtractor):
    """Features of (b, actions + 2 width): a rating of each action, and what the value is made of.

    Args:
        observation_space: of ``IntraOpSharding-v0``.
        width: of the layers.
        guide: column of ``actions`` that the greedy rule goes by; ratings begin with it, so that
            learning begins near that rule (default: that without advice, in the construct form).
    """

    def __init__(
        self, observation_space: spaces.Dict, width: int = WIDTH, guide: int | None = None
    ) -> None:
        rows, numbers = (observation_space[key].shape or (0,) for key in ("actions", "numbers"))
        self.actions = rows[0]
        super().__init__(observation_space, self.actions + 2 * width)
        if guide is None and rows[1] == len(construct.ROWS):
            guide = construct.ROWS.index(construct.GUIDES["none"])
        self.guide, self.width = guide, width
        self.trust = nn.Parameter(torch.tensor(_TRUST))
        self.own, self.common = nn.Linear(2 * rows[1], width), nn.Linear(numbers[0], width)
        self.inner, self.others = nn.Linear(width, width), nn.Linear(2 * width, width)
        self.rate = nn.Linear(width, 1)
        nn.init.normal_(self.rate.weight, std=0.01)
        nn.init.zeros_(self.rate.bias)

    def forward(self, observation: TensorDict) -> torch.Tensor:
        """Return the features."""
        rows, numbers = observation["actions"], observation["numbers"]
        legal = rows[..., -1:]
        shared = self.common(numbers)
        fine = torch.log1p(_SHARP * rows) / 8  # beside logarithms, their small differences
        hidden = self.own(torch.cat([DEEPEST / 4 * rows, fine], dim=-1)) + shared[:, None]
        hidden = hidden.relu()
        pooled = torch.cat(_pooled(hidden, legal), dim=-1)
        hidden = (hidden + self.inner(hidden) + self.others(pooled)[:, None]).relu()
        mean, _ = _pooled(hidden, legal)
        ratings = self.rate(hidden)[..., 0]
        if self.guide is not None:
            ratings = ratings - self.trust * fine[..., self.guide]
        return torch.cat([ratings, mean, shared.relu()], dim=1)


def _pooled(hidden: torch.Tensor, legal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and maximum, (b, width) each, of (b, a, width) over legal actions."""
    count = legal.sum(dim=1).clamp(min=1)
    return (hidden * legal).sum(dim=1) / count, (hidden * legal).amax(dim=1)


class ShardingPolicy(RatingPolicy):
    """``MaskablePPO(ShardingPolicy, env)`` for ``IntraOpSharding-v0``; see ``RatingPolicy``."""

    extractor = ActionExtractor
    features_extractor: ActionExtractor
