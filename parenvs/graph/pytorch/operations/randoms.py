"""Operations that draw numbers.

All numbers come from ``rng-bit-generator``: one instruction each, which costs no FLOPs, as PyTorch
draws them inside its kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy import special

from parenvs.graph.pytorch.operations.table import random

KEY_WORDS = 4
"""32-bit words of the state that the generator starts from."""


class Key:
    """The random numbers of one training step.

    Args:
        words: (4,) uint32, the step's key; every draw adds its own number to it.
    """

    def __init__(self, words: Array) -> None:
        self.words = words
        self._number = itertools.count(1)

    def bits(self, shape: Sequence[int]) -> Array:
        """Draw 32 random bits for each element."""
        start = self.words + jnp.uint32(next(self._number))
        algorithm = lax.RandomAlgorithm.RNG_DEFAULT
        return lax.rng_bit_generator(start, tuple(shape), jnp.uint32, algorithm=algorithm)[1]

    def uniform(self, shape: Sequence[int]) -> Array:
        """Draw float32 numbers from [0, 1)."""
        return (self.bits(shape) >> 8).astype(jnp.float32) * 2.0**-24

    def normal(self, shape: Sequence[int]) -> Array:
        """Draw float32 numbers of mean 0 and variance 1."""
        return jnp.sqrt(2.0) * special.erfinv(2 * self.uniform(shape) - 1 + 2.0**-24)

    def keeps(self, shape: Sequence[int], share: float) -> Array:
        """Draw True with a probability of ``share``."""
        return self.bits(shape) < jnp.uint32(min(int(share * 2**32), 2**32 - 1))

    def dropout(self, x: Array, share: float) -> Array:
        """Drop a share of the elements, and scale the others up."""
        if share >= 1:
            return jnp.zeros_like(x)
        return jnp.where(self.keeps(x.shape, 1 - share), x / (1 - share), 0)


@random("native_dropout")
def _dropout(x: Array, share: float, train: bool | None = True, *, key: Key) -> tuple[Any, ...]:
    if train is False or share == 0:
        return x, jnp.ones(x.shape, jnp.bool_)
    if share == 1:
        return jnp.zeros_like(x), jnp.zeros(x.shape, jnp.bool_)
    kept = key.keeps(x.shape, 1 - share)
    return jnp.where(kept, x / (1 - share), 0), kept


@random("bernoulli.p")
def _bernoulli(x: Array, share: float = 0.5, *, key: Key) -> Array:
    return key.keeps(x.shape, share)


@random("bernoulli")
def _bernoulli_of(shares: Array, *, key: Key) -> Array:
    return key.uniform(shares.shape) < shares


@random("rand")
def _rand(size: Sequence[int], dtype: Any = None, *, key: Key) -> Array:
    return key.uniform(size)


@random("rand_like")
def _rand_like(x: Array, dtype: Any = None, *, key: Key) -> Array:
    return key.uniform(x.shape)


@random("uniform")
def _uniform(x: Array, low: float = 0.0, high: float = 1.0, *, key: Key) -> Array:
    return low + (high - low) * key.uniform(x.shape)


@random("randn")
def _randn(size: Sequence[int], dtype: Any = None, *, key: Key) -> Array:
    return key.normal(size)


@random("randn_like")
def _randn_like(x: Array, dtype: Any = None, *, key: Key) -> Array:
    return key.normal(x.shape)


@random("normal_functional")
def _normal(x: Array, mean: float = 0.0, std: float = 1.0, *, key: Key) -> Array:
    return mean + std * key.normal(x.shape)


@random("randint.low")
def _randint(low: int, high: int, size: Sequence[int], dtype: Any = None, *, key: Key) -> Array:
    return low + (key.bits(size) % jnp.uint32(high - low)).astype(jnp.int32)


@random("randint")
def _randint_from_zero(high: int, size: Sequence[int], dtype: Any = None, *, key: Key) -> Array:
    return _randint(0, high, size, key=key)


@random("randperm")
def _randperm(count: int, dtype: Any = None, *, key: Key) -> Array:
    places = lax.iota(jnp.int32, count)
    return lax.sort((key.bits((count,)), places), num_keys=1)[1]


@random("multinomial")
def _multinomial(shares: Array, count: int, replacement: bool = False, *, key: Key) -> Array:
    """Draw places by their shares: those of the largest logarithms with Gumbel noise."""
    shape = (*shares.shape[:-1], count, shares.shape[-1]) if replacement else shares.shape
    noise = -jnp.log(-jnp.log(key.uniform(shape) + 2.0**-25))
    scores = jnp.log(shares[..., None, :] if replacement else shares) + noise
    return jnp.argmax(scores, -1) if replacement else lax.top_k(scores, count)[1]


@random("rrelu_with_noise_functional")
def _rrelu(
    x: Array,
    noise: Array,
    low: float = 0.125,
    high: float = 1 / 3,
    training: bool = False,
    *,
    key: Key,
) -> tuple[Array, Array]:
    slope = low + (high - low) * key.uniform(x.shape) if training else (low + high) / 2
    slope = jnp.where(x > 0, 1, slope).astype(x.dtype)
    return x * slope, slope


@random("exponential")
def _exponential(x: Array, rate: float = 1.0, *, key: Key) -> Array:
    return -jnp.log1p(-key.uniform(x.shape)) / rate
