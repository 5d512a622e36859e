"""An exported module as plain data: its inputs and its ATen operations, without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parenvs.errors import HloError, did_you_mean


@dataclass(frozen=True)
class Value:
    """A reference to the result of an earlier node."""

    name: str


@dataclass(frozen=True)
class ElementType:
    """An element type among the arguments of a node, like ``float32``."""

    name: str


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    element: str


@dataclass(frozen=True)
class Node:
    """One ATen operation.

    Attributes:
        name: of its result.
        operation: like ``add.Tensor``; ``getitem`` takes one of several results.
        arguments: positional ones: numbers, texts, lists, ``Value`` and ``ElementType``.
        keywords: the others.
        scope: path of the submodule that it belongs to, like ``h/0/attn``.
        result: its type; a tuple where there are several, None for what is no tensor.
    """

    name: str
    operation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    scope: str
    result: Any


@dataclass(frozen=True)
class Input:
    """A tensor that the nodes read and none of them makes.

    Attributes:
        name: in the nodes.
        path: of the parameter or buffer in the module, like ``h/0/attn/weight``, or the name of the
            argument of ``forward``.
        type: shape and element type.
        kind: ``"weight"``, ``"frozen"``, ``"buffer"``, ``"statistics"`` (a buffer that the forward
            pass updates), ``"constant"`` or ``"batch"``.
        value: of a constant, a NumPy array; None on the meta device, where it has none.
    """

    name: str
    path: str
    type: TensorType
    kind: str
    value: Any = None


@dataclass(frozen=True)
class Exported:
    """The loss of a module.

    Attributes:
        name: the module's class.
        inputs: what the nodes read, in the module's order.
        nodes: in the order of their computation.
        loss: the result that is the loss.
        updated: path of a buffer -> the result that is its new value.
        notes: what was assumed, in sentences.
    """

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    loss: Value
    updated: dict[str, Value]
    notes: tuple[str, ...] = ()


def unknown_operations(missing: Sequence[tuple[str, str]]) -> str:
    """The clause about operations without an expression: (operation, scope) of each."""
    listed = ", ".join(f"{name} (in {scope or 'the module itself'})" for name, scope in missing)
    return f"no expression for the PyTorch operations {listed}"


def check_known(program: Exported, known: Sequence[str]) -> None:
    """Check that every operation of a program is known.

    Raises:
        HloError: some are not; the line names them all, each with the first submodule that uses it.
    """
    missing: dict[str, str] = {}
    for node in program.nodes:
        if node.operation not in known:
            missing.setdefault(node.operation, node.scope)
    if missing:
        hint = did_you_mean(next(iter(missing)), known) if len(missing) == 1 else ""
        words = unknown_operations(list(missing.items()))
        raise HloError(
            f"{program.name}: {words}{hint}; write these modules with other operations, or report "
            "the names"
        )
