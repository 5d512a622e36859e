"""Taps of a convolution by formula, against a loop over all of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenvs.errors import HloError
from parenvs.graph.opcodes import valid_taps

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
    assert valid_taps(size, kernel, output, window) == by_loop(size, kernel, output, window)


def test_taps__a_window_that_never_ends_is_refused():
    plain = SimpleNamespace(stride=1, base_dilation=1, window_dilation=1, padding_low=0)
    with pytest.raises(HloError, match="is longer than"):
        valid_taps(2**40, 2**40, 1, plain)
