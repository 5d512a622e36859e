"""An exported module: its inputs and its ATen operations, nodes of ``torch.fx``."""

from __future__ import annotations

import operator
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


ROOT = "module"
"""Where the user's module stands below the module that is exported."""
LINE = "parenvs_line"
"""Key of a node's records: where it is called, like ``model.py:12``, "" if that is not known."""


def operation(node: Any) -> str:
    """Return what a node computes, like ``add.Tensor``; ``getitem`` takes one of the results."""
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target).removeprefix("aten.").removesuffix(".default")


def path_of(target: str) -> str:
    """Return the path of a submodule or a parameter, like ``h/0/attn``, by PyTorch's name."""
    return target.removeprefix(f"{ROOT}.").replace(".", "/")


def scope(node: Any) -> str:
    """Return the path of the submodule that a node belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = re.sub(r"@\d+", "", stack[-1][0]) if stack else ""
    return "" if path == ROOT else path_of(path)


def where(node: Any) -> str:
    """Return the submodule and the line of a node, as errors name them."""
    line = node.meta.get(LINE)
    return f"in {scope(node) or 'the module itself'}{f', called at {line}' if line else ''}"


def shape_of(tensor: Any) -> tuple[Any, ...]:
    """Return the shape of a traced tensor; a size that depends on values stays a symbol."""
    return tuple(n if type(n) is int else _size(n) for n in tensor.shape)


def _size(size: Any) -> Any:
    number = getattr(getattr(size, "node", None), "expr", size)
    return int(number) if getattr(number, "is_number", False) else size


def element_of(dtype: Any) -> str:
    """Return the name of an element type of PyTorch, like ``float32``."""
    return str(dtype).removeprefix("torch.")


def inner_graph(value: Any) -> Any:
    """Return the graph of a branch or a body among a node's arguments; None for another one."""
    if getattr(value, "op", "") != "get_attr":
        return None
    return getattr(getattr(value.graph.owning_module, value.target, None), "graph", None)


def computed(graph: Any) -> list[Any]:
    """Return the nodes that compute what a branch or a body returns, in order."""
    *_, output = graph.nodes
    needed = reachable(output.all_input_nodes, lambda node: node.all_input_nodes)
    return [node for node in graph.nodes if node.op == "call_function" and node in needed]


@dataclass(frozen=True)
class Input:
    """A tensor that the nodes read and none of them makes.

    Attributes:
        name: in the nodes.
        path: of the parameter or buffer in the module, like ``h/0/attn/weight``, or the name of the
            argument of ``forward``.
        shape: of the tensor.
        element: name of its element type.
        kind: ``"weight"``, ``"frozen"``, ``"buffer"``, ``"statistics"`` (a buffer that the forward
            pass updates), ``"constant"`` or ``"batch"``.
        value: of a constant, a NumPy array; None on the meta device, where it has none.
    """

    name: str
    path: str
    shape: tuple[int, ...]
    element: str
    kind: str
    value: Any = None


@dataclass(frozen=True)
class Exported:
    """The loss of a module.

    Attributes:
        name: the module's class.
        inputs: what the nodes read, in the module's order.
        nodes: in the order of their computation.
        loss: name of the result that is the loss.
        updated: path of a buffer -> name of the result that is its new value.
        notes: what was assumed, in sentences.
        traits: what eager PyTorch does not do of every module alike: ``"loss"``, how samples are
            added up (``"mean"``, ``"sum"``, ``"labels"``: over a count, else by the operation that
            is none of these); ``"types"`` of its weights, if several; ``"norms"`` of batches;
            ``"unused"`` weights.
    """

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Any, ...]
    loss: str
    updated: dict[str, str]
    notes: tuple[str, ...] = ()
    traits: Mapping[str, str] = field(default_factory=dict)


