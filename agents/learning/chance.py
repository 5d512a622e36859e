"""``Chance``: what may be drawn from in a turn, the same wherever the turn is played."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


class Place(NamedTuple):
    """Which environments of all a player has, and when.

    Attributes:
        first: number of its first one.
        total: of all.
        turn: number of the turn, of each; on a device a tensor.
    """

    first: int
    total: int
    turn: Any


class Chance:
    """Uniform numbers of a turn of n environments.

    They are drawn by splitmix64 from a seed, the turn and the environment's number alone.

    Args:
        seed: the seed.
        place: the turn, and the first of the environments.
        count: n.
        device: where the numbers are.

    Attributes:
        share: (n,), the environments' numbers, from 0 of the first to 1 of the last of all.
    """

    def __init__(self, seed: int, place: Place, count: int, device: Any = "cpu") -> None:
        envs = torch.arange(place.first, place.first + count, device=device)
        turn = torch.as_tensor(place.turn, device=device)
        self._keys = keys_of(seed + turn * _STEP, envs)
        self.share = envs.float() / max(place.total - 1, 1)

    def __call__(self, count: int) -> Tensor:
        """Return numbers from 0 to 1, (n, count), always the same first ones."""
        return uniform(self._keys, count)


def keys_of(words: Tensor, numbers: Tensor) -> Tensor:
    """Return keys for ``uniform`` of words and numbers, int64 of shapes that go together."""
    return _mixed(_mixed(words) + numbers)


def uniform(keys: Tensor, count: int) -> Tensor:
    """Return ``count`` numbers from 0 to 1 of each key, (n, count)."""
    words = _mixed(keys[:, None] + torch.arange(count, device=keys.device) * _STEP)
    return ((words >> 40) & 0xFFFFFF).float() * 2**-24


def _mixed(words: Tensor) -> Tensor:
    """Return words whose bits are mixed, by the last steps of splitmix64."""
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * _FACTORS[0]
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * _FACTORS[1]
    return words ^ ((words >> 31) & ((1 << 33) - 1))
