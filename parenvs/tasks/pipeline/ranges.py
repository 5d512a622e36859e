"""Least or greatest values over ranges of an array, for many ranges at once."""

from __future__ import annotations

from functools import cached_property

import numpy as np


class RangeTable:
    """A sparse table: the best of ``values[first:end]`` and where it is, in constant time.

    Args:
        values: (n,) numbers.
        greatest: whether greater values are better; else smaller ones.
    """

    def __init__(self, values: np.ndarray, greatest: bool = False) -> None:
        """Prepare the ranges of 2, 4, 8, ... values, in O(n log n)."""
        self.values = values
        self._better = np.greater if greatest else np.less
        self._best = np.maximum if greatest else np.minimum
        # Row j holds the best of 2**j consecutive values, shorter ranges at the end of the array.
        rows = [values]
        while (width := 1 << len(rows)) <= len(values):
            row, half = rows[-1].copy(), width // 2
            self._best(rows[-1][:-half], rows[-1][half:], out=row[:-half])
            rows.append(row)
        self._rows = np.stack(rows)

    def value(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The best value of each range ``[first, end)``, elementwise; ``first < end``."""
        level = np.frexp(end - first)[1] - 1
        last = end - (1 << level)
        return self._best(self._rows[level, first], self._rows[level, last])

    def place(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Index of the best value of each range ``[first, end)``; ``first < end``."""
        level = np.frexp(end - first)[1] - 1
        left, right = self._places[level, first], self._places[level, end - (1 << level)]
        return np.where(self._better(self.values[right], self.values[left]), right, left)

    @cached_property
    def _places(self) -> np.ndarray:
        """Where the values of the rows are; of equal ones in halves of a range, the left one's."""
        rows = [np.arange(len(self.values))]
        for j in range(1, len(self._rows)):
            half = 1 << (j - 1)
            row = rows[-1].copy()
            values = self._rows[j - 1]
            right = np.flatnonzero(self._better(values[half:], values[:-half]))
            row[right] = rows[-1][right + half]
            rows.append(row)
        return np.stack(rows)
