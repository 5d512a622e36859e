"""PyTorch modules of architectures of many kinds, with the truth about them, written by hand.

A case is a module, its inputs, the samples of a batch, and the role of every parameter, buffer and
input that the loss needs: by path, a prefix stands for all below it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from parenvs.graph.graph import Role

V, FR, ST, OP = Role.VARIABLE, Role.FROZEN, Role.STATISTICS, Role.OPTIMIZER
BA, SC = Role.BATCH, Role.SCALAR


def stated(path, truth):
    """The role of an input of a step: that of the longest prefix; moments are of what is trained.

    What is not stated is a number: a counter, a random key.
    """
    owner = path[2:] if path.startswith(("m/", "v/")) else path
    known = [x for x in truth if owner == x or owner.startswith(x + "/")]
    role = truth[max(known, key=len)] if known else SC
    return role if owner == path else OP if role == V else None


class GraphNet(nn.Module):
    """Messages along edges, their means, and a readout of the nodes."""

    def __init__(self):
        super().__init__()
        self.message, self.readout = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, nodes, edges, labels):
        source, target = edges
        messages = self.message(torch.cat([nodes[source], nodes[target]], -1)).relu()
        total = torch.zeros_like(nodes).index_add(0, target, messages)
        degree = torch.zeros(len(nodes), dtype=nodes.dtype).index_add(
            0, target, torch.ones_like(target, dtype=nodes.dtype)
        )
        return F.cross_entropy(self.readout(total / degree.clamp(min=1)[:, None]), labels)


class ShiftedWindows(nn.Module):
    """Attention in shifted windows, with a table of biases that an index buffer looks up."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.proj = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(9, 2))
        self.register_buffer("index", torch.arange(16).reshape(4, 4) % 9)

    def forward(self, images):
        count, rows, columns, width = images.shape
        x = torch.roll(images, (-1, -1), (1, 2))
        x = (
            x.view(count, rows // 2, 2, columns // 2, 2, width)
            .transpose(2, 3)
            .reshape(-1, 4, width)
        )
        q = self.q(x).view(-1, 4, 2, 4).transpose(1, 2)
        k, v = self.kv(x).view(-1, 4, 2, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 2 + self.table[self.index].permute(2, 0, 1)
        x = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 4, width)
        return self.proj(x).square().mean()


class Quantized(nn.Module):
    """A codebook that gradients pass straight through, with both of its losses."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)
        self.codes = nn.Parameter(torch.randn(16, 4))

    def forward(self, x):
        hidden = self.encoder(x)
        near = self.codes[torch.cdist(hidden, self.codes).argmin(-1)]
        straight = hidden + (near - hidden).detach()
        codebook = (near - hidden.detach()).square().mean()
        commitment = (near.detach() - hidden).square().mean()
        return (self.decoder(straight) - x).square().mean() + codebook + 0.25 * commitment


class Bootstrapped(nn.Module):
    """Two views: one is predicted, the other comes from a slow copy that no gradient reaches."""

    def __init__(self):
        super().__init__()
        self.online, self.slow = nn.Linear(8, 8), nn.Linear(8, 8)
        self.predictor = nn.Linear(8, 8)

    def forward(self, one, other):
        with torch.no_grad():
            target = F.normalize(self.slow(other), dim=-1)
        found = F.normalize(self.predictor(self.online(one).relu()), dim=-1)
        return 2 - 2 * (found * target).sum(-1).mean()


class Speech(nn.Module):
    """A spectrogram by a window that is a buffer, batch normalization, a GRU in both directions."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.norm, self.layer = (
            nn.BatchNorm1d(9),
            nn.GRU(9, 6, batch_first=True, bidirectional=True),
        )
        self.head = nn.Linear(12, 5)

    def forward(self, waves, labels):
        spectrum = torch.stft(waves, 16, 8, window=self.window, return_complex=True)
        x = self.norm(spectrum.abs().square().clamp(min=1e-6).log())
        x, _ = self.layer(x.transpose(1, 2))
        return F.cross_entropy(self.head(x.mean(1)), labels)


