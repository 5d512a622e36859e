"""Further PyTorch modules, each with the roles that were written down before it was read.

The form of a case is that of ``torch_programs.PROGRAMS``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch_programs import BA, FR, ST, V, ids


class MomentumContrast(nn.Module):
    """A queue of keys that a slow encoder made; the batch pushes out the oldest."""

    def __init__(self):
        super().__init__()
        self.encoder, self.slow = nn.Linear(8, 6), nn.Linear(8, 6)
        self.register_buffer("queue", torch.randn(20, 6))

    def forward(self, one, other):
        query = F.normalize(self.encoder(one), dim=-1)
        with torch.no_grad():
            key = F.normalize(self.slow(other), dim=-1)
        own = (query * key).sum(-1, keepdim=True)
        logits = torch.cat([own, query @ self.queue.clone().T], 1) / 0.07
        with torch.no_grad():
            self.queue.copy_(torch.cat([key, self.queue])[:20])
        return F.cross_entropy(logits, torch.zeros(len(one), dtype=torch.long))


class Recommender(nn.Module):
    """DLRM: bags of categories, numbers beside them, and products of all pairs."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(30, 6, mode="sum") for _ in range(3))
        self.numbers, self.top = nn.Linear(5, 6), nn.Linear(12, 1)

    def forward(self, numbers, categories, clicks):
        dense = self.numbers(numbers).relu()
        rows = [bag(x) for bag, x in zip(self.bags, categories.unbind(1), strict=True)]
        every = torch.stack([dense, *rows], 1)
        first, second = torch.triu_indices(4, 4, 1)
        pairs = (every @ every.transpose(1, 2))[:, first, second]
        score = self.top(torch.cat([dense, pairs], -1))[:, 0]
        return F.binary_cross_entropy_with_logits(score, clicks)


class Denoiser(nn.Module):
    """Diffusion: noise and times are drawn in the step; the schedule is a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.linspace(0.99, 0.01, 50))
        self.register_buffer("waves", torch.linspace(0, 2, 4).exp())
        self.time, self.down = nn.Linear(8, 8), nn.Conv2d(3, 8, 3, 2, 1)
        self.norm, self.up = nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, images, steps):
        noise = torch.randn_like(images)
        kept = self.kept[steps][:, None, None, None]
        x = kept.sqrt() * images + (1 - kept).sqrt() * noise
        angles = steps[:, None] * self.waves
        clock = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        hidden = F.silu(self.norm(self.down(x)) + clock[:, :, None, None])
        return F.mse_loss(self.up(hidden), noise)


class Dilated(nn.Module):
    """A temporal network whose convolutions have a direction and a length."""

    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = norm(nn.Conv1d(4, 6, 2, dilation=1))
        self.second = norm(nn.Conv1d(6, 6, 2, dilation=2))
        self.head = nn.Linear(6, 1)

    def forward(self, x, wanted):
        x = self.first(F.pad(x, (1, 0))).relu()
        x = self.second(F.pad(x, (2, 0))).relu()
        return F.smooth_l1_loss(self.head(x[..., -1])[:, 0], wanted)


class Translator(nn.Module):
    """Two recurrent cells, the second of which attends to the states of the first."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(15, 8), nn.Embedding(12, 8)
        self.encoder, self.decoder = nn.LSTM(8, 8, batch_first=True), nn.GRUCell(16, 8)
        self.head = nn.Linear(8, 12)

    def forward(self, source, target):
        states, (hidden, _) = self.encoder(self.source(source))
        hidden, logits = hidden[0], []
        for token in target[:, :-1].unbind(1):
            share = torch.einsum("bsd,bd->bs", states, hidden).softmax(-1)
            context = torch.einsum("bs,bsd->bd", share, states)
            hidden = self.decoder(torch.cat([self.target(token), context], -1), hidden)
            logits.append(self.head(hidden))
        logits = torch.stack(logits, 1).flatten(0, 1)
        return F.cross_entropy(logits, target[:, 1:].flatten())


class Retention(nn.Module):
    """Linear attention with decays of heads that are a buffer, and shared normalization."""

    def __init__(self):
        super().__init__()
        self.tokens, self.qkv, self.out = nn.Embedding(20, 8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm = nn.RMSNorm(8)
        self.register_buffer("decay", torch.tensor([0.9, 0.99]))

    def forward(self, tokens, labels):
        x = self.norm(self.tokens(tokens))
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        ago = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        mask = torch.where(ago >= 0, self.decay[:, None, None] ** ago.clamp(min=0), 0.0)
        made = ((q @ k.transpose(-1, -2) * mask) @ v).transpose(1, 2).flatten(2)
        logits = self.norm(x + self.out(made)) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _weight_normed(name):
    return {f"{name}/bias": V, f"{name}/parametrizations/weight": V}


TORCH_ARCHITECTURES = {
    "momentum contrast": (
        lambda: (MomentumContrast(), (torch.randn(5, 8), torch.randn(5, 8))), 5,
        {"encoder": V, "slow": FR, "queue": ST, "one": BA, "other": BA},
    ),
    "recommender": (
        lambda: (Recommender(), (torch.randn(7, 5), ids(7, 3, 2, below=30), torch.rand(7))), 7,
        {"bags": V, "numbers/weight": V, "numbers/bias": V, "top": V, "numbers": BA,
         "categories": BA, "clicks": BA},
    ),
    "denoiser": (
        lambda: (Denoiser(), (torch.randn(3, 3, 8, 8), ids(3, below=50))), 3,
        {"kept": FR, "waves": FR, "time": V, "down": V, "norm": V, "up": V, "images": BA,
         "steps": BA},
    ),
    "dilated": (
        lambda: (Dilated(), (torch.randn(5, 4, 9), torch.randn(5))), 5,
        {**_weight_normed("first"), **_weight_normed("second"), "head": V, "x": BA,
         "wanted": BA},
    ),
    "translator": (
        lambda: (Translator(), (ids(5, 7, below=15), ids(5, 6, below=12))), 5,
        {"encoder": V, "decoder": V, "head": V, "source/weight": V, "target/weight": V,
         "source": BA, "target": BA},
    ),
    "retention": (
        lambda: (Retention(), (ids(3, 6, below=20), ids(3, 6, below=20))), 3,
        {"tokens/weight": V, "qkv": V, "out": V, "norm": V, "decay": FR, "tokens": BA,
         "labels": BA},
    ),
}  # fmt: skip
"""Name -> what makes the module and its inputs, samples, and role by prefix of a path."""
