"""Weights that several pivots read: what a stage holds of them, and shares with other stages.

A weight's bytes belong to the first pivot that reads it. A stage that starts behind that pivot and
reads it again holds it, too. A stage that holds a variable which another stage holds as well has
to sum its gradient with theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from parenvs.graph.chain import Reads


class TiedWeights:
    """Bytes of tied weights by stage, for a chain of n pivots.

    What a stage holds depends only on how many of the pivots that read a tied weight, U in all, lie
    before its two ends: tables of (U+1, U+1) have it.

    Args:
        reads: the weights.
        pivots: n.
    """

    def __init__(self, reads: Sequence[Reads], pivots: int) -> None:
        places = np.unique([p for weight in reads for p in weight.positions]).astype(np.int64)
        self._rank = np.searchsorted(places, np.arange(pivots + 1))
        size = len(places) + 1
        self._again, self._frozen, self._shared = np.zeros((3, size, size))
        bytes_of: dict[tuple[tuple[int, ...], bool], float] = defaultdict(float)
        for weight in reads:
            bytes_of[weight.positions, weight.trainable] += weight.size
        for (positions, trainable), bytes_ in bytes_of.items():
            before = np.searchsorted(positions, np.append(places, pivots), side="left")
            inside = before[None, :] - before[:, None]  # of its reads, between two ranks
            reads_it = inside > 0
            again = bytes_ * (reads_it & (before[:, None] > 0))
            if trainable:
                self._again += again
                self._shared += bytes_ * (reads_it & (inside < len(positions)))
            else:
                self._frozen += again

    def again_bytes(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Bytes of the variables that ``[first, end)`` reads and an earlier pivot has read."""
        return self._again[self._rank[first], self._rank[end]]

    def frozen_bytes(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Bytes of the frozen weights likewise."""
        return self._frozen[self._rank[first], self._rank[end]]

    def shared_bytes(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Bytes of the variables that ``[first, end)`` reads and another pivot reads as well."""
        return self._shared[self._rank[first], self._rank[end]]

    @property
    def rank(self) -> np.ndarray:
        """(n+1,) how many pivots that read a tied weight lie before each pivot."""
        return self._rank
