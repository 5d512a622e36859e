"""Views, permutations, slices, joins, and tensors made of nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from parenvs.graph.pytorch.operations import operation, register

Dims = Sequence[int]
Bound = int | None


@operation("expand")
def _expand(x: Array, size: Dims, implicit: bool = False) -> Array:
    added = len(size) - x.ndim
    padded = (*size[:added], *x.shape)
    shape = [old if new == -1 else new for old, new in zip(padded, size, strict=True)]
    return jnp.broadcast_to(x, shape)


@operation("squeeze.dims")
def _squeeze(x: Array, dims: Dims) -> Array:
    return jnp.squeeze(x, tuple(d for d in dims if x.ndim and x.shape[d] == 1))


@operation("cat")
def _cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    nonempty = [x for x in tensors if x.shape != (0,)] or list(tensors)
    dtype = jnp.result_type(*tensors)
    return jnp.concatenate([x.astype(dtype) for x in nonempty], dim)


def _bounds(x: Array, dim: int, start: Bound, end: Bound) -> tuple[int, int]:
    low, high, _ = slice(start, end).indices(x.shape[dim])
    return low, max(low, high)


@operation("slice.Tensor")
def _slice(x: Array, dim: int = 0, start: Bound = None, end: Bound = None, step: int = 1) -> Array:
    low, high = _bounds(x, dim, start, end)
    if (low, high, step) == (0, x.shape[dim], 1):
        return x
    return lax.slice_in_dim(x, low, high, step, dim)


@operation("select.int")
def _select(x: Array, dim: int, index: int) -> Array:
    return lax.index_in_dim(x, index % x.shape[dim], dim, keepdims=False)


@operation("split_with_sizes")
def _split_with_sizes(x: Array, sizes: Dims, dim: int = 0) -> tuple[Array, ...]:
    ends = np.cumsum(sizes).tolist()
    return tuple(
        lax.slice_in_dim(x, end - size, end, axis=dim)
        for end, size in zip(ends, sizes, strict=True)
    )


@operation("slice_scatter")
def _slice_scatter(
    x: Array, source: Array, dim: int = 0, start: Bound = None, end: Bound = None, step: int = 1
) -> Array:
    low, high = _bounds(x, dim, start, end)
    if (low, high, step) == (0, x.shape[dim], 1):
        return jnp.broadcast_to(source, x.shape).astype(x.dtype)
    region: list[Any] = [slice(None)] * x.ndim
    region[dim] = slice(low, high, step)
    if step != 1:
        return x.at[tuple(region)].set(source.astype(x.dtype))
    shape = list(x.shape)
    shape[dim] = high - low
    before = lax.slice_in_dim(x, 0, low, axis=dim)
    after = lax.slice_in_dim(x, high, x.shape[dim], axis=dim)
    inner = jnp.broadcast_to(source.astype(x.dtype), shape)
    return jnp.concatenate([before, inner, after], dim)


@operation("constant_pad_nd")
def _constant_pad(x: Array, pad: Dims, value: float = 0) -> Array:
    # PyTorch lists the last dimension first.
    widths = [(0, 0, 0)] * (x.ndim - len(pad) // 2)
    widths += [(pad[k], pad[k + 1], 0) for k in range(len(pad) - 2, -1, -2)]
    return lax.pad(x, jnp.asarray(value, x.dtype), widths)


@operation("as_strided")
def _as_strided(x: Array, size: Dims, stride: Dims, storage_offset: int | None = None) -> Array:
    """Take elements by their distance in memory, of a tensor that is stored row by row."""
    if not storage_offset and math.prod(size) == x.size:
        rows = [math.prod(size[k + 1 :]) for k in range(len(size))]
        if all(n == 1 or s == row for n, s, row in zip(size, stride, rows, strict=True)):
            return jnp.reshape(x, tuple(size))
    indices = np.full((1,) * len(size), storage_offset or 0)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = count
        indices = indices + (np.arange(count) * step).reshape(shape)
    return jnp.take(x.ravel(), indices)


@operation("unfold")
def _unfold(x: Array, dim: int, size: int, step: int) -> Array:
    """Put the windows of a dimension in its place, and what is in them last."""
    if not x.ndim:
        return jnp.broadcast_to(x, (size,))
    dim %= x.ndim
    count = (x.shape[dim] - size) // step + 1
    if size <= step:  # windows that do not overlap are a split of the dimension
        x = lax.slice_in_dim(x, 0, min(count * step, x.shape[dim]), axis=dim)
        padding = [(0, 0, 0)] * x.ndim
        padding[dim] = (0, count * step - x.shape[dim], 0)
        x = lax.pad(x, jnp.zeros((), x.dtype), padding)
        split = x.reshape(*x.shape[:dim], count, step, *x.shape[dim + 1 :])
        return jnp.moveaxis(lax.slice_in_dim(split, 0, size, axis=dim + 1), dim + 1, -1)
    indices = np.arange(count)[:, None] * step + np.arange(size)
    return jnp.moveaxis(jnp.take(x, indices, axis=dim, mode="clip"), dim + 1, -1)


# Tensors without operands: their types are those that PyTorch gives them.


@operation("arange.start_step")
def _arange(start: float, end: float, step: float = 1, dtype: Any = None) -> Array:
    count = max(math.ceil((end - start) / step), 0)
    steps = lax.iota(dtype or jnp.int32, count)
    return steps if (start, step) == (0, 1) else start + steps * step


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
    retained = jnp.ones(ids.shape, jnp.bool_) if padding_idx < 0 else ids != padding_idx
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    bags = offsets.shape[0] - int(include_last_offset)
    low = -jnp.inf if mode == 2 else 0
    if padding_idx >= 0:
        rows = jnp.where(retained[:, None], rows, jnp.asarray(low, rows.dtype))
    if bag_size is not None:
        rows, retained = rows.reshape(bags, bag_size, -1), retained.reshape(bags, bag_size)
        result, counts = (jnp.max if mode == 2 else jnp.sum)(rows, 1), jnp.sum(retained, 1)
    else:
        bag = jnp.sum(offsets[:bags] <= lax.iota(offsets.dtype, ids.shape[0])[:, None], -1) - 1
        start = jnp.full((bags, rows.shape[1]), low, rows.dtype)
        result = start.at[bag].max(rows) if mode == 2 else start.at[bag].add(rows)
        counts = jnp.zeros((bags,), jnp.int32).at[bag].add(retained.astype(jnp.int32))
    if mode == 1:
        result = result / jnp.maximum(counts, 1).astype(result.dtype)[:, None]
    if mode == 2:
        result = jnp.where(counts[:, None] > 0, result, 0)
    return result, None, None, None


def _wrapped(index: Array, size: int) -> Array:
    if index.dtype == jnp.bool_:
        raise NotImplementedError("a mask as an index: its number of elements depends on values")
    return jnp.where(index < 0, index + size, index)


@operation("index.Tensor")
def _index(x: Array, indices: Sequence[Array | None]) -> Array:
    indexed = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    # One index is a plain look-up, which keeps the other dimensions splittable.
    if len(indexed) == 1:
        [(axis, index)] = indexed
        return jnp.take(x, _wrapped(index, x.shape[axis]), axis=axis, mode="clip")
    return x.at[_wrapped_all(x, indices)].get(mode="clip")


def _wrapped_all(x: Array, indices: Sequence[Array | None]) -> tuple[Any, ...]:
    return tuple(
        slice(None) if index is None else _wrapped(index, x.shape[axis])
        for axis, index in enumerate(indices)
    )


@operation("index_put")
def _index_put(
    x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False
) -> Array:
    values = values.astype(x.dtype)
    arrays = [index for index in indices if index is not None]
    if len(arrays) == 1 and arrays[0].dtype == jnp.bool_:
        if accumulate or values.size != 1:
            raise NotImplementedError("values at a mask: their number depends on values")
        axis = next(k for k, index in enumerate(indices) if index is not None)
        mask = arrays[0].reshape(arrays[0].shape + (1,) * (x.ndim - axis - arrays[0].ndim))
        return jnp.where(mask, values.reshape(()), x)
    region = x.at[_wrapped_all(x, indices)]
    return region.add(values) if accumulate else region.set(values)


@operation("gather")
def _gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    if not x.ndim:
        return jnp.broadcast_to(x, index.shape)
    dim %= x.ndim
    for axis, size in enumerate(index.shape):
        if axis != dim and size < x.shape[axis]:
            x = lax.slice_in_dim(x, 0, size, axis=axis)
    return jnp.take_along_axis(x, index, axis=dim, mode="clip")


def _grid(dim: int, index: Array) -> tuple[Array, ...]:
    grids = [lax.broadcasted_iota(index.dtype, index.shape, axis) for axis in range(index.ndim)]
    grids[dim % index.ndim] = index
    return tuple(grids)


def _values(source: Any, index: Array, x: Array) -> Array:
    """What is written at ``index``: the beginning of ``source``, or one number."""
    source = jnp.asarray(source, x.dtype)
    if source.ndim:
        source = source[tuple(slice(0, size) for size in index.shape)]
    return jnp.broadcast_to(source, index.shape)


@operation("scatter_reduce.two")
def _scatter_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True
) -> Array:
    where, source = _grid(dim, index), _values(source, index, x)
    if reduce == "mean":
        counts = jnp.zeros(x.shape, x.dtype).at[where].add(1)
        total = (x if include_self else x.at[where].set(0)).at[where].add(source)
        return total / jnp.maximum(counts + int(include_self), 1)
    neutral = {"sum": 0, "prod": 1, "amax": -jnp.inf, "amin": jnp.inf}[reduce]
    if not include_self:
        if not jnp.issubdtype(x.dtype, jnp.inexact) and reduce in ("amax", "amin"):
            bounds = jnp.iinfo(x.dtype)
            neutral = bounds.min if reduce == "amax" else bounds.max
        # Elements that are written start from the neutral element of the reduction.
        x = x.at[where].set(neutral)
    method = {"sum": "add", "prod": "multiply", "amax": "max", "amin": "min"}[reduce]
    return getattr(x.at[where], method)(source)


@operation("topk")
def _topk(
    x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    moved = jnp.moveaxis(x, dim, -1)
    values, indices = lax.top_k(moved if largest else -moved, k)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(indices, -1, dim)


@operation("sort", "sort.stable")
def sort(
    x: Array, dim: int | bool | None = -1, descending: bool = False, stable: bool | None = None
) -> tuple[Array, Array]:
    """Sort along a dimension, stably; indices are carried along."""
    axis = int(dim or 0) % x.ndim
    indices = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    if not descending:
        values, order = lax.sort((x, indices), dimension=axis, num_keys=1, is_stable=True)
        return values, order
    # ~x reverses the order of whole numbers without overflow; sorting stays stable.
    negated = -x if jnp.issubdtype(x.dtype, jnp.inexact) else ~x
    _, values, order = lax.sort((negated, x, indices), dimension=axis, num_keys=1, is_stable=True)
    return values, order


register(
    {
        "view _reshape_copy view_copy": lambda x, size: jnp.reshape(x, tuple(size)),
        "view.dtype": lax.bitcast_convert_type,
        "permute": lambda x, dims: jnp.transpose(x, [d % max(x.ndim, 1) for d in dims]),
        "unsqueeze": jnp.expand_dims,
        "flip": lambda x, dims: jnp.flip(x, tuple(dims)),
        "repeat": lambda x, repeats: jnp.tile(x, tuple(repeats)),
        "tril_indices": lambda rows, columns, offset=0, dtype=None: jnp.stack(
            jnp.tril_indices(rows, offset, columns)
        ).astype(dtype or jnp.int32),
        "triu_indices": lambda rows, columns, offset=0, dtype=None: jnp.stack(
            jnp.triu_indices(rows, offset, columns)
        ).astype(dtype or jnp.int32),
        "diagonal": lambda x, offset=0, dim1=0, dim2=1: jnp.diagonal(x, offset, dim1, dim2),
        "full": lambda size, value, dtype=None: jnp.full(tuple(size), value, dtype),
        "full_like": lambda x, value, dtype=None: jnp.full(x.shape, value, dtype or x.dtype),
        "empty.memory_format empty_permuted": lambda size, order=(), dtype=None: jnp.zeros(
            tuple(size), dtype
        ),
        "new_empty_strided": lambda x, size, stride=(), dtype=None: jnp.zeros(
            tuple(size), dtype or x.dtype
        ),
        "scalar_tensor": lambda value, dtype=None: jnp.asarray(value, dtype),
        "index_select": lambda x, dim, index: jnp.take(x, index, axis=dim, mode="clip"),
        "scatter.src scatter.value": lambda x, dim, index, source: x.at[_grid(dim, index)].set(
            _values(source, index, x)
        ),
        "scatter_add": lambda x, dim, index, source: x.at[_grid(dim, index)].add(
            _values(source, index, x)
        ),
    }
)
