"""Minima over ranges of an array, for dynamic programmes over the pivots of a chain."""

from __future__ import annotations

import numpy as np


class RangeMinimum:
    """Where the least of ``values[first:end]`` is, for many ranges at once."""

    def __init__(self, values: np.ndarray) -> None:
        """Prepare ``values``, shape (n,), in O(n log n)."""
        self.values = values
        # Row j holds where the least of 2**j consecutive values is.
        rows = [np.arange(len(values))]
        while (half := 1 << (len(rows) - 1)) < len(values):
            left = rows[-1]
            right = np.append(left[half:], np.full(min(half, len(left)), left[-1]))
            rows.append(np.where(values[right] < values[left], right, left))
        self._table = np.stack(rows)

    def argmin(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Index of the least value of each range ``[first, end)``; ``first < end``."""
        level = np.frexp(end - first)[1] - 1
        left, right = self._table[level, first], self._table[level, end - (1 << level)]
        return np.where(self.values[right] < self.values[left], right, left)


def least_of_worse(
    have: np.ndarray, at: np.ndarray, to: np.ndarray, count: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best last step of plans that are as slow as their slowest step.

    For each target t, the least over ``i < count[t]`` of ``max(have[i], to[t] - at[i])``.

    Args:
        have: (m,) value of the plans up to place i.
        at: (m,) position of place i, ascending.
        to: (t,) position of each target.
        count: (t,) number of places that a target may be reached from.

    Returns:
        (t,) values, infinite where count is 0, and (t,) the places i.
    """
    value, place = np.full(len(to), np.inf), np.zeros(len(to), dtype=np.int64)
    some = np.flatnonzero(count > 0)
    if not some.size:
        return value, place
    to, count, least = to[some], count[some], RangeMinimum(have)
    # From later places the step is shorter, but fewer plans are left to choose from: the best is
    # where the two cross, or one place before.
    low, high = np.zeros_like(count), count - 1
    while (open_ := low < high).any():
        middle = (low + high) // 2
        crossed = have[least.argmin(middle, count)] >= to - at[middle]
        high = np.where(open_ & crossed, middle, high)
        low = np.where(open_ & ~crossed, middle + 1, low)
    best = least.argmin(low, count)
    before = least.argmin(np.maximum(low - 1, 0), count)
    worse, worse_before = (np.maximum(have[i], to - at[i]) for i in (best, before))
    value[some] = np.minimum(worse, worse_before)
    place[some] = np.where(worse_before < worse, before, best)
    return value, place
