"""Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from parenvs.graph.pytorch.operations.table import operation


def _scaled(x: Array, normalisation: int, count: int) -> Array:
    """PyTorch's normalisations: none, by the root of the number of elements, by the number."""
    factor = {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[normalisation]
    return x if factor == 1 else x * factor


def _count(x: Array, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


@operation("_fft_c2c")
def _complex(x: Array, dim: Sequence[int], normalisation: int, forward: bool) -> Array:
    function = jnp.fft.fftn if forward else jnp.fft.ifftn
    norm = "backward" if forward else "forward"  # neither divides
    return _scaled(function(x, axes=dim, norm=norm), normalisation, _count(x, dim))


@operation("_fft_r2c")
def _from_real(x: Array, dim: Sequence[int], normalisation: int, onesided: bool) -> Array:
    function = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return _scaled(function(x, axes=dim), normalisation, _count(x, dim))


@operation("_fft_c2r")
def _to_real(x: Array, dim: Sequence[int], normalisation: int, last_dim_size: int) -> Array:
    sizes = [*(x.shape[d] for d in dim[:-1]), last_dim_size]
    made = jnp.fft.irfftn(x, sizes, axes=dim, norm="forward")
    return _scaled(made, normalisation, math.prod(sizes))
