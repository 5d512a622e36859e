"""The network that rates points and units, for training; ``plan_policy`` runs it without torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from parenvs.agents.pretrained.features import POINT_FEATURES, UNIT_FEATURES
from parenvs.agents.pretrained.situation import CONTEXT

HIDDEN = 64
LOWEST = torch.finfo(torch.float32).min


class Rater(nn.Module):
    """Rates each legal row by itself and by what all legal rows have in common.

    Args:
        features: numbers of a row.
        hidden: width.
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
        """(b, n) ratings of b choices among n rows at most, the lowest number beyond them.

        Args:
            rows: (r, features) of all choices, one choice after the other.
            context: (b, CONTEXT).
            count: (b,) int64, rows of each choice; r in all.
        """
        owner = torch.arange(len(count), device=count.device).repeat_interleave(count)
        h = torch.relu(self.row(rows) + self.whole(context)[owner])
        most = torch.segment_reduce(h, "max", lengths=count)
        mean = torch.segment_reduce(h, "mean", lengths=count)
        common = self.common(torch.cat([most, mean, context], dim=1))
        h = torch.relu(self.second(h) + common[owner])
        h = torch.relu(self.third(h)) + h
        legal = torch.arange(int(count.max()), device=count.device) < count[:, None]
        lowest = torch.full(legal.shape, LOWEST, device=rows.device)
        return lowest.masked_scatter(legal, self.out(h).squeeze(1))


class PlanNetwork(nn.Module):
    """One rater for points, one for units."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.points = Rater(POINT_FEATURES, hidden)
        self.units = Rater(UNIT_FEATURES, hidden)

    def rate(
        self, kind: str, rows: torch.Tensor, context: torch.Tensor, count: torch.Tensor
    ) -> torch.Tensor:
        """Ratings by the rater of that kind; see ``Rater.forward``."""
        rater: Rater = getattr(self, kind)
        return rater(rows, context, count)

    def weights(self) -> dict[str, np.ndarray]:
        """The parameters by name, float32, as ``PlanPolicy`` takes them."""
        return {k: v.detach().cpu().numpy().copy() for k, v in self.state_dict().items()}
