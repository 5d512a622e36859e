"""What NumPy arrays and torch tensors do under different names."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
"""A NumPy array or a torch tensor; where a function says so, a plain number too."""


def namespace(values: Array) -> Any:
    """The module with the functions for ``values``: NumPy, or the array API of a tensor's library.

    Plain numbers are NumPy's. This is a fast path in front of ``array_api_compat``.
    """
    if isinstance(values, (np.ndarray, np.generic, float, int)):
        return np
    from array_api_compat import array_namespace

    return array_namespace(values)


def empty(values: Array, shape: tuple[int, ...]) -> Array:
    """An array of that shape, not filled, of the type and on the device of ``values``."""
    if isinstance(values, np.ndarray):
        return np.empty(shape, values.dtype)
    return values.new_empty(shape)


def largest(values: Array) -> Array:
    """The largest value along the first axis."""
    if isinstance(values, np.ndarray):
        return np.maximum.reduce(values)  # half the overhead of ``max``, which counts on few values
    return values.amax(dim=0)


def running_max(values: Array) -> Array:
    """The largest value so far along the last axis."""
    if isinstance(values, np.ndarray):
        return np.maximum.accumulate(values, axis=-1)
    return values.cummax(dim=-1).values


def counting(values: Array, count: int) -> Array:
    """(count,) int64, 0, 1, 2, ..., where ``values`` are."""
    if isinstance(values, np.ndarray):
        return np.arange(count)
    return namespace(values).arange(count, device=values.device)


def as_index(values: Array) -> Array:
    """Whole numbers of any size as int64."""
    return values.astype(np.int64) if isinstance(values, np.ndarray) else values.long()


def entries(values: Array, rows: Array, columns: Array) -> Array:
    """(k, j) ``values[rows[i], columns[i, j]]`` of a contiguous matrix."""
    if isinstance(values, np.ndarray):
        return values.take(columns + (rows * values.shape[1])[:, None])
    return values[rows].gather(1, columns)


def masked(mask: Array, values: Array) -> Array:
    """``values`` where ``mask`` is true, else 0."""
    if isinstance(values, np.ndarray):
        return values * mask  # the fastest way, for finite values
    return values.where(mask, 0.0)


def at_least(values: Array, least: float) -> Array:
    """The greater of each value and ``least``."""
    if isinstance(values, (np.ndarray, np.generic)):
        return np.maximum(values, least)
    return values.clamp(min=least)
