"""Statistics of agents over runs and problems, after Agarwal et al., arXiv 2108.13264.

Scores are matrices (r, k): r runs of an agent, which differ in their seeds, on k problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

REPEATS = 2000
"""Bootstrap samples of an interval."""
LEVEL = 0.95
"""Share of the bootstrap distribution that lies in an interval."""


def mean_known(scores: np.ndarray) -> float:
    """Return the mean of the scores of every run and problem that are not NaN; NaN without any."""
    known = scores[np.isfinite(scores)]
    return float(known.mean()) if known.size else math.nan


def performance_profile(scores: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """Return the share of scores, (r, k), at most each threshold, (t,) (section 4.2)."""
    ordered = np.sort(scores, axis=None)
    return np.searchsorted(ordered, thresholds, side="right") / ordered.size


def probability_of_improvement(scores: np.ndarray, others: np.ndarray) -> float:
    """Return how likely a run of one agent has a smaller score than a run of another.

    The mean over problems of the share of pairs of runs in which the score is smaller; ties count a
    half (section 4.3, the Mann-Whitney statistic). Scores are (r, k) and (s, k).
    """
    runs, rivals = len(scores), len(others)
    wins = np.zeros(scores.shape[1])
    for run in scores:  # a bootstrap asks thousands of times; few runs are faster so than ranked
        wins += (run < others).sum(axis=0) + 0.5 * (run == others).sum(axis=0)
    return float(wins.mean() / (runs * rivals))


def bootstrap_interval(
    statistic: Callable[..., float],
    *scores: np.ndarray,
    strata: np.ndarray | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95 % interval of a statistic by a stratified bootstrap.

    With several runs each problem is a stratum, of which runs are drawn with replacement, so the
    interval is of the spread over runs (section 4.1). With one run problems are drawn, within
    ``strata``, and the interval is of the spread over problems.

    Args:
        statistic: a function of the matrices ``scores``.
        *scores: (r, k) each, of one agent; k is the same.
        strata: (k,) kind of each problem (default: all are one kind).
        repeats: number of samples.
        seed: seed of the samples.
    """
    rng = np.random.default_rng(seed)
    problems = scores[0].shape[1]
    strata = np.zeros(problems) if strata is None else strata
    groups = [np.flatnonzero(strata == kind) for kind in np.unique(strata)]
    # Runs are drawn for each problem by itself: runs of different problems are not paired.
    values = np.empty(repeats)
    for repeat in range(repeats):
        if all(len(runs) > 1 for runs in scores):
            drawn = [
                np.take_along_axis(runs, rng.integers(len(runs), size=runs.shape), axis=0)
                for runs in scores
            ]
        else:
            picked = [group[rng.integers(len(group), size=len(group))] for group in groups]
            drawn = [runs[:, np.concatenate(picked)] for runs in scores]
        values[repeat] = statistic(*drawn)
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