class BalancedExperts(nn.Module):
    """Two of four experts for each token; a buffer that counts the load steers who is chosen."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.randn(4, 8, 16)),
            nn.Parameter(torch.randn(4, 16, 8)),
        )
        self.register_buffer("steer", torch.zeros(4))

    def forward(self, x):
        scores = self.gate(x).sigmoid()
        chosen = (scores + self.steer).topk(2, -1).indices
        mask = F.one_hot(chosen, 4).sum(1).to(x.dtype)
        load = mask.mean(0)
        self.steer.add_(0.001 * (load.mean() - load).detach())
        hidden = torch.einsum("td,edf->tef", x, self.up).relu()
        made = torch.einsum("tef,efd->ted", hidden, self.down)
        return ((made * (scores * mask)[..., None]).sum(1) - x).square().mean()


class Adapted(nn.Module):
    """Whole numbers and scales of a frozen projection, with an adapter of two thin matrices."""

    def __init__(self):
        super().__init__()
        self.register_buffer("base", torch.randint(-8, 8, (8, 8)).to(torch.int8))
        self.register_buffer("scales", torch.rand(8))
        self.norm = nn.LayerNorm(8).requires_grad_(False)
        self.a, self.b = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x):
        x = self.norm(x)
        base = F.linear(x, self.base.to(x.dtype) * self.scales[:, None])
        return (base + self.b(self.a(x))).square().mean()


class Critic(nn.Module):
    """Spectral normalization: a vector of the power iteration is kept from step to step."""

    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.first, self.second = norm(nn.Linear(8, 8)), norm(nn.Linear(8, 1))

    def forward(self, real, made):
        score = [self.second(F.leaky_relu(self.first(x))) for x in (real, made)]
        return F.softplus(-score[0]).mean() + F.softplus(score[1]).mean()


def ids(*shape, below):
    """Whole numbers."""
    return torch.randint(0, below, shape)


def _normalized(name):
    return {f"{name}/bias": V, f"{name}/parametrizations/weight/original": V,
            f"{name}/parametrizations/weight/0/_v": ST,
            f"{name}/parametrizations/weight/0/_u": ST}  # fmt: skip


class TimeInFront(nn.Module):
    """A language model whose layers take time first and samples second, as PyTorch's do."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(32, 16), nn.Parameter(torch.randn(9, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
        self.head = nn.Linear(16, 32)

    def forward(self, ids, labels):
        mask = nn.Transformer.generate_square_subsequent_mask(len(ids))
        hidden = self.layer(self.tokens(ids) + self.positions, mask)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


PROGRAMS = {
    "graph net": (
        lambda: (GraphNet(), (torch.randn(7, 8), ids(2, 12, below=7), ids(7, below=3))), 7,
        {"message": V, "readout": V, "nodes": BA, "edges": BA, "labels": BA},
    ),
    "shifted windows": (
        lambda: (ShiftedWindows(), (torch.randn(3, 4, 4, 8),)), 3,
        {"q": V, "kv": V, "proj": V, "table": V, "index": FR, "images": BA},
    ),
    "quantized": (
        lambda: (Quantized(), (torch.randn(6, 8),)), 6,
        {"encoder": V, "decoder": V, "codes": V, "x": BA},
    ),
    "bootstrapped": (
        lambda: (Bootstrapped(), (torch.randn(6, 8), torch.randn(6, 8))), 6,
        {"online": V, "predictor": V, "slow": FR, "one": BA, "other": BA},
    ),
    "speech": (
        lambda: (Speech(), (torch.randn(4, 64), ids(4, below=5))), 4,
        {"window": FR, "norm/weight": V, "norm/bias": V, "norm/running_mean": ST,
         "norm/running_var": ST, "norm/num_batches_tracked": SC, "layer": V, "head": V,
         "waves": BA, "labels": BA},
    ),
    "balanced experts": (
        lambda: (BalancedExperts(), (torch.randn(6, 8),)), 6,
        {"gate": V, "up": V, "down": V, "steer": ST, "x": BA},
    ),
    "adapted": (
        lambda: (Adapted(), (torch.randn(5, 8),)), 5,
        {"base": FR, "scales": FR, "norm": FR, "a": V, "b": V, "x": BA},
    ),
    "time in front": (
        lambda: (TimeInFront(), (ids(9, 4, below=32), ids(9, 4, below=32))), 4,
        {"tokens": V, "positions": V, "layer": V, "head": V, "ids": BA, "labels": BA},
    ),
    "critic": (
        lambda: (Critic(), (torch.randn(4, 8), torch.randn(4, 8))), 4,
        {**_normalized("first"), **_normalized("second"), "real": BA, "made": BA},
    ),
}  # fmt: skip
"""Name -> what makes the module and its inputs, samples, and role by prefix of a path."""
