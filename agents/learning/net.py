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

    Where actions have no rows, the context goes through an MLP whose last layer has weights for
    each action, and through one of its own for the value.

    Args:
        lens: what it sees.
        outputs: numbers for each action.
        values: numbers for each turn.
        width: of the hidden layers.
        attention: whether rows attend to each other once.
        sharpness: weight of the rule's score at the start.
    """

    def __init__(
        self,
        lens: Lens,
        outputs: int = 1,
        values: int = 1,
        width: int = WIDTH,
        attention: bool = False,
        sharpness: float = SHARPNESS,
    ) -> None:
        super().__init__()
        self.scored, self.outputs, self.contexts = lens.scored, outputs, lens.contexts
        self.weight = nn.Parameter(torch.tensor(sharpness))
        self.last_value = nn.Linear(width, values)
        if lens.scored:
            self.context = nn.Linear(lens.contexts, width)
            self.action = nn.Linear(lens.features, width, bias=False)
            self.row = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            self.attention = (
                nn.MultiheadAttention(width, 4, batch_first=True) if attention else None
            )
            self.pool = nn.Sequential(nn.Linear(2 * width + lens.contexts, width), nn.ReLU())
            self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
            self.last = nn.Linear(width, outputs)
            self.value = nn.Sequential(nn.Linear(width, width), nn.Tanh(), self.last_value)
        else:
            self.last = nn.Linear(width, outputs * lens.actions)
            self.head, self.value = (
                nn.Sequential(
                    nn.Linear(lens.contexts, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                    last,
                ) for last in (self.last, self.last_value)
            )  # fmt: skip
            for layer in (*self.head, *self.value):
                if isinstance(layer, nn.Linear):
                    nn.init.orthogonal_(layer.weight, 2**0.5)
                    nn.init.zeros_(layer.bias)
        for layer in (self.last, self.last_value):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """Return (..., A, outputs), and (..., values) of turns."""
        rows, context, mask = seen
        context = context[..., : self.contexts]
        shape = rows.shape[:-2]
        if not self.scored:
            outputs = self.head(context).unflatten(-1, (-1, self.outputs))
            return outputs, self.value(context)
        rows, mask = rows.flatten(0, -3), mask.flatten(0, -2)
        context = context.flatten(0, -2)
        hidden = self.row(self.action(rows) + self.context(context)[:, None])
        if self.attention is not None:
            hidden = hidden + self.attention(hidden, hidden, hidden, ~mask, need_weights=False)[0]
        legal = mask[..., None]
        mean = torch.where(legal, hidden, 0.0).sum(dim=1) / legal.sum(dim=1).clamp(min=1)
        top = torch.where(legal, hidden, -torch.inf).amax(dim=1).nan_to_num(neginf=0.0)
        pooled = self.pool(torch.cat([mean, top, context], dim=1))
        joined = torch.cat([hidden, pooled[:, None].expand(-1, rows.shape[1], -1)], dim=2)
        outputs = self.last(self.head(joined)) + self.weight * rows[..., :1]
        return outputs.unflatten(0, shape), self.value(pooled).unflatten(0, shape)


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
