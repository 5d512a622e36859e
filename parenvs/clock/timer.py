"""Times operations: warm-up, repeats, median and quartiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Timing(NamedTuple):
    """Seconds of several runs.

    Attributes:
        seconds: median.
        low: lower quartile.
        high: upper quartile.
        repeats: number of runs.
    """

    seconds: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, samples: Sequence[float] | Sequence[Sequence[float]]) -> Timing:
        """Summarise samples.

        Args:
            samples: (repeats,) seconds, or (processes, repeats) of processes that ran together,
                of which the last to end counts.
        """
        runs = np.asarray(samples, dtype=np.float64)
        runs = runs.max(axis=0) if runs.ndim == 2 else runs
        low, middle, high = np.quantile(runs, (0.25, 0.5, 0.75)).tolist()
        return cls(middle, low, high, runs.size)


def started() -> Callable[[], float]:
    """Start a watch, and return what stops it and tells the seconds between."""
    begin = time.perf_counter()
    return lambda: time.perf_counter() - begin


def samples(
    run: Callable[..., Any],
    repeats: int,
    warm_up: int = 1,
    before: Callable[[], Any] = lambda: None,
    watch: Callable[[], Callable[[], float]] = started,
) -> list[float]:
    """Return the seconds of each of ``repeats`` runs.

    Args:
        run: what is timed.
        repeats: number of runs that count.
        warm_up: runs before them that do not.
        before: is called before each run, untimed; a barrier, for example.
        watch: starts before each run, and gives what stops behind it and tells the seconds.
    """
    seconds = []
    for _ in range(warm_up + repeats):
        before()
        stop = watch()
        run()
        seconds.append(stop())
    return seconds[warm_up:]
