"""Look-ups and what writes at places that tensors tell: embeddings, gathers, scatters, sorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from parenvs.graph.pytorch.operations.table import operation


@operation("embedding")
def _embedding(
    table: Array, ids: Array, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Array:
    rows = jnp.take(table, ids, axis=0, mode="clip")
    if padding_idx < 0:
        return rows
    return jnp.where((ids == padding_idx)[..., None], lax.stop_gradient(rows), rows)


@operation("_embedding_bag")
def _embedding_bag(
    table: Array,
    ids: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    bag_size: int | None = None,
) -> tuple[Array, None, None, None]:
    """Sum (mode 0), average (1) or take the maximum (2) of the rows of each bag.

    Bags of ``bag_size`` places each are a dimension of their own, so that they can be split.
    """
    if scale_grad_by_freq:
        raise NotImplementedError("gradients scaled by how often a row is looked up")
    rows = jnp.take(table, ids, axis=0, mode="clip")
    kept = jnp.ones(ids.shape, jnp.bool_) if padding_idx < 0 else ids != padding_idx
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    bags = offsets.shape[0] - int(include_last_offset)
    low = -jnp.inf if mode == 2 else 0
    if padding_idx >= 0:
        rows = jnp.where(kept[:, None], rows, jnp.asarray(low, rows.dtype))
    if bag_size is not None:
        rows, kept = rows.reshape(bags, bag_size, -1), kept.reshape(bags, bag_size)
        made, counts = (jnp.max if mode == 2 else jnp.sum)(rows, 1), jnp.sum(kept, 1)
    else:
        at = jnp.sum(offsets[:bags] <= lax.iota(offsets.dtype, ids.shape[0])[:, None], -1) - 1
        start = jnp.full((bags, rows.shape[1]), low, rows.dtype)
        made = start.at[at].max(rows) if mode == 2 else start.at[at].add(rows)
        counts = jnp.zeros((bags,), jnp.int32).at[at].add(kept.astype(jnp.int32))
    if mode == 1:
        made = made / jnp.maximum(counts, 1).astype(made.dtype)[:, None]
    if mode == 2:
        made = jnp.where(counts[:, None] > 0, made, 0)
    return made, None, None, None


@operation("index_select")
def _index_select(x: Array, dim: int, index: Array) -> Array:
    return jnp.take(x, index, axis=dim, mode="clip")


def _wrapped(index: Array, size: int) -> Array:
    """Indices counted from the start; those that the program computes itself stay as they are."""
    if index.dtype == jnp.bool_:
        raise NotImplementedError("a mask as an index: its number of elements depends on values")
    return jnp.where(index < 0, index + size, index)


@operation("index.Tensor", "_unsafe_index.Tensor")
def _index(x: Array, indices: Sequence[Array | None]) -> Array:
    given = [k for k, index in enumerate(indices) if index is not None]
    if len(given) == 1:
        (axis,) = given
        (index,) = (index for index in indices if index is not None)
        return jnp.take(x, _wrapped(index, x.shape[axis]), axis=axis, mode="clip")
    return x.at[_places(x, indices)].get(mode="clip")


def _places(x: Array, indices: Sequence[Array | None]) -> tuple[Any, ...]:
    return tuple(
        slice(None) if index is None else _wrapped(index, x.shape[axis])
        for axis, index in enumerate(indices)
    )


@operation("index_put", "_unsafe_index_put")
def _index_put(
    x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False
) -> Array:
    values = values.astype(x.dtype)
    given = [index for index in indices if index is not None]
    if len(given) == 1 and given[0].dtype == jnp.bool_:
        if accumulate or values.size != 1:
            raise NotImplementedError("values at a mask: their number depends on values")
        before = next(k for k, index in enumerate(indices) if index is not None)
        mask = given[0].reshape(given[0].shape + (1,) * (x.ndim - before - given[0].ndim))
        return jnp.where(mask, values.reshape(()), x)
    place = x.at[_places(x, indices)]
    return place.add(values) if accumulate else place.set(values)


@operation("gather")
def _gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    if not x.ndim:
        return jnp.broadcast_to(x, index.shape)
    dim %= x.ndim
    for axis, size in enumerate(index.shape):
        if axis != dim and size < x.shape[axis]:
            x = lax.slice_in_dim(x, 0, size, axis=axis)
    return jnp.take_along_axis(x, index, axis=dim, mode="clip")


def _along(x: Array, dim: int, index: Array) -> tuple[Array, ...]:
    """Places of ``index`` along ``dim``, and of itself along the others."""
    own = [lax.broadcasted_iota(index.dtype, index.shape, axis) for axis in range(index.ndim)]
    own[dim % index.ndim] = index
    return tuple(own)


def _source(source: Any, index: Array, x: Array) -> Array:
    """What is written at the places of ``index``: the beginning of ``source``, or one number."""
    source = jnp.asarray(source, x.dtype)
    if source.ndim:
        source = source[tuple(slice(0, size) for size in index.shape)]
    return jnp.broadcast_to(source, index.shape)


@operation("scatter.src", "scatter.value")
def _scatter(x: Array, dim: int, index: Array, source: Any) -> Array:
    return x.at[_along(x, dim, index)].set(_source(source, index, x))


@operation("scatter_add")
def _scatter_add(x: Array, dim: int, index: Array, source: Array) -> Array:
    return x.at[_along(x, dim, index)].add(_source(source, index, x))


@operation("scatter_reduce.two")
def _scatter_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True
) -> Array:
    places, source = _along(x, dim, index), _source(source, index, x)
    if reduce == "mean":
        ones = jnp.zeros(x.shape, x.dtype).at[places].add(1)
        total = (x if include_self else x.at[places].set(0)).at[places].add(source)
        return total / jnp.maximum(ones + int(include_self), 1)
    start = {"sum": 0, "prod": 1, "amax": -jnp.inf, "amin": jnp.inf}[reduce]
    if not include_self:
        if not jnp.issubdtype(x.dtype, jnp.inexact) and reduce in ("amax", "amin"):
            bounds = jnp.iinfo(x.dtype)
            start = bounds.min if reduce == "amax" else bounds.max
        x = x.at[places].set(start)
    place = x.at[places]
    method = {"sum": "add", "prod": "multiply", "amax": "max", "amin": "min"}[reduce]
    return getattr(place, method)(source)


@operation("index_add")
def _index_add(x: Array, dim: int, index: Array, source: Array, alpha: float = 1) -> Array:
    places = (slice(None),) * (dim % x.ndim) + (index,)
    return x.at[places].add((source if alpha == 1 else alpha * source).astype(x.dtype))


@operation("index_copy")
def _index_copy(x: Array, dim: int, index: Array, source: Array) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(source.astype(x.dtype))


@operation("index_fill.int_Scalar")
def _index_fill(x: Array, dim: int, index: Array, value: float) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(jnp.asarray(value, x.dtype))


@operation("topk")
def _topk(
    x: Array,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Array, Array]:
    moved = jnp.moveaxis(x, dim, -1)
    values, places = lax.top_k(moved if largest else -moved, k)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim)


@operation("sort", "sort.stable")
def _sort(
    x: Array, dim: int | bool | None = -1, descending: bool = False, stable: bool | None = None
) -> tuple[Array, Array]:
    axis = int(dim or 0) % x.ndim
    places = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    if not descending:
        values, order = lax.sort((x, places), dimension=axis, num_keys=1, is_stable=True)
        return values, order
    turned = -x if jnp.issubdtype(x.dtype, jnp.inexact) else ~x
    _, values, order = lax.sort((turned, x, places), dimension=axis, num_keys=1, is_stable=True)
    return values, order


@operation("argsort", "argsort.stable")
def _argsort(x: Array, dim: int = -1, descending: bool = False, stable: bool = True) -> Array:
    return _sort(x, dim, descending)[1]


@operation("histc")
def _histc(x: Array, bins: int = 100, min: float = 0, max: float = 0) -> Array:
    if min == max:
        raise NotImplementedError("bins without bounds, which depend on values")
    places = jnp.floor((x - min) * (bins / (max - min))).astype(jnp.int32)
    places = jnp.where(x == max, bins - 1, places)
    inside = (x >= min) & (x <= max)
    same = (places[..., None] == lax.iota(jnp.int32, bins)) & inside[..., None]
    return jnp.sum(same.reshape(-1, bins), 0).astype(x.dtype)
