"""Further PyTorch modules, each with the roles that were written down before it was read.

The form of a case is that of ``torch_programs.PROGRAMS``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch_programs import BA, FR, SC, ST, V, ids


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


class Coupling(nn.Module):
    """A flow: half of the features scale and shift the others, by masks that are buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("masks", torch.tensor([[1.0, 0, 1, 0], [0, 1.0, 0, 1]]))
        self.scale, self.shift = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(2)
        )

    def forward(self, x):
        x, volume = x * self.scale.exp() + self.shift, self.scale.sum()
        for mask, net in zip(self.masks, self.nets, strict=True):
            size, move = net(x * mask).chunk(2, -1)
            size = torch.tanh(size) * (1 - mask)
            x, volume = x * size.exp() + move * (1 - mask), volume + size.sum(-1)
        return (x.square().sum(-1) / 2 - volume).mean()


class Latents(nn.Module):
    """Perceiver: learned vectors attend to the input, and an output query to them."""

    def __init__(self):
        super().__init__()
        self.latents, self.query = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(1, 8))
        self.read = nn.MultiheadAttention(8, 2, batch_first=True)
        self.write = nn.MultiheadAttention(8, 2, batch_first=True)
        self.embed, self.head = nn.Linear(3, 8), nn.Linear(8, 4)

    def forward(self, points, labels):
        seen, count = self.embed(points), len(points)
        latents = self.latents.expand(count, -1, -1)
        latents = latents + self.read(latents, seen, seen, need_weights=False)[0]
        made = self.write(self.query.expand(count, -1, -1), latents, latents, need_weights=False)
        return F.cross_entropy(self.head(made[0][:, 0]), labels)


class Autoencoder(nn.Module):
    """A variational one, with batch normalisation in its encoder."""

    def __init__(self):
        super().__init__()
        self.encoder, self.norm = nn.Linear(10, 12), nn.BatchNorm1d(12)
        self.mean, self.spread, self.decoder = nn.Linear(12, 3), nn.Linear(12, 3), nn.Linear(3, 10)

    def forward(self, x):
        hidden = self.norm(self.encoder(x)).relu()
        mean, spread = self.mean(hidden), self.spread(hidden)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        divergence = -(1 + spread - mean.square() - spread.exp()).sum(-1) / 2
        return (F.mse_loss(self.decoder(z), x, reduction="none").sum(-1) + divergence).mean()


class Hypernetwork(nn.Module):
    """A network whose output is the weight of another, one for each sample."""

    def __init__(self):
        super().__init__()
        self.embed, self.maker = nn.Embedding(9, 4), nn.Linear(4, 6 * 5)
        self.bias = nn.Parameter(torch.zeros(5))

    def forward(self, task, x, labels):
        weight = self.maker(self.embed(task)).view(-1, 6, 5)
        return F.cross_entropy(torch.einsum("bi,bio->bo", x, weight) + self.bias, labels)


class Prefix(nn.Module):
    """Learned tokens before those of a frozen encoder whose dropout is off."""

    def __init__(self):
        super().__init__()
        self.base = nn.Embedding(20, 8).requires_grad_(False)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.layer.requires_grad_(False)
        self.prefix, self.head = nn.Parameter(torch.randn(3, 8)), nn.Linear(8, 2)

    def forward(self, tokens, labels):
        prefix = self.prefix.expand(len(tokens), -1, -1)
        x = self.layer(torch.cat([prefix, self.base(tokens)], 1))
        return F.cross_entropy(self.head(x[:, 0]), labels)


class Preferences(nn.Module):
    """DPO: a policy against a copy of itself that stays as it is."""

    def __init__(self):
        super().__init__()
        self.policy, self.reference = (
            nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)) for _ in range(2)
        )
        self.reference.requires_grad_(False)

    def forward(self, good, bad):
        def said(model, tokens):
            logits = model(tokens[:, :-1]).log_softmax(-1)
            return logits.gather(-1, tokens[:, 1:, None]).sum((1, 2))

        gain = [said(self.policy, x) - said(self.reference, x) for x in (good, bad)]
        return -F.logsigmoid(0.1 * (gain[0] - gain[1])).mean()


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


