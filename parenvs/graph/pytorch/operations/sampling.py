"""Values between places: grids of samples over images, cubic resizing, sorted boundaries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from parenvs.graph.pytorch.operations.table import operation


def _cubic(share: Any, a: float = -0.75) -> list[Any]:
    """Weights of the four neighbours of a place that is ``share`` behind the second of them."""

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(share + 1), near(share), near(1 - share), far(2 - share)]


@operation("upsample_bicubic2d.vec")
def _bicubic(
    x: Array, output: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None
) -> Array:
    for k in range(2):
        axis = x.ndim - 2 + k
        held = x.shape[axis]
        size = output[k] if output else math.floor(held * (factors or ())[k])
        if align_corners:
            at = np.arange(size) * ((held - 1) / (size - 1) if size > 1 else 0.0)
        else:
            at = (np.arange(size) + 0.5) * (1 / factors[k] if factors else held / size) - 0.5
        low = np.floor(at).astype(np.int32)
        made: Any = 0.0
        for place, weight in zip(range(-1, 3), _cubic(at - low), strict=True):
            share = jnp.asarray(weight.reshape(-1, *[1] * (x.ndim - axis - 1)), x.dtype)
            row = np.clip(low + place, 0, held - 1)
            made = made + jnp.take(x, row, axis=axis, mode="clip") * share
        x = made
    return x


def _reflected(at: Array, low: float, high: float) -> Array:
    """Places thrown back at two borders until they lie between them."""
    span = high - low
    if not span:
        return jnp.zeros_like(at)
    away = jnp.mod(jnp.abs(at - low), 2 * span)
    return low + jnp.where(away > span, 2 * span - away, away)


@operation("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(
    x: Array, grid: Array, interpolation: int, padding: int, align_corners: bool
) -> Array:
    """Sample images at places from -1 to 1, given as (batch, ..., axis), the last axis first."""
    sizes = x.shape[2:]
    places = []
    for k, size in enumerate(sizes):
        at = grid[..., len(sizes) - 1 - k]
        at = (at + 1) / 2 * (size - 1) if align_corners else ((at + 1) * size - 1) / 2
        if padding == 2:
            bounds = (0, size - 1) if align_corners else (-0.5, size - 0.5)
            at = _reflected(at, *bounds)
        places.append(at if padding == 0 or interpolation == 2 else jnp.clip(at, 0, size - 1))
    batch = jnp.arange(x.shape[0]).reshape(-1, *[1] * len(sizes))

    def taken(index: Sequence[Array]) -> Array:
        """(batch, places..., channels) values at whole places; zero outside, if so padded."""
        inside: Any = True
        held = []
        for at, size in zip(index, sizes, strict=True):
            if padding == 2 and interpolation == 2:
                bounds = (0, size - 1) if align_corners else (-0.5, size - 0.5)
                at = _reflected(at, *bounds)
            inside = inside & (at >= 0) & (at <= size - 1)
            held.append(jnp.clip(at, 0, size - 1).astype(jnp.int32))
        values = jnp.moveaxis(x, 1, -1)[(batch, *held)]
        return values if padding else jnp.where(inside[..., None], values, 0)

    if interpolation == 1:
        return jnp.moveaxis(taken([jnp.round(at) for at in places]), -1, 1)
    lows = [jnp.floor(at) for at in places]
    shares = [at - low for at, low in zip(places, lows, strict=True)]
    near = range(-1, 3) if interpolation == 2 else range(2)
    weights = [_cubic(s) if interpolation == 2 else [1 - s, s] for s in shares]
    made: Any = 0.0
    for steps in itertools.product(range(len(near)), repeat=len(sizes)):
        weight: Any = math.prod(
            (w[k] for w, k in zip(weights[1:], steps[1:], strict=True)), start=weights[0][steps[0]]
        )
        index = [low + near[k] for low, k in zip(lows, steps, strict=True)]
        made = made + taken(index) * weight[..., None]
    return jnp.moveaxis(made, -1, 1)


@operation("bucketize.Tensor")
def _bucketize(x: Array, borders: Array, out_int32: bool = False, right: bool = False) -> Array:
    return _counted(borders, x, right)


@operation("searchsorted.Tensor")
def _searchsorted(
    borders: Array,
    x: Array,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    if sorter is not None:
        borders = jnp.take_along_axis(borders, sorter, -1)
    return _counted(borders, x, right or side == "right")


def _counted(borders: Array, x: Array, right: bool) -> Array:
    """How many borders lie before each value; ``borders`` has the leading dimensions of ``x``."""
    if borders.ndim > 1:
        borders = borders[..., None, :]
    return jnp.sum(borders <= x[..., None] if right else borders < x[..., None], -1)
