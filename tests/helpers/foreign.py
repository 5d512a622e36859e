"""Small PyTorch modules of kinds that plans of replicas, micro-batches and stages may get wrong."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional


class Foreign(nn.Module):
    """Four layers, and what ``kind`` adds."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.dropout = kind, nn.Dropout(0.5 if kind == "dropout" else 0.0)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        if kind == "types":
            self.layers[3].double()
        if kind == "tied":
            self.layers[3].weight = self.layers[0].weight
        if kind == "buffer":
            self.register_buffer("kept", torch.zeros(6))
        if kind == "time":
            self.recurrent = nn.LSTM(6, 6)
        if kind == "unused":
            self.extra = nn.Linear(2, 2)
        if kind == "no list":
            self.layers = nn.ParameterList(nn.Parameter(torch.randn(6, 6)) for _ in range(4))

    def forward(self, x, y):
        """Return a loss of (samples, 6) numbers and whole numbers."""
        kind = self.kind
        for layer in self.layers:
            x = x @ layer if kind == "no list" else layer(x.to(layer.weight.dtype))
            x = self.dropout(torch.tanh(x))
        if kind == "table":
            return (x @ y.float().T).square().mean()
        if kind == "contrast":
            return functional.cross_entropy(x @ x.T, torch.arange(len(x), device=x.device))
        if kind == "mixed":
            x = x - x.mean(0)
        if kind == "buffer":
            with torch.no_grad():
                self.kept.lerp_(x.mean(0), 0.1)
            x = x - self.kept
        if kind == "time":  # the samples are behind it
            x = self.recurrent(x)[0]
        if kind in ("labels", "time"):
            return functional.cross_entropy(x.flatten(0, -2), y.flatten() - 100)
        each = (x - y.sum(-1, keepdim=True)).square().mean(-1)
        weights = y[:, 0].float()
        ways = {"sum": each.sum(), "weighted": (each * weights).sum() / weights.sum()}
        return each.mean().sqrt() if kind == "root" else ways.get(kind, each.mean())


def batch(kind):
    """Numbers and whole numbers of eight samples; of labels, some are ignored."""
    shape = (3, 8, 6) if kind == "time" else (8, 6)
    x, rows = torch.randn(shape, generator=torch.Generator().manual_seed(0)), torch.arange(8)
    if kind in ("labels", "time"):  # one of two or both in each micro-batch
        return x, torch.where(rows % 3 > 0, 100 + rows % 6, 0).expand(shape[:-1]).contiguous()
    return x, torch.arange(30).reshape(5, 6) if kind == "table" else (rows[:, None] + rows[:3]) % 5


KINDS = {
    "types": "zero", "tied": "pp", "no list": "pp", "table": "samples", "mixed": "samples",
    "root": "samples", "contrast": "dp", "buffer": "tp", "sum": "", "weighted": "", "labels": "",
    "time": "pp", "unused": "", "dropout": "",
}  # fmt: skip
"""Kind -> the first cause against a plan of it."""
for number, name in enumerate(KINDS):
    made = {f"net_{number}": partial(Foreign, name), f"batch_{number}": partial(batch, name)}
    globals().update(made)
