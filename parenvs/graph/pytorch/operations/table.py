"""The table of ATen operations: name -> function of JAX arrays, filled by the modules beside it.

A function takes an operation's arguments as PyTorch's schema orders and names them. What it returns
is cast to the type that PyTorch gives the result, so that a function need not care for promotion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Operation = Callable[..., Any]

OPERATIONS: dict[str, Operation] = {}
"""Name without ``aten.`` and ``.default``, like ``add.Tensor`` -> its function."""
RANDOM: set[str] = set()
"""Operations that draw numbers; their functions take a random key as ``key``."""
_PLACE = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")
"""Arguments that only say where and how a tensor is stored, which functions are not given."""


def operation(*names: str) -> Callable[[Operation], Operation]:
    """Enter the decorated function under the names of the operations that it computes."""

    def enter(function: Operation) -> Operation:
        for name in names:
            if name in OPERATIONS:
                raise ValueError(f"{name} is in the table already")
            OPERATIONS[name] = function
        return function

    return enter


def random(*names: str) -> Callable[[Operation], Operation]:
    """Enter a function as ``operation`` does; it is given a ``key``."""
    RANDOM.update(names)
    return operation(*names)


def without_place(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that a function takes."""
    return {key: value for key, value in keywords.items() if key not in _PLACE}
