"""A sum tree: drawing in proportion to priorities that keep changing, in logarithmic time."""

from __future__ import annotations

import numpy as np


class SumTree:
    """Non-negative values, the sums of which are kept in a binary tree.

    Node i has the children 2 i and 2 i + 1, the root is node 1, and the values are the leaves. A
    sum is always made anew from its two children, so that rounding errors do not add up.

    Args:
        capacity: number of values, all 0 at first.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self._depth = (capacity - 1).bit_length()
        self._nodes = np.zeros(2 << self._depth)

    @property
    def total(self) -> float:
        """Sum of all values."""
        return float(self._nodes[1])

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """The values of ``indices``."""
        return self._nodes[np.asarray(indices) + (1 << self._depth)]

    def __setitem__(self, indices: np.ndarray, values: np.ndarray | float) -> None:
        """Replace values; of an index that is given twice, the last value counts."""
        tree, nodes = self._nodes, np.asarray(indices) + (1 << self._depth)
        tree[nodes] = values
        for _ in range(self._depth):
            right = nodes | 1
            nodes = nodes >> 1
            tree[nodes] = tree[right] + tree[right - 1]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The index where the running sum of the values first exceeds each mass.

        Args:
            masses: (b,) in ``[0, total]``.

        Returns:
            (b,) int64; never the index of a value 0. For ``total``, the last one that is not.

        Raises:
            ValueError: all values are 0.
        """
        if self.total <= 0:
            raise ValueError("nothing to find: all values are 0")
        tree, rest = self._nodes, np.array(masses, dtype=float)
        nodes = np.ones(rest.shape, dtype=np.int64)
        for _ in range(self._depth):
            nodes <<= 1
            left = tree[nodes]
            right = rest >= left
            rest -= left * right
            nodes += right
        for i in np.flatnonzero(tree[nodes] == 0):  # at or, by rounding, beyond the end
            while tree[nodes[i]] == 0:
                nodes[i] -= 1
        return nodes - (1 << self._depth)
