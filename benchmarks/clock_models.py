"""Two PyTorch models whose layers are of unequal weight, and one whose layers sleep."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CLASSES, PIXELS = 10, 48
WORDS, TOKENS, HEADS = 512, 64, 4
SAMPLES = {"conv": 4, "transformer": 2, "sleepers": 2}
"""Samples of a micro-batch."""
NAPS_MS = (4.0, 6.0, 10.0, 3.0, 8.0, 5.0, 12.0, 4.0, 7.0, 9.0, 3.0, 5.0)
"""Milliseconds for which each layer sleeps forward; backward it is twice as many."""


class Convolutions(nn.Module):
    """A convolution, its norm over groups, and an activation."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform pictures (samples, inputs, height, width)."""
        return F.relu(self.norm(self.convolution(x)))


class ConvNet(nn.Module):
    """Nine convolutions, whose pictures become smaller and deeper, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 96, 1), (96, 128, 2))
        sizes = (*sizes, (128, 128, 1), (128, 192, 1), (192, 256, 2))
        self.layers = nn.ModuleList(Convolutions(*size) for size in sizes)
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (samples, classes)."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """Attention and a feed-forward network of any width inside."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform the residual stream, (samples, tokens, width)."""
        y = self.norm_1(x)
        q, k, v = (
            part(y).view(x.shape[0], TOKENS, HEADS, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        context = ((q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5).softmax(-1) @ v
        x = x + self.out(context.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """Nine blocks whose feed-forward networks grow and shrink."""

    def __init__(self) -> None:
        super().__init__()
        width = 256
        self.embedding = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            Block(width, width * times) for times in (1, 2, 4, 8, 2, 1, 4, 12, 2)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits (samples, tokens, words)."""
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class FusedBlock(nn.Module):
    """Causal attention in one kernel, and a feed-forward network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform the residual stream, (samples, tokens, width)."""
        y = self.norm_1(x)
        q, k, v = (
            part(y).unflatten(-1, (self.heads, 64)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(context.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    """Blocks of one width: a model of a size that an accelerator is busy with."""

    def __init__(self, layers: int, width: int, words: int = 32_000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(FusedBlock(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits (samples, tokens, words)."""
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@torch.library.custom_op("parenvs_clock::nap", mutates_args=())
def nap(x: torch.Tensor, seconds: float) -> torch.Tensor:
    """Sleep, and return a copy; twice as long backward."""
    time.sleep(seconds)
    return x.clone()


@nap.register_fake
def _(x: torch.Tensor, seconds: float) -> torch.Tensor:
    return torch.empty_like(x)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.seconds = inputs[1]


def _wake(ctx: Any, gradient: torch.Tensor) -> Any:
    time.sleep(2 * ctx.seconds)
    return gradient, None


nap.register_autograd(_wake, setup_context=_remember)


class Sleeper(nn.Module):
    """Scales its input, and sleeps."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scaled input, (samples, 8)."""
        return torch.ops.parenvs_clock.nap(x * self.scale, self.seconds)


class Sleepers(nn.Module):
    """Twelve layers that sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Sleeper(1e-3 * naps) for naps in NAPS_MS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input, scaled, (samples, 8)."""
        for layer in self.layers:
            x = layer(x)
        return x


def squares(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the mean square of a difference."""
    return (made - wanted).square().mean()


def conv() -> tuple[nn.Module, Any]:
    """Return the convolutional net and its loss."""
    return ConvNet(), F.cross_entropy


def conv_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a micro-batch of pictures and their classes."""
    random = torch.Generator().manual_seed(1)
    samples = SAMPLES["conv"]
    pictures = torch.randn(samples, 3, PIXELS, PIXELS, generator=random)
    return pictures, torch.randint(0, CLASSES, (samples,), generator=random)


def transformer() -> tuple[nn.Module, Any]:
    """Return the transformer and its loss."""
    return Transformer(), _words


def transformer_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a micro-batch of words and the next ones."""
    random = torch.Generator().manual_seed(1)
    words = torch.randint(0, WORDS, (SAMPLES["transformer"], TOKENS), generator=random)
    return words, (3 * words + 1) % WORDS


def _words(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def decoder_small() -> tuple[nn.Module, Any]:
    """Return a decoder of 58 million weights and its loss."""
    return Decoder(8, 512), _words


def decoder_medium() -> tuple[nn.Module, Any]:
    """Return a decoder of 217 million weights and its loss."""
    return Decoder(12, 1024), _words


def decoder_large() -> tuple[nn.Module, Any]:
    """Return a decoder of 735 million weights and its loss."""
    return Decoder(12, 2048), _words


def decoder_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of eight texts and the next words."""
    random = torch.Generator().manual_seed(1)
    words = torch.randint(0, 32_000, (8, 512), generator=random)
    return words, (3 * words + 1) % 32_000


def sleepers() -> tuple[nn.Module, Any]:
    """Return the layers that sleep, and a loss."""
    return Sleepers(), squares


def sleepers_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a micro-batch of numbers and targets."""
    return torch.ones(SAMPLES["sleepers"], 8), torch.zeros(SAMPLES["sleepers"], 8)
