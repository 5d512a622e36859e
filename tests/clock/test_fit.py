"""Fits of synthetic seconds: known lines come back; times of processes that run together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenvs.clock.calibration import fitted_line
from parenvs.clock.members import Timing
from parenvs.errors import ClusterError


@pytest.mark.thorough
@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e12))
def test_line__gives_back_what_made_the_seconds(latency, bandwidth):
    size = [4.0**k for k in range(5, 20)]
    found = fitted_line(size, [latency + x / bandwidth for x in size])
    assert found[0] == pytest.approx(latency, rel=1e-4, abs=1e-9)
    if size[-1] / bandwidth > 0.1 * latency:
        assert found[1] == pytest.approx(bandwidth, rel=1e-4)


@pytest.mark.parametrize("seconds", [[3.0, 2.0, 1.0], [1.0, 0.0, 1.0]])
def test_line__refuses_seconds_without_a_bandwidth(seconds):
    with pytest.raises(ClusterError, match="measure larger sizes"):
        fitted_line([1.0, 2.0, 3.0], seconds)


def test_timing__of_processes_is_that_of_the_last_to_end():
    timing = Timing.of([[1.0, 5.0, 3.0], [2.0, 1.0, 4.0]])
    assert timing == Timing(4.0, 3.0, 4.5, 3)
    assert Timing.of([2.0, 1.0]) == Timing(1.5, 1.25, 1.75, 2)
