"""An exported module as plain data: its inputs and its ATen operations, without PyTorch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parenvs.errors import HloError
from parenvs.graph.flow import reachable

TITLE = "_parenvs_title"
"""Attribute of an exported program's module: name of the class that was exported."""


class RefusedError(HloError):
    """A module that cannot be read: why not and where, and the remedy."""

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

    @property
    def where(self) -> str:
        """The submodule and the line, as errors name them."""
        called = f", called at {self.line}" if self.line else ""
        return f"in {self.scope or 'the module itself'}{called}"


@dataclass(frozen=True)
class Subprogram:
    """A branch of a conditional, or the body of a loop.

    ``inputs`` are the names of its arguments; an output is a ``Value``, or what is no tensor.
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


def all_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield nodes, and those inside of branches and bodies."""
    for node in nodes:
        yield node
        for program in node.arguments:
            if isinstance(program, Subprogram):
                yield from all_nodes(program.nodes)


def check_known(program: Exported, known: Container[str]) -> None:
    """Check that every operation of a program is known.

    Raises:
        RefusedError: some are not; the line names each with its first submodule and line.
    """
    missing: dict[str, Node] = {}
    for node in all_nodes(program.nodes):
        if node.operation not in known:
            missing.setdefault(node.operation, node)
    if missing:
        operations = ", ".join(f"{name} ({node.where})" for name, node in missing.items())
        raise RefusedError(
            f"{program.name}: no expression for the PyTorch operations {operations}",
            "write these modules with other operations, or report the names",
        )


_MOST_PARTS = 8
_THROUGH = (
    "add.Tensor", "alias", "clone", "_to_copy", "permute", "squeeze.dims", "unsqueeze", "view",
)  # fmt: skip
"""Operations through which an output is followed to where it is taken apart."""
_TAKES = ("select.int", "slice.Tensor", "split_with_sizes", "unbind.int")
"""Operations that take a dimension apart."""
_WEIGHT = {"linear": 1, "addmm": 2, "mm": 1, "matmul": 1}
"""Product -> which of its operands the weight is; the outputs are its first dimension for
``linear`` and its last one for the others."""
_BIAS = {"linear": 2, "addmm": 0}


def fused_parts(exported: Exported) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the sizes that each dimension of a fused weight or bias is made of, by path."""
    operands_of = {
        node.name: [x.name for x in _values((*node.arguments, *node.keywords.values()))]
        for node in exported.nodes
    }
    users: dict[str, list[Node]] = {}
    for node in exported.nodes:
        for name in operands_of[node.name]:
            users.setdefault(name, []).append(node)
    weights = {item.name: item for item in exported.inputs if item.kind in ("weight", "frozen")}
    parts: dict[str, set[int]] = {}  # name of a weight or bias -> numbers of parts by its users
    for node in exported.nodes:
        read = [name for name in operands_of[node.name] if name in weights]
        if not read:
            continue
        count = 0
        if node.operation in _WEIGHT:
            positions = (_WEIGHT[node.operation], _BIAS.get(node.operation, -1))
            arguments = [x for k, x in enumerate(node.arguments) if k in positions]
            # A weight that is multiplied as data is not taken apart behind the product.
            if {value.name for value in _values(arguments)}.issuperset(read):
                count = _split_count(node, users)
        elif node.operation == "split_with_sizes" and _dimension(node, 1) == 0:
            count = _equal_parts(node.arguments[1])
        elif node.operation == "slice.Tensor" and _dimension(node, 0) == 0:
            continue  # a part that has been taken already
        for name in read:
            parts.setdefault(name, set()).add(count)
    fused: dict[str, tuple[tuple[int, ...], ...]] = {}
    for name, counts in parts.items():
        (count, *others) = counts
        shape = weights[name].type.shape
        # All readers have to agree: a tied weight may be used whole elsewhere.
        if others or not 1 < count <= _MOST_PARTS or not 0 < len(shape) < 3:
            continue
        products = {node.operation for node in users[name]} & (_WEIGHT.keys() - {"linear"})
        axis_split = int(len(shape) > 1 and bool(products))
        if shape[axis_split] % count == 0:
            fused[weights[name].path] = tuple(
                (count, n // count) if axis == axis_split else (n,) for axis, n in enumerate(shape)
            )
    return fused


def _values(arguments: Iterable[object]) -> Iterable[Value]:
    for value in arguments:
        if isinstance(value, Value):
            yield value
        elif isinstance(value, list):
            yield from _values(value)


def _dimension(node: Node, before: int) -> int:
    return int(dict(enumerate(node.arguments)).get(before + 1, node.keywords.get("dim", 0)))


def _equal_parts(sizes: Sequence[int]) -> int:
    least = min(sizes)
    return sum(sizes) // least if least and all(n % least == 0 for n in sizes) else 0


def _split_count(node: Node, users: Mapping[str, list[Node]]) -> int:
    """Into how many equal parts the last dimension of a product is split, 0 if it is not."""
    if not isinstance(node.result, TensorType):
        return 0
    outputs = node.result.shape[-1]
    counts = set()
    sliced: set[int] = set()  # outputs that slices take
    stack = [node]
    while stack:
        result = stack.pop()
        shape = result.result.shape
        last = len(shape) - 1
        for user in users.get(result.name, ()):
            if user.operation == "split_with_sizes":
                if _dimension(user, 1) % len(shape) != last:
                    return 0
                sizes = user.arguments[1]
                counts.add(len(sizes) if len(set(sizes)) == 1 else 0)
            elif user.operation == "slice.Tensor" and _dimension(user, 0) % len(shape) == last:
                # PyTorch's slices may leave out their ends, or give one that is far too large.
                start, end = (*user.arguments[2:4], None, None)[:2]
                start, end = start or 0, min(outputs if end is None else end, outputs)
                length = end - start
                fits = length > 0 and outputs % length == 0 and start % length == 0
                counts.add(outputs // length if fits else 0)
                sliced.update(range(start, end))
            elif user.operation == "view":
                count = _split_off(user.result.shape, outputs)
                if count is None:
                    return 0
                if count == 1:
                    stack.append(user)
                else:
                    counts.add(count if _selected(user, count, users) else 0)
            elif user.operation in ("add.Tensor", "alias", "clone", "_to_copy"):
                stack.append(user)
            else:
                return 0
    if sliced and len(sliced) < outputs:
        return 0  # some outputs of one layer, no layers side by side
    return counts.pop() if len(counts) == 1 else 0


def _split_off(new_shape: Sequence[int], outputs: int) -> int | None:
    """Parts that a view splits off the last dimension: 1 if it stays whole, None if merged."""
    tail = 1
    for axis in range(len(new_shape) - 1, -1, -1):
        tail *= new_shape[axis]
        if tail == outputs:
            while new_shape[axis] == 1 and axis < len(new_shape) - 1:
                axis += 1
            return 1 if new_shape[axis] == outputs else new_shape[axis]
        if tail > outputs:
            return None
    return None


def _selected(node: Node, count: int, users: Mapping[str, list[Node]]) -> bool:
    """Whether each part is taken by itself, behind permutations and the like."""

    def inner(name: str) -> list[str]:
        return [user.name for user in users.get(name, ()) if user.operation in _THROUGH]

    names = reachable([node.name], inner)
    ends = {user.operation for name in names for user in users.get(name, ())} - {*_THROUGH}
    return bool(ends) and ends.issubset(_TAKES) and count <= _MOST_PARTS