def all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield nodes, and those inside of branches and bodies."""
    for node in nodes:
        yield node
        for graph in filter(None, map(inner_graph, node.args)):
            yield from all_nodes(computed(graph))


def check_known(program: Exported, known: Container[str]) -> None:
    """Check that every operation of a program is known.

    Raises:
        RefusedError: some are not; the line names each with its first submodule and line.
    """
    missing: dict[str, Any] = {}
    for node in all_nodes(program.nodes):
        if operation(node) not in known:
            missing.setdefault(operation(node), node)
    if missing:
        operations = ", ".join(f"{name} ({where(node)})" for name, node in missing.items())
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
Users = dict[Any, list[Any]]
"""Node -> the nodes that read it."""


def fused_parts(exported: Exported) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the sizes that each dimension of a fused weight or bias is made of, by path."""
    users: Users = {}
    for node in exported.nodes:
        for operand in node.all_input_nodes:
            users.setdefault(operand, []).append(node)
    weights = {item.name: item for item in exported.inputs if item.kind in ("weight", "frozen")}
    parts: dict[Any, set[int]] = {}  # a weight or bias -> numbers of parts by its users
    for node in exported.nodes:
        read = [operand for operand in node.all_input_nodes if operand.name in weights]
        if not read:
            continue
        name, count = operation(node), 0
        if name in _WEIGHT:
            positions = (_WEIGHT[name], _BIAS.get(name, -1))
            # A weight that is multiplied as data is not taken apart behind the product.
            if {x for k, x in enumerate(node.args) if k in positions}.issuperset(read):
                count = _split_count(node, users)
        elif name == "split_with_sizes" and _dimension(node, 1) == 0:
            count = _equal_parts(node.args[1])
        elif name == "slice.Tensor" and _dimension(node, 0) == 0:
            continue  # a part that has been taken already
        for operand in read:
            parts.setdefault(operand, set()).add(count)
    fused: dict[str, tuple[tuple[int, ...], ...]] = {}
    for operand, counts in parts.items():
        (count, *others) = counts
        weight = weights[operand.name]
        shape = weight.shape
        # All readers have to agree: a tied weight may be used whole elsewhere.
        if others or not 1 < count <= _MOST_PARTS or not 0 < len(shape) < 3:
            continue
        products = set(map(operation, users[operand])) & (_WEIGHT.keys() - {"linear"})
        axis_split = int(len(shape) > 1 and bool(products))
        if shape[axis_split] % count == 0:
            fused[weight.path] = tuple(
                (count, n // count) if axis == axis_split else (n,) for axis, n in enumerate(shape)
            )
    return fused


def _dimension(node: Any, before: int) -> int:
    return int(dict(enumerate(node.args)).get(before + 1, node.kwargs.get("dim", 0)))


def _equal_parts(sizes: Sequence[int]) -> int:
    least = min(sizes)
    return sum(sizes) // least if least and all(n % least == 0 for n in sizes) else 0


def _split_count(node: Any, users: Users) -> int:
    """Into how many equal parts the last dimension of a product is split, 0 if it is not."""
    outputs = shape_of(node.meta["val"])[-1]
    counts = set()
    sliced: set[int] = set()  # outputs that slices take
    stack = [node]
    while stack:
        result = stack.pop()
        rank = len(result.meta["val"].shape)
        for user in users.get(result, ()):
            name = operation(user)
            if name == "split_with_sizes":
                if _dimension(user, 1) % rank != rank - 1:
                    return 0
                sizes = user.args[1]
                counts.add(len(sizes) if len(set(sizes)) == 1 else 0)
            elif name == "slice.Tensor" and _dimension(user, 0) % rank == rank - 1:
                # PyTorch's slices may leave out their ends, or give one that is far too large.
                start, end = (*user.args[2:4], None, None)[:2]
                start, end = start or 0, min(outputs if end is None else end, outputs)
                length = end - start
                fits = length > 0 and outputs % length == 0 and start % length == 0
                counts.add(outputs // length if fits else 0)
                sliced.update(range(start, end))
            elif name == "view":
                count = _split_off(shape_of(user.meta["val"]), outputs)
                if count is None:
                    return 0
                if count == 1:
                    stack.append(user)
                else:
                    counts.add(count if _selected(user, count, users) else 0)
            elif name in ("add.Tensor", "alias", "clone", "_to_copy"):
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


def _selected(node: Any, count: int, users: Users) -> bool:
    """Whether each part is taken by itself, behind permutations and the like."""

    def inner(node: Any) -> list[Any]:
        return [user for user in users.get(node, ()) if operation(user) in _THROUGH]

    results = reachable([node], inner)
    ends = {operation(user) for x in results for user in users.get(x, ())} - {*_THROUGH}
    return bool(ends) and ends.issubset(_TAKES) and count <= _MOST_PARTS
