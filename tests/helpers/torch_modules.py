"""PyTorch modules that the importer is tested on, each of a family that people train.

Each returns its loss. ``MODULES`` names a function for each, which returns the module and its
inputs; the sizes are small, and nothing is dropped, so that PyTorch's own gradients can be compared
with.
"""

import torch
from torch import nn
from torch._higher_order_ops import map as higher_order_map
from torch._higher_order_ops import scan
from torch.nn import functional


class Attention(nn.Module):
    """Causal attention, queries, keys and values in one projection."""

    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(x).view(heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A decoder with tied embeddings."""

    def __init__(self, tokens=64, width=32, heads=4, layers=2, length=16, dropout=0.0):
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        flat = logits.view(-1, logits.shape[-1])
        return functional.cross_entropy(flat, targets.view(-1), ignore_index=-1)


class Encoder(nn.Module):
    """PyTorch's own layers, which merge batch and heads: attention to itself and to a memory."""

    def __init__(self, tokens=32, width=16, heads=4):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(width, heads, 32, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(width, heads, 32, 0.0, batch_first=True)
        self.mixing = nn.MultiheadAttention(width, heads)
        self.head = nn.Linear(width, 5)

    def forward(self, x, labels):
        x = self.decoder(x, self.encoder(x))
        mixed, weights = self.mixing(x, x, x)  # with weights, it multiplies (batch * heads)
        return functional.cross_entropy(self.head(mixed.mean(1)), labels) + weights.square().mean()


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float() if x.dtype == torch.bfloat16 else x
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


class Llama(nn.Module):
    """A layer with grouped queries, rotary positions and SwiGLU; ``factors`` is a buffer."""

    def __init__(self, tokens=64, width=32, heads=4, groups=2, hidden=48):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.tokens = nn.Embedding(tokens, width, padding_idx=0)
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down, self.head = nn.Linear(hidden, width, bias=False), nn.Linear(width, tokens)
        exponents = torch.arange(0, self.size, 2) / self.size
        self.register_buffer("factors", 10000.0**-exponents, persistent=False)

    def rotated(self, x):
        with torch.no_grad():
            places = torch.arange(x.shape[2], device=x.device)[:, None]
            angles = (places * self.factors).repeat(1, 2).to(x.dtype)
            cos, sin = angles.cos(), angles.sin()
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def forward(self, ids, targets):
        x = self.tokens(ids)
        batch, length, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k(y).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.v(y).view(batch, length, self.groups, self.size).transpose(1, 2)
        q, k = self.rotated(q), self.rotated(k)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return functional.cross_entropy(self.head(x).transpose(1, 2), targets)


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, groups=4, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        y = functional.relu_(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x), inplace=True)


class ResNet(nn.Module):
    """Convolutions, some grouped, and batch normalization with running statistics."""

    def __init__(self, width=8, classes=5):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(Residual(width, width, 1), Residual(width, 2 * width, 2))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(2 * width, classes)

    def forward(self, images, labels):
        x = self.pool(self.blocks(self.stem(images))).flatten(1)
        return functional.cross_entropy(self.head(x), labels, label_smoothing=0.1)


class UNet(nn.Module):
    """Down and up again, with attention in the middle, as diffusion models are."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(8, 2 * width), nn.SiLU())
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.norm, self.mid = nn.GroupNorm(4, 2 * width), nn.Conv2d(2 * width, 2 * width, 3, 1, 1)
        self.attention = nn.MultiheadAttention(2 * width, heads, batch_first=True)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.leave = nn.Conv2d(3 * width, 3, 3, padding=1)

    def forward(self, images, times, noise):
        x = self.enter(images)
        steps = torch.arange(4, device=x.device, dtype=x.dtype)
        angles = times[:, None].to(x.dtype) * torch.exp(-steps)
        moment = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        y = self.down(x) + moment[:, :, None, None]
        y = self.mid(functional.silu(self.norm(y)))
        flat = y.flatten(2).transpose(1, 2)
        flat = flat + self.attention(flat, flat, flat, need_weights=False)[0]
        y = flat.transpose(1, 2).reshape(y.shape)
        wide = functional.interpolate(y, scale_factor=2, mode="nearest")
        x = torch.cat([x, self.up(y) + wide[:, : x.shape[1]], wide[:, : x.shape[1]]], 1)
        return functional.mse_loss(self.leave(x), noise)


class Experts(nn.Module):
    """A mixture of experts with a capacity: each takes so many tokens, by products with masks."""

    def __init__(self, width=16, experts=4, hidden=24, classes=5):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.first = nn.Parameter(torch.randn(experts, width, hidden) / 4)
        self.second = nn.Parameter(torch.randn(experts, hidden, width) / 4)
        self.head = nn.Linear(width, classes)

    def forward(self, x, labels):
        shares = self.router(x).softmax(-1)  # (batch, length, experts)
        best, chosen = shares.topk(2, -1)
        gates = torch.zeros_like(shares).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        places = torch.cumsum((gates > 0).long(), 1) * (gates > 0) - 1
        capacity = x.shape[1]
        taken = functional.one_hot(places.clamp(0, capacity - 1), capacity).to(x.dtype)
        combine = gates[..., None] * taken * (places >= 0)[..., None]
        given = torch.einsum("blec,bld->ebcd", (combine > 0).to(x.dtype), x)
        inner = functional.gelu(
            torch.einsum("ebcd,edf->ebcf", given, self.first), approximate="tanh"
        )
        made = torch.einsum("ebcf,efd->ebcd", inner, self.second)
        x = x + torch.einsum("blec,ebcd->bld", combine, made)
        balance = (gates > 0).float().mean((0, 1)) * shares.mean((0, 1))
        return functional.cross_entropy(self.head(x[:, -1]), labels) + balance.sum()


class Recurrent(nn.Module):
    """An LSTM and a GRU in both directions."""

    def __init__(self, tokens=32, width=8, classes=5):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, 2 * width, 2, batch_first=True)
        self.gru = nn.GRU(2 * width, width, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, ids, labels):
        x = self.lstm(self.tokens(ids))[0].transpose(0, 1)
        return functional.cross_entropy(self.head(self.gru(x)[0][-1]), labels)


class Branches(nn.Module):
    """A conditional that holds dropout, a scan over time and a map, each with weights."""

    def __init__(self, width=8, dropout=0.0):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        x, size = torch.cond(
            x.mean() > 0.1,
            lambda x: (self.drop(self.first(x)), x.sum()),
            lambda x: (self.first(self.second(x)), x.mean() * 2),
            (x,),
        )
        start = torch.zeros(x.shape[1:], dtype=x.dtype)
        last, sums = scan(lambda h, row: ((self.second(h) + row).tanh(), h.sum(-1)), start, x)
        x = higher_order_map(lambda row: self.first(row).tanh(), x)
        return x.square().mean() + last.square().mean() + sums.mean() + size


class Spectral(nn.Module):
    """A Fourier operator with complex weights, a bag of embeddings and overlapping windows."""

    def __init__(self, width=4, modes=3):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.complex64))
        self.bags = nn.EmbeddingBag(16, width)
        self.dense = nn.Linear(3, 2)

    def forward(self, x, ids):
        x = x + self.bags(ids)[..., None]
        spectrum = torch.fft.rfft(x, norm="ortho")
        weight = self.weight.to(spectrum.dtype)
        kept = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], weight)
        kept = nn.functional.pad(kept, (0, spectrum.shape[-1] - self.modes))
        x = x + torch.fft.irfft(kept, n=x.shape[-1], norm="ortho")
        return self.dense(x.unfold(2, 3, 1)).square().mean()


def _ids(*shape, below=32):
    return torch.randint(1, below, shape)


MODULES = {
    "gpt": lambda: (Gpt(), (_ids(4, 16), torch.where(_ids(4, 16) < 8, -1, _ids(4, 16)))),
    "encoder": lambda: (Encoder(), (torch.randn(4, 6, 16), _ids(4, below=5))),
    "llama": lambda: (Llama(), (_ids(4, 8) - 1, _ids(4, 8))),
    "resnet": lambda: (ResNet(), (torch.randn(4, 3, 32, 32), _ids(4, below=5))),
    "u-net": lambda: (UNet(), (torch.randn(4, 3, 8, 8), _ids(4), torch.randn(4, 3, 8, 8))),
    "experts": lambda: (Experts(), (torch.randn(4, 6, 16), _ids(4, below=5))),
    "branches": lambda: (Branches(), (torch.randn(5, 4, 8),)),
    "spectral": lambda: (Spectral(), (torch.randn(4, 4, 8), _ids(4, 6, below=16))),
    "recurrent": lambda: (Recurrent(), (_ids(4, 6), _ids(4, below=5))),
}
"""Name -> what makes the module and its inputs."""
