"""What the checks of shapes share: complaints about sizes and dimension numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from parenvs.graph.flops import Shape

Fields = dict[str, Any]
"""Dimension numbers, windows, ..., as ``Graph.attribute`` holds them."""
Check = Callable[[Sequence[Shape], Sequence[Shape], Fields], str]
"""Operands, results and fields -> what does not fit, "" if all fits."""


def distinct(numbers: Sequence[int], rank: int) -> bool:
    """Return whether dimension numbers are in range, and none is there twice."""
    return len(set(numbers)) == len(numbers) and all(0 <= d < rank for d in numbers)


def inside(sizes: Sequence[int], whole: Sequence[int]) -> bool:
    """Return whether a block fits into an array."""
    return len(sizes) == len(whole) and all(0 <= a <= b for a, b in zip(sizes, whole, strict=True))


def expect(shape: Sequence[int], wanted: Sequence[int]) -> str:
    """Return what is wrong with a shape that should be another."""
    return "" if tuple(shape) == tuple(wanted) else f"{list(shape)} should be {list(wanted)}"


def first(wrongs: Iterable[str]) -> str:
    """Return the first text that is not empty, or an empty one."""
    return next(filter(None, wrongs), "")
