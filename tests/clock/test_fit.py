"""Fits of synthetic seconds: known lines come back; times of processes that run together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenvs.clock.calibration import fitted
from parenvs.clock.members import Timing
from parenvs.errors import ClusterError


@pytest.mark.thorough
@given(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2), st.floats(1e6, 1e12))
def test_fitted__gives_back_what_made_the_seconds(step, once, bandwidth):
    moved = [4.0**k for k in range(5, 20)] * 2
    steps = [1] * 15 + [7] * 15
    seconds = [once + n * step + x / bandwidth for n, x in zip(steps, moved, strict=True)]
    found = fitted(moved, steps, seconds)
    if moved[-1] / bandwidth > 0.1 * (7 * step + once):
        assert found == pytest.approx((bandwidth, step, once), rel=1e-3, abs=1e-7)
    # Groups of one size do not tell steps and once apart.
    _, alone, nothing = fitted(moved[15:], steps[15:], seconds[15:])
    assert nothing == 0 and 7 * alone == pytest.approx(once + 7 * step, rel=1e-3)


@pytest.mark.parametrize("seconds", [[3.0, 2.0, 1.0], [1.0, 0.0, 1.0]])
def test_fitted__refuses_seconds_without_a_bandwidth(seconds):
    with pytest.raises(ClusterError, match="measure larger sizes"):
        fitted([1.0, 2.0, 3.0], [1, 1, 1], seconds)


def test_timing__of_processes_is_that_of_the_last_to_end():
    assert Timing.of([[1.0, 5.0, 3.0], [2.0, 1.0, 4.0]]) == Timing(4.0, 3.0, 4.5, 3)
    assert Timing.of([2.0, 1.0]) == Timing(1.5, 1.25, 1.75, 2)
