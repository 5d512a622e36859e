"""The network that rates points and units, in torch; ``PlanPolicy`` runs it without torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from parenvs.agents.learning.pretrained.features import POINT_FEATURES, UNIT_FEATURES
from parenvs.agents.learning.pretrained.situation import CONTEXT

HIDDEN = 64
"""Width of the layers."""
LOWEST = torch.finfo(torch.float32).min
"""Stands in the columns beyond the last rating of a choice."""


class Rater(nn.Module):
    """Rates each row of a choice by its features and by what all rows of the choice share.

    Args:
        features: number of features of a row.
        hidden: width of the layers.
    """

    def __init__(self, features: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.row = nn.Linear(features, hidden)
        self.whole = nn.Linear(CONTEXT, hidden, bias=False)
        self.second = nn.Linear(hidden, hidden)
        self.common = nn.Linear(2 * hidden + CONTEXT, hidden, bias=False)
        self.third = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(
        self, rows: torch.Tensor, context: torch.Tensor, count: torch.Tensor
    ) -> torch.Tensor:
        """Rate the rows of b choices.

        Args:
            rows: (r, features) of all choices, one choice after the other.
            context: (b, CONTEXT), numbers that all rows of a choice share.
            count: (b,) int64, number of rows of each choice; they add up to r.

        Returns:
            (b, n) ratings, n being the greatest count; ``LOWEST`` beyond a choice's last row.
        """
        owner = torch.arange(len(count), device=count.device).repeat_interleave(count)
        h = torch.relu(self.row(rows) + self.whole(context)[owner])
        maximum = torch.segment_reduce(h, "max", lengths=count)
        mean = torch.segment_reduce(h, "mean", lengths=count)
        common = self.common(torch.cat([maximum, mean, context], dim=1))
        h = torch.relu(self.second(h) + common[owner])
        h = torch.relu(self.third(h)) + h
        present = torch.arange(int(count.max()), device=count.device) < count[:, None]
        lowest = torch.full(present.shape, LOWEST, device=rows.device)
        return lowest.masked_scatter(present, self.out(h).squeeze(1))


class RatingNetwork(nn.Module):
    """A rater for points and a rater for units.

    Args:
        hidden: width of the layers.
    """

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.points = Rater(POINT_FEATURES, hidden)
        self.units = Rater(UNIT_FEATURES, hidden)

    def rate(
        self, kind: str, rows: torch.Tensor, context: torch.Tensor, count: torch.Tensor
    ) -> torch.Tensor:
        """Ratings by the rater of ``kind``, ``"points"`` or ``"units"``; see ``Rater.forward``."""
        rater: Rater = getattr(self, kind)
        return rater(rows, context, count)

    def weights(self) -> dict[str, np.ndarray]:
        """The parameters by name as float32 arrays, as ``PlanPolicy`` takes them."""
        return {k: v.detach().cpu().numpy().copy() for k, v in self.state_dict().items()}
