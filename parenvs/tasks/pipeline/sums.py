"""Sums along a chain, from which the costs of any stage are looked up."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import TIED
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.ranges import RangeTable
from parenvs.tasks.pipeline.tied import TiedWeights


class ChainSums:
    """What a ``Pipeline`` knows of its chain alone, on whatever cluster.

    Attributes:
        profile: the chain, n pivots.
        tied: see ``Pipeline``.
    """

    profile: StageProfile
    tied: str
    copies: float

    # Entry p of a prefix sum is the sum over the pivots before p; its shape is (n+1,).

    @cached_property
    def forward_sum(self) -> np.ndarray:
        """Prefix sum of forward seconds, (n+1,)."""
        return _prefix(self.profile.forward)

    @cached_property
    def backward_sum(self) -> np.ndarray:
        """Prefix sum of backward seconds, (n+1,)."""
        return _prefix(self.profile.backward)

    @cached_property
    def seconds_sum(self) -> np.ndarray:
        """Prefix sum of forward plus backward seconds, (n+1,)."""
        return self.forward_sum + self.backward_sum

    @cached_property
    def parameter_sum(self) -> np.ndarray:
        """Prefix sum of parameter bytes, (n+1,)."""
        return _prefix(self.profile.parameter_bytes)

    @cached_property
    def variable_sum(self) -> np.ndarray:
        """Number of pivots with weights before each pivot, (n+1,)."""
        weights = self.profile.parameter_bytes > 0
        if self.profile.frozen_bytes is not None:
            weights = weights | (self.profile.frozen_bytes > 0)
        return np.concatenate([[0], np.cumsum(weights)])

    @cached_property
    def frozen_sum(self) -> np.ndarray:
        """Prefix sum of the bytes of frozen weights, (n+1,)."""
        frozen_bytes = self.profile.frozen_bytes
        return _prefix(np.zeros(len(self.profile)) if frozen_bytes is None else frozen_bytes)

    @cached_property
    def tied_weights(self) -> TiedWeights | None:
        """Weights that several stages may hold, or None if there are none or they count once."""
        if self.tied == TIED[0] or not self.profile.tied:
            return None
        return TiedWeights(self.profile.tied, len(self.profile))

    @cached_property
    def resident_sum(self) -> np.ndarray:
        """Prefix sum of resident activation bytes, (n+1,); zeros if the profile has none."""
        resident_bytes = self.profile.resident_bytes
        return _prefix(np.zeros(len(self.profile)) if resident_bytes is None else resident_bytes)

    @cached_property
    def cut_before(self) -> np.ndarray:
        """Bytes that cross a cut right before each pivot, (n+1,); zero at both ends."""
        crossing_bytes = np.concatenate([[0.0], self.profile.cut_bytes])
        crossing_bytes[-1] = 0.0
        return crossing_bytes

    @cached_property
    def _cuts_after(self) -> RangeTable:
        """Table of the bytes that cross a cut right after each pivot."""
        return RangeTable(self.cut_before[1:], greatest=True)

    def largest_cut(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the largest ``cut_bytes`` of the pivots ``[first, end)``, elementwise.

        ``first`` must be less than ``end``.
        """
        return self._cuts_after.value(np.asarray(first), np.asarray(end))

    def weight_bytes(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the bytes of all copies of the weights of stages ``[first, end)``, elementwise."""
        frozen_bytes = self.frozen_sum[end] - self.frozen_sum[first]
        if self.tied_weights is not None:
            frozen_bytes = frozen_bytes + self.tied_weights.frozen_bytes(first, end)
        held_bytes = self.variable_bytes(first, end)
        return formulas.weight_bytes(held_bytes, self.copies, frozen_bytes)

    def variable_bytes(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the bytes of the variables of the stages ``[first, end)``, elementwise."""
        held_bytes = self.parameter_sum[end] - self.parameter_sum[first]
        if self.tied_weights is not None:
            held_bytes = held_bytes + self.tied_weights.again_bytes(first, end)
        return held_bytes


def _prefix(values: np.ndarray) -> np.ndarray:
    """Return the sums of the values before each index, (n+1,) float64."""
    return np.concatenate([[0.0], np.cumsum(values)])
