"""Compiles functions of loops over arrays where numba is installed (extra ``fast``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

try:
    from numba import njit  # a folder of that name beside a script has none
except ImportError:  # the loops run as Python, a hundred times slower
    njit = None

COMPILED = njit is not None
"""Whether loops are compiled."""

F = TypeVar("F", bound=Callable)


def compiled(function: F, inner: bool = False) -> F:
    """Compile a function of arrays and numbers, which then runs without the interpreter's lock.

    What is compiled is kept on the disk for the next process, where the package's folder, or
    ``NUMBA_CACHE_DIR``, can be written to.

    Args:
        function: the function.
        inner: whether only compiled functions call it: it is kept as a part of them.
    """
    if njit is None:
        return function
    return njit(cache=not inner, nogil=True)(function)
