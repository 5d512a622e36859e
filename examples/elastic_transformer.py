"""A small GPT for jobs whose machines change: ``build`` gives all that a job trains.

    parenvs elastic run TRACE examples/elastic_transformer.py:build --batch 24 --processes 8

Samples are windows of a text that follows a rule, so that the loss falls. Dropout belongs to
samples: its masks are drawn by their keys, so they are the same under every plan.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from parenvs.exports.stream import dropout

LAYERS, WIDTH, HEADS, TOKENS, WORDS, SAMPLES = 4, 32, 4, 16, 64, 512
RATE = 3e-3


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform the residual stream, (batch, tokens, width)."""
        y = self.norm_1(x)
        q, k, v = (
            part(y).view(len(x), TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=x.device).triu(1)
        chances = scores.masked_fill(later, -1e9).softmax(-1)
        context = (chances @ v).transpose(1, 2).reshape(len(x), TOKENS, WIDTH)
        x = x + self.out(context)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """A decoder with dropout in front of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, tokens, words) of words and the samples' keys."""
        x = self.embedding(words)
        for number, layer in enumerate(self.layers):
            x = layer(dropout(x, 0.05, keys, number))
        return self.head(self.norm(x))


class Text(torch.utils.data.Dataset[Any]):
    """Words and the words that follow them."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a sample: words (tokens,), and the next ones."""
        words = (torch.arange(TOKENS + 1) * (1 + index % 7) + index) % WORDS
        return words[:-1], words[1:]


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build() -> tuple[Any, ...]:
    """Return the model, its loss, its data set, and what makes its optimizer."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, RATE)

    return Transformer(), loss, Text(), optimizer
