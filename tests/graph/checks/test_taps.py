"""Taps of a convolution by formula, against a loop over all of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenvs.graph.opcodes import _valid_taps

SIZES = st.integers(0, 9)


def by_loop(size, kernel, output, window):
    """The definition, tap by tap."""
    base = max(window.base_dilation, 1)
    places = [
        o * max(window.stride, 1) + k * max(window.window_dilation, 1) - window.padding_low
        for k in range(kernel)
        for o in range(output)
    ]
    return sum(x % base == 0 and 0 <= x // base < size for x in places)


@pytest.mark.thorough
@given(SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, st.integers(-9, 14))
def test_taps__as_the_loop(size, kernel, output, stride, base, dilation, padding):
    window = SimpleNamespace(
        stride=stride, base_dilation=base, window_dilation=dilation, padding_low=padding
    )
    assert _valid_taps(size, kernel, output, window) == by_loop(size, kernel, output, window)


def test_taps__large_windows_are_instant():
    """Every tap of a kernel as large as the input, at one output."""
    plain = SimpleNamespace(stride=1, base_dilation=1, window_dilation=1, padding_low=0)
    assert _valid_taps(2**40, 2**40, 1, plain) == 2**40
    assert _valid_taps(2**40, 2**40, 2, plain) == 2**41 - 1
    holes = SimpleNamespace(stride=1, base_dilation=2, window_dilation=1, padding_low=0)
    assert _valid_taps(2**39, 2**40, 1, holes) == 2**39
