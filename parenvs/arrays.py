"""Operations that NumPy arrays and torch tensors have under different names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

WIDE = 64
"""Values side by side from which on NumPy adds rows faster than it accumulates columns."""
Array = Any
"""A NumPy array or a torch tensor; some functions also take plain numbers, and say so."""


def namespace(values: Array) -> Any:
    """Return the module of functions for ``values``: NumPy, or the array API of a tensor's library.

    For plain numbers it is NumPy. For NumPy's values this is faster than ``array_api_compat``.
    """
    if isinstance(values, (np.ndarray, np.generic, float, int)):
        return np
    from array_api_compat import array_namespace

    return array_namespace(values)


def empty(values: Array, shape: tuple[int, ...]) -> Array:
    """Return an uninitialised array of the type and on the device of ``values``."""
    if isinstance(values, np.ndarray):
        return np.empty(shape, values.dtype)
    return values.new_empty(shape)


def largest(values: Array) -> Array:
    """The largest value along the first axis."""
    if isinstance(values, np.ndarray):
        return np.maximum.reduce(values)  # half the overhead of ``max``, which counts on few values
    return values.amax(dim=0)


def positive(values: Array) -> Array:
    """Return ``values`` where they are positive, else 0."""
    return np.maximum(values, 0) if isinstance(values, np.ndarray) else values.relu()


def joined(values: Sequence[Array]) -> Array:
    """Return matrices side by side, (k, i) and (k, j) as (k, i + j)."""
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values, axis=1)
    return namespace(values[0]).concat(values, axis=1)


def running_sums(values: Array) -> Array:
    """Return the sums along the first axis, each of the values up to its place, itself included."""
    if not isinstance(values, np.ndarray) or values.size < WIDE * len(values):
        return values.cumsum(axis=0)
    sums = np.empty_like(values)
    sums[:1] = values[:1]
    for index in range(1, len(values)):
        np.add(sums[index - 1], values[index], out=sums[index])
    return sums


def at_least(values: Array, minimum: float) -> Array:
    """Return the larger of each value and ``minimum``."""
    if isinstance(values, (np.ndarray, np.generic)):
        return np.maximum(values, minimum)
    return values.clamp(min=minimum)
