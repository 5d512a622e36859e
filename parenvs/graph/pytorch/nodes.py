"""An exported module as plain data: its inputs and its ATen operations, without PyTorch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from parenvs.errors import HloError


class RefusedError(HloError):
    """A module that cannot be read, and what helps.

    Args:
        what: why not, and where.
        remedy: what may be done about it.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what, self.remedy = what, remedy

    def __reduce__(self) -> Any:
        """Pickle it by its parts."""
        return type(self), (self.what, self.remedy)


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
        arguments: positional ones: numbers, texts, lists, ``Value``, ``ElementType`` and
            ``Subprogram``.
        keywords: the others.
        scope: path of the submodule that it belongs to, like ``h/0/attn``.
        result: its type; a tuple where there are several, None for what is no tensor.
        line: where it is called, like ``model.py:12``: the innermost line that is not PyTorch's
            own; "" if that is not known.
    """

    name: str
    operation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    scope: str
    result: Any
    line: str = ""


@dataclass(frozen=True)
class Subprogram:
    """A branch of a conditional, or the body of a loop.

    Attributes:
        inputs: names that its arguments have in its nodes.
        nodes: in the order of their computation.
        outputs: its results: ``Value``, or what is no tensor.
    """

    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Any, ...]


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


def inner_programs(node: Node) -> list[Subprogram]:
    """Return the branches or the body of a node."""
    return [x for x in node.arguments if isinstance(x, Subprogram)]


def all_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield nodes, and those inside of branches and bodies."""
    for node in nodes:
        yield node
        for program in inner_programs(node):
            yield from all_nodes(program.nodes)


def check_known(program: Exported, known: Container[str]) -> None:
    """Check that every operation of a program is known.

    Raises:
        RefusedError: some are not; the line names them all, each with the first submodule and line
            that uses it.
    """
    missing: dict[str, Node] = {}
    for node in all_nodes(program.nodes):
        if node.operation not in known:
            missing.setdefault(node.operation, node)
    if missing:
        raise RefusedError(
            f"{program.name}: no expression for the PyTorch operations "
            + ", ".join(
                f"{name} (in {node.scope or 'the module itself'}"
                + (f", called at {node.line})" if node.line else ")")
                for name, node in missing.items()
            ),
            "write these modules with other operations, or report the names",
        )
