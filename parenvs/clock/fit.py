"""Fits measured seconds over bytes: a bandwidth with a latency, and a curve through all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from parenvs.errors import ClusterError


class Line(NamedTuple):
    """Seconds = latency + bytes / bandwidth.

    Attributes:
        latency: seconds.
        bandwidth: bytes/s.
    """

    latency: float
    bandwidth: float

    @classmethod
    def through(cls, size: Sequence[float], seconds: Sequence[float]) -> Line:
        """Fit by least squares of the relative error, neither figure negative.

        Raises:
            ClusterError: the seconds do not grow with the bytes, so that there is no bandwidth.
        """
        taken = np.asarray(seconds, dtype=np.float64)
        if not (taken > 0).all():
            raise ClusterError("calibration: a measured time is zero; measure larger sizes")
        unit = max(map(float, size))
        terms = np.stack([np.ones_like(taken), np.asarray(size, dtype=np.float64) / unit], axis=1)
        (latency, slope), _ = nnls(terms / taken[:, None], np.ones_like(taken))
        if slope <= 0:
            raise ClusterError(
                "calibration: larger arrays took no longer, so no bandwidth can be told; measure "
                "larger sizes"
            )
        return cls(float(latency), float(unit / slope))


class Curve(NamedTuple):
    """Seconds over bytes that never fall, straight in logarithms between measured sizes.

    Attributes:
        size: (n,) bytes, growing.
        seconds: (n,).
    """

    size: np.ndarray
    seconds: np.ndarray

    @classmethod
    def through(cls, size: Sequence[float], seconds: Sequence[float]) -> Curve:
        """Make the curve of measured points; where seconds fall, neighbours are pooled."""
        order = np.argsort(np.asarray(size, dtype=np.float64))
        return cls(
            np.asarray(size, dtype=np.float64)[order],
            _rising(np.asarray(seconds, dtype=np.float64)[order]),
        )

    def at(self, size: float) -> float:
        """Return the seconds of ``size`` bytes.

        Below the smallest size they are those of the smallest; above the largest they grow in
        proportion.
        """
        if size >= self.size[-1]:
            return float(self.seconds[-1] * size / self.size[-1])
        position = np.log(max(size, self.size[0]))
        return float(np.exp(np.interp(position, np.log(self.size), np.log(self.seconds))))


def _rising(values: np.ndarray) -> np.ndarray:
    """Return the nearest rising values, in logarithms: pool adjacent violators."""
    pools: list[list[float]] = []  # mean and number of each
    for value in np.log(values).tolist():
        pools.append([value, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, m), (b, n) = pools[-2:]
            pools[-2:] = [[(a * m + b * n) / (m + n), m + n]]
    return np.exp(np.concatenate([np.full(int(n), mean) for mean, n in pools]))
