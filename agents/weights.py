"""Weights of networks as named arrays, from files and from hands that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.errors import ParenvsError, one_line, shown
from parenvs.graph.checks import UNREADABLE, read_arrays


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a ``.npz`` file; nothing in it is unpickled.

    Raises:
        ParenvsError: the file cannot be read.
    """
    try:
        return read_arrays(path)
    except UNREADABLE as error:
        raise ParenvsError(f"{path}: no file of weights ({one_line(error)})") from None


def check_named(weights: Mapping[str, Any], names: Iterable[str], where: object) -> None:
    """Raise ``ParenvsError`` unless weights have these names, and no others."""
    if sorted(weights) != sorted(names):
        raise ParenvsError(
            f"{where}: weights must be named {', '.join(names)}; not {shown([*weights])}"
        )


def single(
    weights: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: object
) -> dict[str, np.ndarray]:
    """Return weights in float32.

    Args:
        weights: name -> array.
        shapes: name -> shape of it.
        where: the weights come from, for errors.

    Raises:
        ParenvsError: an array is of another shape, has no floats, or numbers that are not finite.
    """
    result = {}
    for name, shape in shapes.items():
        array = np.asarray(weights[name])
        is_float = array.dtype.kind == "f"
        with np.errstate(over="ignore"):
            kept = array.astype(np.float32) if is_float else array
        if array.shape != shape or not is_float or not np.isfinite(kept).all():
            raise ParenvsError(
                f"{where}: {name!r} must be finite numbers of the shape {shape}, not "
                f"{array.dtype} {array.shape}"
            )
        result[name] = kept
    return result
