import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from parenvs.agents.evaluation.statistics import (
    bootstrap_interval,
    mean_known,
    performance_profile,
    probability_of_improvement,
)


def test_statistics__mean_known():
    assert mean_known(np.array([[0.0, np.nan, 2.0], [4.0, np.nan, 6.0]])) == 3.0
    assert np.isnan(mean_known(np.array([[np.nan]])))


def test_statistics__performance_profile():
    scores = np.array([[0.0, 0.1], [0.1, 0.4]])
    assert performance_profile(scores, [0.0, 0.05, 0.1, 1.0]).tolist() == [0.25, 0.25, 0.75, 1.0]


def test_statistics__probability_of_improvement():
    """The statistic of Mann and Whitney, problem by problem."""
    rng = np.random.default_rng(0)
    ours, theirs = (rng.integers(0, 5, (runs, 6)).astype(float) for runs in (4, 7))
    expected = [
        mannwhitneyu(theirs[:, k], ours[:, k]).statistic / (len(ours) * len(theirs))
        for k in range(6)
    ]
    assert probability_of_improvement(ours, theirs) == pytest.approx(np.mean(expected))
    assert probability_of_improvement(ours, ours) == pytest.approx(0.5)
    assert probability_of_improvement(ours - 9, theirs) == 1.0


def test_statistics__bootstrap_over_runs_and_problems():
    rng = np.random.default_rng(0)
    alike = np.tile(rng.random(20), (5, 1))
    # Runs that are alike have no spread, however much problems differ.
    low, high = bootstrap_interval(mean_known, alike, repeats=50)
    assert low == high == mean_known(alike)
    low, high = bootstrap_interval(mean_known, alike[:1], repeats=200)
    assert low < mean_known(alike) < high
    # Nor do problems within strata that are alike.
    strata = np.arange(20) // 10
    constant = strata[None] * 1.0
    low, high = bootstrap_interval(np.mean, constant, strata=strata, repeats=50)
    assert low == high == 0.5
    low, high = bootstrap_interval(np.mean, constant, repeats=50)
    assert low < high
    assert bootstrap_interval(np.mean, constant, seed=3) == bootstrap_interval(
        np.mean, constant, seed=3
    )


@pytest.mark.thorough
def test_statistics__interval_covers_the_truth():
    """About 95 of 100 intervals of a mean of normal numbers hold it."""
    rng = np.random.default_rng(0)
    hits = 0
    for turn in range(100):
        low, high = bootstrap_interval(np.mean, rng.normal(size=(1, 60)), repeats=200, seed=turn)
        hits += low <= 0 <= high
    assert 88 <= hits <= 99
