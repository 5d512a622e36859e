"""Tells PyTorch modules from JAX functions, and makes them without memory for their weights.

PyTorch is never imported here: where the user's code has not done so, there is no module.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

TITLE = "_parenvs_title"
"""Attribute of an exported program's module: name of the class that was exported."""


def torch_model(thing: Any, memory: bool = False) -> tuple[Any, Any]:
    """Return the PyTorch module that ``thing`` is or makes, and its loss.

    Args:
        thing: a module, an ``ExportedProgram``, a class of a module, or a function without
            arguments that returns one of them, or a pair of one and its loss. Anything else is not
            called, if it takes arguments.
        memory: whether its weights get memory and values.

    Returns:
        The module and its loss, each None if there is none.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return None, None
    made = of_program(thing)
    if not isinstance(made, torch.nn.Module):
        if hasattr(thing, "lower") or takes_arguments(thing):
            return None, None
        made = thing() if memory else without_memory(thing)
    first, *others = made if isinstance(made, tuple) and made else (made,)
    first = of_program(first)
    if not isinstance(first, torch.nn.Module) or len(others) > 1:
        return None, None
    return first, (others[0] if others else None)


def of_program(thing: Any) -> Any:
    """Return the module of an ``ExportedProgram``; anything else as it is."""
    torch = sys.modules["torch"]
    if not isinstance(thing, torch.export.ExportedProgram):
        return thing
    guarded = "check_guards" in inspect.signature(thing.module).parameters
    module = thing.module(check_guards=False) if guarded else thing.module()
    stacks = (node.meta.get("nn_module_stack") for node in thing.graph.nodes)
    kinds = [next(iter(stack.values()))[1] for stack in stacks if stack]
    kind = kinds[0] if kinds else type(module)
    name = kind if isinstance(kind, str) else kind.__name__
    setattr(module, TITLE, name.rpartition(".")[2])
    module.example_inputs = thing.example_inputs
    return module


def example_inputs(module: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the inputs that an exported program was made with; None for another module."""
    return module.example_inputs if hasattr(module, TITLE) else None


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
