"""The network of all agents: rows through one MLP, pooled, and a rule's score beside it."""

from __future__ import annotations

from typing import cast

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
        table = LegalRows(mask) if self._is_packed(mask) else AllRows(mask)
        rows = table.of(rows)
        hidden = self.row(self.action(rows) + table.spread(self.context(context)))
        if self.attention is not None:
            hidden = hidden + self.attention(hidden, hidden, hidden, ~mask, need_weights=False)[0]
        pooled = self.pool(torch.cat([*table.pooled(hidden), context], dim=1))
        # The head's layer of (row, pool) is a sum of two, of which one is the turn's.
        layer = cast(nn.Linear, self.head[0])
        own, shared = layer.weight.split(hidden.shape[-1], dim=1)
        turn = nn.functional.linear(pooled, shared, layer.bias)
        rated = self.head[1](nn.functional.linear(hidden, own) + table.spread(turn))
        outputs = table.all(self.last(rated) + self.weight * rows[..., :1])
        return outputs.unflatten(0, shape), self.value(pooled).unflatten(0, shape)

    def _is_packed(self, mask: Tensor) -> bool:
        """Whether legal rows alone are computed: on a CPU; others do not wait for their number."""
        return self.attention is None and mask.device.type == "cpu" and mask.numel() > 0


class AllRows:
    """Rows as they are seen, (n, A, ...), illegal ones included.

    Args:
        mask: (n, A) bool, the legal rows.
    """

    def __init__(self, mask: Tensor) -> None:
        self.legal = mask[..., None]

    def of(self, rows: Tensor) -> Tensor:
        """Return what is computed of rows, (n, A, F)."""
        return rows

    def spread(self, turns: Tensor) -> Tensor:
        """Return what turns, (n, k), give each of their rows."""
        return turns[:, None]

    def pooled(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and maximum over the legal rows of turns, (n, k) each; 0 of none."""
        mean = torch.where(self.legal, hidden, 0.0).sum(dim=1)
        top = torch.where(self.legal, hidden, -torch.inf).amax(dim=1)
        return mean / self.legal.sum(dim=1).clamp(min=1), top.nan_to_num(neginf=0.0)

    def all(self, outputs: Tensor) -> Tensor:
        """Return outputs of all rows, (n, A, k)."""
        return outputs


class LegalRows(AllRows):
    """The legal rows of all turns one behind another, (r, ...): twice as fast where many are not.

    Outputs of illegal rows are 0.
    """

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask)
        self.mask, self.count = mask, mask.sum(dim=1)
        self.owner = torch.repeat_interleave(self.count)

    def of(self, rows: Tensor) -> Tensor:
        """See ``AllRows.of``."""
        return rows[self.mask]

    def spread(self, turns: Tensor) -> Tensor:
        """See ``AllRows.spread``."""
        return turns.index_select(0, self.owner)

    def pooled(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See ``AllRows.pooled``."""
        total = hidden.new_zeros(len(self.count), hidden.shape[1]).index_add(0, self.owner, hidden)
        top = torch.segment_reduce(hidden, "max", lengths=self.count)
        return total / self.count.clamp(min=1)[:, None], top.nan_to_num(neginf=0.0)

    def all(self, outputs: Tensor) -> Tensor:
        """See ``AllRows.all``."""
        room = outputs.new_zeros(*self.mask.shape, outputs.shape[1])
        return room.masked_scatter(self.legal, outputs)


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
