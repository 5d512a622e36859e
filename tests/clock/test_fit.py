"""Fits of synthetic seconds: known lines come back, curves rise."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenvs.clock.calibration import Curve, Line
from parenvs.clock.members import Timing
from parenvs.errors import ClusterError


@pytest.mark.thorough
@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e12))
def test_line__gives_back_what_made_the_seconds(latency, bandwidth):
    size = [4.0**k for k in range(5, 20)]
    line = Line.through(size, [latency + x / bandwidth for x in size])
    assert line.latency == pytest.approx(latency, rel=1e-4, abs=1e-9)
    if size[-1] / bandwidth > 0.1 * latency:
        assert line.bandwidth == pytest.approx(bandwidth, rel=1e-4)


@pytest.mark.parametrize("seconds", [[3.0, 2.0, 1.0], [1.0, 0.0, 1.0]])
def test_line__refuses_seconds_without_a_bandwidth(seconds):
    with pytest.raises(ClusterError, match="measure larger sizes"):
        Line.through([1.0, 2.0, 3.0], seconds)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12))
def test_curve__never_falls_and_passes_through_rising_points(seconds):
    size = [4**k for k in range(len(seconds))]
    curve = Curve.through(size[::-1], seconds[::-1])
    asked = np.geomspace(0.5, 8 * size[-1], 60)
    found = [curve.at(x) for x in asked]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(found))
    rising = np.sort(seconds)
    assert [Curve.through(size, rising).at(x) for x in size] == pytest.approx(rising)
    assert min(seconds) * (1 - 1e-9) <= curve.at(size[0])
    assert Curve.through(size, rising).at(10 * size[-1]) == pytest.approx(10 * rising[-1])


def test_timing__of_processes_is_that_of_the_last_to_end():
    timing = Timing.of([[1.0, 5.0, 3.0], [2.0, 1.0, 4.0]])
    assert timing == Timing(4.0, 3.0, 4.5, 3)
    assert Timing.of([2.0, 1.0]) == Timing(1.5, 1.25, 1.75, 2)
