"""Sums, means, extremes, and what normalises along a dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from parenvs.graph.pytorch.operations.table import operation

Dims = int | Sequence[int] | None


def _axes(dims: Dims) -> tuple[int, ...] | None:
    if dims is None or dims == []:
        return None
    return (dims,) if isinstance(dims, int) else tuple(dims)


@operation("sum", "sum.dim_IntList")
def _sum(x: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    if dtype is None and not jnp.issubdtype(x.dtype, jnp.inexact):
        dtype = jax.dtypes.canonicalize_dtype(jnp.int64)
    return jnp.sum(x, _axes(dim), dtype=dtype, keepdims=keepdim)


@operation("mean", "mean.dim")
def _mean(x: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return jnp.mean(x, _axes(dim), dtype=dtype, keepdims=keepdim)


@operation("prod", "prod.dim_int")
def _prod(x: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return jnp.prod(x, _axes(dim), dtype=dtype, keepdims=keepdim)


@operation("amax")
def _amax(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return jnp.max(x, _axes(dim), keepdims=keepdim)


@operation("amin")
def _amin(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return jnp.min(x, _axes(dim), keepdims=keepdim)


@operation("max")
def _max(x: Array) -> Array:
    return jnp.max(x)


@operation("min")
def _min(x: Array) -> Array:
    return jnp.min(x)


@operation("max.dim")
def _max_along(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    place = jnp.argmax(x, dim, keepdims=keepdim)
    return jnp.max(x, dim, keepdims=keepdim), place


@operation("min.dim")
def _min_along(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    place = jnp.argmin(x, dim, keepdims=keepdim)
    return jnp.min(x, dim, keepdims=keepdim), place


@operation("argmax")
def _argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return jnp.argmax(x, dim, keepdims=keepdim)


@operation("argmin")
def _argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return jnp.argmin(x, dim, keepdims=keepdim)


@operation("any", "any.dim", "any.dims")
def _any(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return jnp.any(x != 0, _axes(dim), keepdims=keepdim)


@operation("all", "all.dim", "all.dims")
def _all(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return jnp.all(x != 0, _axes(dim), keepdims=keepdim)


def moments(
    x: Array, axes: tuple[int, ...] | None, correction: float = 0, keepdims: bool = True
) -> tuple[Array, Array]:
    """Return the variance and the mean along ``axes``, as PyTorch's ``var_mean``."""
    mean = jnp.mean(x, axes, keepdims=True)
    squares = jnp.square(jnp.abs(x - mean))
    count = x.size // mean.size
    variance = jnp.sum(squares, axes, keepdims=keepdims) / max(count - correction, 0)
    return variance, mean if keepdims else jnp.mean(x, axes)


@operation("var_mean.correction")
def _var_mean(
    x: Array, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    return moments(x, _axes(dim), 1 if correction is None else correction, keepdim)


@operation("var.correction")
def _var(
    x: Array, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> Array:
    return _var_mean(x, dim, correction, keepdim)[0]


@operation("std.correction")
def _std(
    x: Array, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> Array:
    return jnp.sqrt(_var_mean(x, dim, correction, keepdim)[0])


@operation("var.dim", "var")
def _var_unbiased(
    x: Array, dim: Dims = None, unbiased: bool = True, keepdim: bool = False
) -> Array:
    return moments(x, _axes(dim), int(unbiased), keepdim)[0]


@operation("linalg_vector_norm")
def _vector_norm(
    x: Array,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Array:
    x = x if dtype is None else x.astype(dtype)
    axes = _axes(dim)
    if ord == 2:
        total = jnp.sum(jnp.square(jnp.abs(x)), axes, keepdims=keepdim)
        return jnp.where(total > 0, jnp.sqrt(jnp.where(total > 0, total, 1)), 0)
    if ord == 1:
        return jnp.sum(jnp.abs(x), axes, keepdims=keepdim)
    if ord == float("inf"):
        return jnp.max(jnp.abs(x), axes, keepdims=keepdim)
    return jnp.sum(jnp.abs(x) ** ord, axes, keepdims=keepdim) ** (1 / ord)


@operation("cumsum")
def _cumsum(x: Array, dim: int, dtype: Any = None) -> Array:
    if dtype is None and not jnp.issubdtype(x.dtype, jnp.inexact):
        dtype = jax.dtypes.canonicalize_dtype(jnp.int64)
    return jnp.cumsum(x, dim, dtype=dtype) if x.ndim else x


@operation("cumprod")
def _cumprod(x: Array, dim: int, dtype: Any = None) -> Array:
    return jnp.cumprod(x, dim, dtype=dtype)


def _running(x: Array, dim: int, largest: bool) -> tuple[Array, Array]:
    dim %= max(x.ndim, 1)
    made = (lax.cummax if largest else lax.cummin)(lax.stop_gradient(x), dim)
    own = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    places = lax.cummax(jnp.where(x == made, own, 0), dim)
    return jnp.take_along_axis(x, places, axis=dim, mode="clip"), places


@operation("cummax")
def _cummax(x: Array, dim: int) -> tuple[Array, Array]:
    return _running(x, dim, True)


@operation("cummin")
def _cummin(x: Array, dim: int) -> tuple[Array, Array]:
    return _running(x, dim, False)


def _ranked(x: Array, rank: int, dim: int, keepdim: bool) -> tuple[Array, Array]:
    """The element of a rank along a dimension, and its place."""
    own = lax.broadcasted_iota(jnp.int32, x.shape, dim % x.ndim)
    values, places = lax.sort((x, own), dimension=dim % x.ndim, num_keys=1, is_stable=True)
    one = tuple(lax.index_in_dim(y, rank, dim % x.ndim, keepdims=keepdim) for y in (values, places))
    return one[0], one[1]


@operation("kthvalue")
def _kth(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    return _ranked(x, k - 1, dim, keepdim)


@operation("median.dim", "nanmedian.dim")
def _median_along(x: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    return _ranked(x, (x.shape[dim] - 1) // 2, dim, keepdim)


@operation("median", "nanmedian")
def _median(x: Array) -> Array:
    return _ranked(x.ravel(), (x.size - 1) // 2, 0, False)[0]


@operation("logcumsumexp")
def _logcumsumexp(x: Array, dim: int) -> Array:
    return lax.cumlogsumexp(x, dim % x.ndim)


@operation("logsumexp")
def _logsumexp(x: Array, dim: Dims, keepdim: bool = False) -> Array:
    return jax.nn.logsumexp(x, _axes(dim), keepdims=keepdim)


@operation("_softmax", "_safe_softmax")
def _softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    return jax.nn.softmax(x.astype(jnp.float32) if half_to_float else x, dim)


@operation("_log_softmax")
def _log_softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    return jax.nn.log_softmax(x.astype(jnp.float32) if half_to_float else x, dim)


@operation("glu")
def _glu(x: Array, dim: int = -1) -> Array:
    return jax.nn.glu(x, dim)
