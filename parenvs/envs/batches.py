"""What the native vector environments share besides their base: guests, and work on indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

EVERY = slice(None)
"""Index of all environments; the parameter ``who`` of methods is this or indices, (k,) int64."""
NOBODY = np.empty(0, dtype=np.int64)
"""Index of no environment."""


@dataclass
class Guest:
    """An episode of another problem, which a single environment plays for one of the batch.

    Attributes:
        env: the single environment.
        observation, info: of its last reset or step.
        over: whether the episode has ended.
    """

    env: Any
    observation: dict[str, Any]
    info: dict[str, Any]
    over: bool = False


def reset_mask_of(options: dict[str, Any], count: int) -> np.ndarray | None:
    """Take ``"reset_mask"`` out of the options of a reset.

    Args:
        options: options of a reset; the mask is removed.
        count: n, the number of environments.

    Returns:
        (n,) bool, or None if there is no mask: then all environments are reset.

    Raises:
        TypeError: the mask is no array of bool.
        ValueError: the mask has another shape, or no true element.
    """
    if "reset_mask" not in options:
        return None
    mask = options.pop("reset_mask")
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"'reset_mask' must be a NumPy array of bool, not {type(mask).__name__}")
    if mask.shape != (count,) or not mask.any():
        raise ValueError(f"'reset_mask' must have the shape ({count},), and a true element")
    return mask


def keep_blocks(size: int) -> None:
    """Make malloc keep blocks of about ``size`` bytes.

    Malloc keeps blocks of a size once one of that size was freed. Otherwise every array of
    observations costs page faults, which take longer than filling the array. The block that this
    function allocates and frees is never written.
    """
    np.empty(min(max(size, 1 << 21), 30 << 20), dtype=np.uint8)


def without(indices: np.ndarray, who: Any, count: int) -> np.ndarray:
    """Return the environments in ``indices`` that are not in ``who``.

    Args:
        indices: (k,) int64, indices of environments.
        who: ``EVERY``, or (j,) int64, indices of environments.
        count: n, the number of environments.
    """
    if who is EVERY or who is indices or not indices.size:
        return NOBODY
    removed = np.zeros(count, dtype=np.bool_)
    removed[who] = True
    return indices[~removed[indices]]
