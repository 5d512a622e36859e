"""Operations on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDE = 64
"""Values per row from which NumPy adds rows faster than it accumulates columns."""
Array = Any
"""A NumPy array; some functions also take plain numbers, and say so."""


def running_sums(values: np.ndarray) -> np.ndarray:
    """Return the inclusive cumulative sums along the first axis."""
    if values.size < WIDE * len(values):
        return values.cumsum(axis=0)
    sums = np.empty_like(values)
    sums[:1] = values[:1]
    for index in range(1, len(values)):
        np.add(sums[index - 1], values[index], out=sums[index])
    return sums
