"""The network of all agents: rows through one MLP, pooled, and a rule's score beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from parenvs.agents.learning.seen import Lens, Seen

WIDTH = 64
SHARPNESS = 3.0
"""Weight of the rule's score at the start."""


class RowsNet(nn.Module):
    """Gives each action a logit, or several numbers, and each turn a value.

    A row and the context go through an MLP; the mean and the maximum over legal rows are what the
    rows know of each other. The last layer starts at 0 and the score of the rule, column 0, is
    added times a weight, so the untrained network plays the rule. Any number of actions will do.

    Args:
        lens: what it sees.
        outputs: numbers for each action.
        values: numbers for each turn.
        width: of the hidden layers.
        attention: whether rows attend to each other once.
    """

    def __init__(
        self,
        lens: Lens,
        outputs: int = 1,
        values: int = 1,
        width: int = WIDTH,
        attention: bool = False,
    ) -> None:
        super().__init__()
        self.scored = lens.scored
        self.row = nn.Sequential(
            nn.Linear(lens.features + lens.contexts, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True) if attention else None
        self.pool = nn.Sequential(nn.Linear(2 * width + lens.contexts, width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
        self.last = nn.Linear(width, outputs)
        self.last_value = nn.Linear(width, values)
        self.value = nn.Sequential(nn.Linear(width, width), nn.Tanh(), self.last_value)
        self.weight = nn.Parameter(torch.tensor(SHARPNESS if lens.scored else 0.0))
        for layer in (self.last, self.last_value):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """Return (..., A, outputs), and (..., values) of turns."""
        rows, context, mask = seen
        shape = rows.shape[:-2]
        rows, mask = rows.reshape(-1, *rows.shape[-2:]), mask.reshape(-1, mask.shape[-1])
        context = context.reshape(len(rows), -1)
        wide = context[:, None].expand(-1, rows.shape[1], -1)
        hidden = self.row(torch.cat([rows, wide], dim=2)).relu()
        if self.attention is not None:
            hidden = hidden + self.attention(hidden, hidden, hidden, ~mask, need_weights=False)[0]
        legal = mask[..., None]
        count = legal.sum(dim=1).clamp(min=1)
        mean = torch.where(legal, hidden, 0.0).sum(dim=1) / count
        top = torch.where(legal, hidden, -torch.inf).amax(dim=1).nan_to_num(neginf=0.0)
        pooled = self.pool(torch.cat([mean, top, context], dim=1))
        joined = torch.cat([hidden, pooled[:, None].expand(-1, rows.shape[1], -1)], dim=2)
        outputs = self.last(self.head(joined))
        if self.scored:
            outputs = outputs + (self.weight * rows[..., :1])
        return outputs.reshape(*shape, rows.shape[1], -1), self.value(pooled).reshape(*shape, -1)


def log_policy(net: RowsNet, seen: Seen) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the actions' chances, (..., A), and the values of turns, (...).

    Illegal actions have a large negative number, so that sums with chances stay finite.
    """
    outputs, values = net(seen)
    logits = torch.where(seen.mask, outputs[..., 0], -1e9)
    return logits.log_softmax(dim=-1), values[..., 0]


def entropy(logs: Tensor) -> Tensor:
    """Return the entropy of turns in nats, (...), of the logarithms of chances."""
    return -(logs.exp() * logs).sum(dim=-1)