class Equivariant(nn.Module):
    """Atoms of molecules, whose positions move along their distances."""

    def __init__(self):
        super().__init__()
        self.kinds, self.message, self.move = nn.Embedding(5, 6), nn.Linear(13, 6), nn.Linear(6, 1)
        self.readout = nn.Linear(6, 1)

    def forward(self, kinds, positions, energy):
        nodes, count = self.kinds(kinds), kinds.shape[1]
        apart = positions[:, :, None] - positions[:, None]
        distance = apart.square().sum(-1, keepdim=True)
        one = nodes[:, :, None].expand(-1, -1, count, -1)
        both = [one, one.transpose(1, 2)]
        message = F.silu(self.message(torch.cat([*both, distance], -1)))
        positions = positions + (apart * self.move(message)).mean(2)
        spread = (positions - positions.mean(1, keepdim=True)).square().sum((1, 2))
        made = self.readout(nodes + message.sum(2))[..., 0].sum(1)
        return F.mse_loss(made + spread, energy)


class Retention(nn.Module):
    """Linear attention with decays of heads that are a buffer, and shared normalisation."""

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


class Centred(nn.Module):
    """DINO: the teacher's outputs are centred by their moving mean, and sharpened."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(8, 6), nn.Linear(8, 6)
        self.teacher.requires_grad_(False)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, one, other):
        taught = self.teacher(other)
        aim = ((taught - self.centre) / 0.04).softmax(-1)
        loss = -(aim * (self.student(one) / 0.1).log_softmax(-1)).sum(-1).mean()
        self.centre.mul_(0.9).add_(0.1 * taught.mean(0))
        return loss


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
    "coupling": (
        lambda: (Coupling(), (torch.randn(6, 4),)), 6,
        {"masks": FR, "scale": V, "shift": V, "nets": V, "x": BA},
    ),
    "latents": (
        lambda: (Latents(), (torch.randn(6, 7, 3), ids(6, below=4))), 6,
        {"latents": V, "query": V, "read": V, "write": V, "embed": V, "head": V, "points": BA,
         "labels": BA},
    ),
    "autoencoder": (
        lambda: (Autoencoder(), (torch.randn(6, 10),)), 6,
        {"encoder": V, "norm/weight": V, "norm/bias": V, "norm/running_mean": ST,
         "norm/running_var": ST, "norm/num_batches_tracked": SC, "mean": V, "spread": V,
         "decoder": V, "x": BA},
    ),
    "hypernetwork": (
        lambda: (Hypernetwork(), (ids(8, below=9), torch.randn(8, 6), ids(8, below=5))), 8,
        {"embed": V, "maker": V, "bias": V, "task": BA, "x": BA, "labels": BA},
    ),
    "prefix": (
        lambda: (Prefix(), (ids(5, 7, below=20), ids(5, below=2))), 5,
        {"base": FR, "layer": FR, "prefix": V, "head": V, "tokens": BA, "labels": BA},
    ),
    "preferences": (
        lambda: (Preferences(), (ids(5, 7, below=20), ids(5, 7, below=20))), 5,
        {"policy": V, "reference": FR, "good": BA, "bad": BA},
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
    "equivariant": (
        lambda: (Equivariant(), (ids(4, 6, below=5), torch.randn(4, 6, 3), torch.randn(4))), 4,
        {"kinds/weight": V, "message": V, "move": V, "readout": V, "kinds": BA, "positions": BA,
         "energy": BA},
    ),
    "retention": (
        lambda: (Retention(), (ids(3, 6, below=20), ids(3, 6, below=20))), 3,
        {"tokens/weight": V, "qkv": V, "out": V, "norm": V, "decay": FR, "tokens": BA,
         "labels": BA},
    ),
    "centred": (
        lambda: (Centred(), (torch.randn(6, 8), torch.randn(6, 8))), 6,
        {"student": V, "teacher": FR, "centre": ST, "one": BA, "other": BA},
    ),
}  # fmt: skip
"""Name -> what makes the module and its inputs, samples, and role by prefix of a path."""
