"""Convolutions, pooling and resizing of images; channels stand before the positions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from parenvs.graph.pytorch.operations import operation

Sizes = Sequence[int]


def _expanded(sizes: Sizes, count: int) -> list[int]:
    """A size for each dimension: one may stand for all."""
    return list(sizes) * count if len(sizes) == 1 else list(sizes)


@operation("convolution", "_convolution")
def _convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    *_: Any,
) -> Array:
    count = weight.ndim - 2
    unbatched = x.ndim == count + 1  # one image, without a batch
    x = x[None] if unbatched else x
    stride, padding, dilation, output_padding = (
        _expanded(sizes, count) for sizes in (stride, padding, dilation, output_padding)
    )
    spatial = "DHW"[3 - count :]
    layout = (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    input_dilation: Sizes | None = None
    if transposed:
        inputs, outputs, *kernel = weight.shape
        # The transpose of a convolution: a flipped kernel, inputs and outputs exchanged per group,
        # over an input dilated by the stride.
        weight = weight.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
        weight = weight.reshape(groups * outputs, inputs // groups, *kernel)
        weight = jnp.flip(weight, range(2, 2 + count))
        extent = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(r - p, r - p + o) for r, p, o in zip(extent, padding, output_padding, strict=True)]
        stride, input_dilation = [1] * count, stride
    else:
        pads = [(p, p) for p in padding]
    result = lax.conv_general_dilated(
        x, weight, stride, pads, input_dilation, dilation, layout, feature_group_count=groups
    )
    if bias is not None:
        result = result + bias.reshape(-1, *[1] * count)
    return result[0] if unbatched else result


def _windows(x: Array, kernel: Sizes, stride: Sizes, padding: Sizes, ceil_mode: bool) -> Any:
    """Sizes, strides and padding of the windows over all dimensions."""
    count = len(kernel)
    stride = list(stride) or list(kernel)
    stride, padding = _expanded(stride, count), _expanded(padding, count)
    lead = x.ndim - count
    pads = []
    for size, k, s, p in zip(x.shape[lead:], kernel, stride, padding, strict=True):
        extra = 0
        if ceil_mode:
            windows = -(-(size + 2 * p - k) // s) + 1
            windows -= (windows - 1) * s >= size + p  # a window has to begin inside
            extra = max((windows - 1) * s + k - size - 2 * p, 0)
        pads.append((p, p + extra))
    return (1,) * lead + tuple(kernel), (1,) * lead + tuple(stride), [(0, 0)] * lead + pads


@operation("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    x: Array,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Callable[[], Array]]:
    """Take the maximum of each window, and a function that returns its index in the image."""
    count, lead = len(kernel), x.ndim - len(kernel)
    gaps = _expanded(dilation, count)
    extents = [d * (k - 1) + 1 for d, k in zip(gaps, kernel, strict=True)]
    _, strides, pads = _windows(x, extents, list(stride) or list(kernel), padding, ceil_mode)
    floating = jnp.issubdtype(x.dtype, jnp.inexact)
    # Padding must never be the maximum.
    low = np.asarray(-jnp.inf if floating else jnp.iinfo(x.dtype).min, x.dtype)
    offsets = [[o * d for o, d in zip(offset, gaps, strict=True)] for offset in np.ndindex(*kernel)]

    def windows(padded: Array, first: int) -> Array:
        """What lies at each offset of each window, the offsets last."""
        front, steps = padded.shape[:first], [1] * first + list(strides[lead:])
        rooms = [size - r + 1 for size, r in zip(padded.shape[first:], extents, strict=True)]
        ends = [[*front, *map(operator.add, offset, rooms)] for offset in offsets]
        starts = [[0] * first + offset for offset in offsets]
        pairs = zip(starts, ends, strict=True)
        return jnp.stack([lax.slice(padded, start, end, steps) for start, end in pairs], -1)

    def indices() -> Array:
        padded = lax.pad(lax.stop_gradient(x), low, [(a, b, 0) for a, b in pads])
        best = jnp.argmax(windows(padded, lead), -1)
        local = np.arange(math.prod(x.shape[lead:])).reshape(x.shape[lead:])
        choices = windows(jnp.asarray(np.pad(local, pads[lead:])), 0)
        choices = jnp.broadcast_to(choices, (*best.shape, len(offsets)))
        return jnp.take_along_axis(choices, best[..., None], -1)[..., 0]

    if any(d != 1 for d in gaps):  # JAX has no gradient of dilated windows
        padded = lax.pad(x, low, [(a, b, 0) for a, b in pads])
        return jnp.max(windows(padded, lead), -1), indices
    return lax.reduce_window(x, low, lax.max, (1,) * lead + (*kernel,), strides, pads), indices


@operation("avg_pool2d", "avg_pool3d")
def _avg_pool(
    x: Array,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    sizes, strides, pads = _windows(x, kernel, stride, padding, ceil_mode)
    zero = np.zeros((), x.dtype)
    total = lax.reduce_window(x, zero, lax.add, sizes, strides, pads)
    if divisor_override:
        return total / divisor_override
    padded = any(pad != (0, 0) for pad in pads)
    if not padded or (count_include_pad and not ceil_mode):
        return total / math.prod(sizes)
    lead = x.ndim - len(kernel)
    own = [(p, p) for p in _expanded(padding, len(kernel))]
    # PyTorch counts its own padding, but not what ceil_mode adds behind it.
    ones = np.pad(np.ones(x.shape[lead:]), own, constant_values=float(count_include_pad))
    pads = [(0, end - added) for (_, end), (_, added) in zip(pads[lead:], own, strict=True)]
    image = jnp.asarray(ones, x.dtype)
    return total / lax.reduce_window(image, zero, lax.add, sizes[lead:], strides[lead:], pads)


def _bins(size: int, count: int) -> list[tuple[int, int]]:
    """Start and end of each bin of adaptive pooling; they overlap where they do not fit."""
    return [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]


@operation("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive_avg_pool(x: Array, output: Sizes) -> Array:
    lead = x.ndim - len(output)
    for axis, count in enumerate(output, lead):
        size = x.shape[axis]
        if size % count == 0:
            split = (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
            x = x.reshape(split).mean(axis + 1)
        else:
            shares = np.zeros((count, size))
            for row, (start, end) in zip(shares, _bins(size, count), strict=True):
                row[start:end] = 1 / (end - start)
            x = jnp.moveaxis(jnp.tensordot(x, jnp.asarray(shares, x.dtype), (axis, 1)), -1, axis)
    return x


@operation("adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(x: Array, output: Sizes) -> tuple[Array, None]:
    lead = x.ndim - len(output)
    for axis, count in enumerate(output, lead):
        bins = _bins(x.shape[axis], count)
        parts = [lax.slice_in_dim(x, start, end, axis=axis) for start, end in bins]
        x = jnp.concatenate([part.max(axis, keepdims=True) for part in parts], axis)
    return x, None


def _resized(
    shape: Sizes, output: Sizes | None, factors: Sequence[float] | None
) -> list[tuple[int, int, float]]:
    """Axis, new size and step between samples of each dimension that is resized."""
    first = len(shape) - len(output or factors or ())
    old = list(enumerate(shape))[first:]
    if output:
        return [(axis, size, n / size) for (axis, n), size in zip(old, output, strict=True)]
    pairs = zip(old, factors or (), strict=True)
    return [(axis, math.floor(n * factor), 1 / factor) for (axis, n), factor in pairs]


@operation("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def _nearest(x: Array, output: Sizes | None, factors: Sequence[float] | None) -> Array:
    for axis, size, step in _resized(x.shape, output, factors):
        last = x.shape[axis] - 1
        if size % x.shape[axis] == 0:  # a repetition leaves the dimension splittable
            x = jnp.repeat(x, size // x.shape[axis], axis)
        else:
            indices = np.minimum(np.floor(np.arange(size) * step), last).astype(np.int32)
            x = jnp.take(x, indices, axis=axis, mode="clip")
    return x


@operation("upsample_linear1d.vec", "upsample_bilinear2d.vec")
def _linear(
    x: Array, output: Sizes | None, align_corners: bool, factors: Sequence[float] | None
) -> Array:
    for axis, size, step in _resized(x.shape, output, factors):
        last = x.shape[axis] - 1
        if align_corners:
            samples = np.arange(size) * (last / (size - 1) if size > 1 else 0.0)
        else:  # samples are centers of pixels
            samples = np.maximum((np.arange(size) + 0.5) * step - 0.5, 0)
        low = np.minimum(np.floor(samples), last).astype(np.int32)
        high = np.minimum(low + 1, last)
        share = jnp.asarray((samples - low).reshape(-1, *[1] * (x.ndim - axis - 1)), x.dtype)
        below, above = (jnp.take(x, index, axis=axis, mode="clip") for index in (low, high))
        x = below * (1 - share) + above * share
    return x


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
    return _count_below(borders, x, right or side == "right")


def _count_below(borders: Array, x: Array, right: bool) -> Array:
    if borders.ndim > 1:
        borders = borders[..., None, :]
    return jnp.sum(borders <= x[..., None] if right else borders < x[..., None], -1)


@operation("bucketize.Tensor")
def _bucketize(x: Array, borders: Array, out_int32: bool = False, right: bool = False) -> Array:
    return _count_below(borders, x, right)
