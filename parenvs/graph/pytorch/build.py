"""Tells PyTorch modules from JAX functions, and makes them without memory for their weights.

PyTorch is never imported here: where the user's code has not done so, there is no module.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any


def torch_model(thing: Any, memory: bool = False) -> tuple[Any, Any]:
    """Return the PyTorch module that ``thing`` is or makes, and its loss.

    Args:
        thing: a module, a class of one, or a function without arguments that returns a module, or a
            pair of a module and its loss. Anything else is not called, if it takes arguments.
        memory: whether its weights get memory and values.

    Returns:
        The module and its loss, each None if there is none.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return None, None
    made = thing
    if not isinstance(made, torch.nn.Module):
        if hasattr(thing, "lower") or takes_arguments(thing):
            return None, None
        made = thing() if memory else without_memory(thing)
    if isinstance(made, torch.nn.Module):
        return made, None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module):
        return made
    return None, None


def without_memory(make: Callable[[], Any]) -> Any:
    """Return what ``make()`` returns: on PyTorch's meta device, unless it needs values."""
    torch = sys.modules["torch"]
    try:
        with torch.device("meta"):
            return make()
    except Exception:
        return make()


def takes_arguments(function: Any) -> bool:
    """Return whether a function has a parameter without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is p.empty and p.kind not in optional for p in parameters)
