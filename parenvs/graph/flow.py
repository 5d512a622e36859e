"""The flow of data through a module, tensor by tensor, through loops and branches by position.

An instruction's results depend on all of its operands; what a loop carries, a branch takes and
returns or a barrier holds goes through as it is. So an input that a loop hands through unchanged
depends on nothing else in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parenvs.compiled import Array
from parenvs.graph.checks import fields_of, inverted, rows_of
from parenvs.graph.graph import Graph, Role
from parenvs.graph.opcodes import ELEMENTWISE

_VIEWS = (
    "add-dependency bitcast convert copy opt-barrier optimization-barrier reduce-precision reshape "
    "transpose"
)
VIEWS = frozenset(_VIEWS.split())
"""Opcodes whose result is their operand, cast or in another layout."""
PARTS = frozenset(("slice", "concatenate", "dynamic-slice"))
"""Opcodes whose result holds elements of their operands as they are."""
PRODUCTS = ("dot", "convolution")
"""Opcodes of matrix products."""
BARRIERS = ("opt-barrier", "optimization-barrier")
"""Opcodes that hand each of their operands on as it is."""
CARRIES = ("while", "conditional")
"""Opcodes through which values go by position, into and out of the computations inside."""

_ANNOTATIONS = ("Sharding", "xla.sdy.", "annotate_device_placement", "MoveTo")
"""Beginnings of the targets of custom calls that return their operand."""
_SOURCES = ("constant", "iota", "partition-id", "replica-id")
"""Opcodes that are free and have no operands."""
_IMPURE = ("rng", "rng-get-and-update-state", "custom-call", "while", "conditional")
"""Opcodes that are never free: they have side effects, draw numbers or call unknown code."""


def reachable(starts: Iterable[Any], successors: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """Return what is reachable from ``starts``, themselves included (depth-first search)."""
    seen = set(starts)
    stack = list(seen)
    while stack:
        for item in successors(stack.pop()):
            if item not in seen:
                seen.add(item)
                stack.append(item)
    return seen


class Flow:
    """What each tensor of a graph is made of, and what is made of it. T tensors, I instructions.

    Attributes:
        graph: the graph.
        opcode: (I,) name of each instruction's opcode; annotations count as copies.
        operands, results: (I,) lists of tensors.
        inputs, outputs: tensors of the entry parameters, and of what the module returns.
        types: (T,) element type of each tensor.
        producer: (T,) instruction that makes each tensor; those inside a loop have theirs.
        before: (T,) tensors that each tensor is made of.
        after: (T,) tensors that are made of each tensor.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs: list[int] = graph.parameter_tensor.tolist()
        self.outputs: list[int] = graph.outputs.tolist()
        self.types: list[int] = graph.element_type.tolist()
        self.opcode = [graph.opcodes[code] for code in graph.opcode.tolist()]
        for index in np.flatnonzero(np.array(self.opcode) == "custom-call").tolist():
            target = fields_of(graph.strings[graph.attribute[index]]).get("target", "")
            if target.startswith(_ANNOTATIONS):
                self.opcode[index] = "copy"
        self.operands = list(map(list, rows_of(graph.operands, graph.operand_offset)))
        self.results = list(map(list, rows_of(graph.results, graph.result_offset)))
        tensors = len(self.types)
        self.producer = [-1] * tensors
        for index, results in enumerate(self.results):
            for tensor in results:
                self.producer[tensor] = index
        self.before: list[list[int]] = [[] for _ in range(tensors)]
        # A loop's results are not made of all of its operands, but of what takes their position.
        carried = self._carried()
        for index, results in enumerate(self.results):
            if self.opcode[index] in BARRIERS:
                for source, tensor in zip(self.operands[index], results, strict=False):
                    self.before[tensor].append(source)
            elif self.opcode[index] not in CARRIES:
                for tensor in results:
                    self.before[tensor].extend(self.operands[index])
        for source, target in carried:
            self.before[target].append(source)

    @cached_property
    def after(self) -> list[list[int]]:
        """(T,) tensors that are made of each tensor."""
        return inverted(self.before, len(self.before))

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """(T,) dimensions of each tensor."""
        return rows_of(self.graph.dims, self.graph.dim_offset)

    @cached_property
    def readers(self) -> list[list[int]]:
        """(T,) instructions that read each tensor; loops and branches are not among them."""
        pairs = zip(self.opcode, self.operands, strict=True)
        rows = [() if opcode in CARRIES else row for opcode, row in pairs]
        return inverted(rows, len(self.before))

    def ancestors(self, tensors: Iterable[int]) -> Array:
        """(T,) bool: ``tensors``, and everything that they are made of."""
        return self._closure(tensors, self.before)

    def descendants(self, tensors: Iterable[int], kinds: Collection[int] | None = None) -> Array:
        """(T,) bool: ``tensors`` and what is made of them, through element types ``kinds`` only."""
        if kinds is None:
            return self._closure(tensors, self.after)
        # A path ends where the type changes: a cast to whole numbers carries no gradient.
        fits = [kind in kinds for kind in self.types]
        after = [[t for t in row if fits[t]] for row in self.after]
        return self._closure((t for t in tensors if fits[t]), after)

    def producers(self, tensors: Array) -> Array:
        """(I,) bool: the instructions that make any of ``tensors``, (T,) bool."""
        mask = np.zeros(len(self.opcode), bool)
        results = np.array(self.producer)[tensors]
        mask[results[results >= 0]] = True
        return mask

    def opcode_of(self, tensor: int) -> str:
        """Return the opcode of the producer of a tensor; "parameter" if there is none."""
        index = self.producer[tensor]
        return self.opcode[index] if index >= 0 else "parameter"

    def sources(self, tensor: int) -> list[int]:
        """Operands whose elements ``tensor`` holds, or combines with others one by one.

        Results of casts, layouts, slices, concatenations, loops and branches hold them; elementwise
        operations combine them. Operands of another shape, numbers and broadcasts, are none.
        """
        index, opcode = self.producer[tensor], self.opcode_of(tensor)
        if opcode in (*CARRIES, "parameter", "concatenate") or opcode in VIEWS:
            return self.before[tensor]
        if opcode in ("slice", "dynamic-slice"):
            return self.operands[index][:1]
        if opcode in ELEMENTWISE:
            shape = self.shapes[tensor]
            return [t for t in self.operands[index] if self.shapes[t] == shape]
        return []

    def origin(self, tensor: int) -> int:
        """The tensor that ``tensor`` is a cast, another layout or a slice of, or itself.

        What a loop hands on unchanged is the tensor outside.
        """
        while True:
            opcode = self.opcode_of(tensor)
            if opcode in VIEWS or opcode in ("slice", "dynamic-slice"):
                tensor = self.before[tensor][0]
                continue
            source = self._passed_through(tensor) if opcode in (*CARRIES, "parameter") else None
            if source is None:
                return tensor
            tensor = source

    def _passed_through(self, tensor: int) -> int | None:
        """The tensor outside that a loop or branch hands on unchanged as ``tensor``, if any."""
        # A loop that hands a value on lists itself among its sources.
        sources = set(self.before[tensor]) - {tensor}
        outside = set()
        for source in sources:
            made_of = set(self.before[source]) - {source}
            inner = self.producer[source] >= 0 and self.opcode_of(source) == "parameter"
            # A loop's parameter that is made of one other source only is that source, unchanged.
            if not (inner and len(made_of) == 1 and made_of <= sources):
                outside.add(source)
        return outside.pop() if len(outside) == 1 else None

    @staticmethod
    def _closure(tensors: Iterable[int], neighbors: list[list[int]]) -> Array:
        closed = np.zeros(len(neighbors), bool)
        closed[list(reachable(tensors, neighbors.__getitem__))] = True
        return closed

    def _carried(self) -> Iterator[tuple[int, int]]:
        """Pairs of a tensor and the tensor that it becomes on its way into or out of a body."""
        inside: dict[int, list[int]] = {}
        for index in np.flatnonzero(self.graph.parent >= 0).tolist():
            inside.setdefault(int(self.graph.parent[index]), []).append(index)
        for outer, members in inside.items():
            operands, results = self.operands[outer], self.results[outer]
            parameters: list[int] = []  # of the present computation
            next_operand = 1  # of a conditional, whose operand 0 chooses the branch
            in_body = True  # the body of a loop comes before its condition
            for index in members:
                if self.opcode[index] == "parameter":
                    parameters += self.results[index]
                elif self.opcode[index] == "return":
                    returned = self.operands[index]
                    if self.opcode[outer] == "while":
                        yield from zip(operands, parameters, strict=False)
                        yield from zip(returned, parameters if in_body else (), strict=False)
                    else:
                        yield from zip(operands[next_operand:], parameters, strict=False)
                        next_operand += len(parameters)
                    if in_body or self.opcode[outer] != "while":
                        yield from zip(returned, results, strict=False)
                    parameters, in_body = [], False
        for outer, opcode in enumerate(self.opcode):  # a loop that never runs returns its operands
            if opcode == "while":
                yield from zip(self.operands[outer], self.results[outer], strict=False)


def needless_gradients(flow: Flow) -> Array:
    """(I,) operands of each product that need no gradient, if it reads what frozen weights make."""
    graph, needless = flow.graph, np.zeros(len(flow.opcode))
    trained, frozen = (
        flow.descendants(graph.parameter_tensor[graph.parameter_role == role].tolist())
        for role in (Role.VARIABLE, Role.FROZEN)
    )
    fixed = frozen & ~trained
    for index in np.flatnonzero(np.isin(flow.opcode, PRODUCTS)).tolist():
        operands = flow.operands[index][:2]
        if fixed[operands].any():
            needless[index] = np.count_nonzero(~trained[operands])
    return needless


@dataclass(frozen=True)
class Reads:
    """A weight that several pivots read, far enough apart to be in different stages.

    Attributes:
        positions: places of the pivots in the chain, ascending.
        size: bytes of the weight.
        trainable: whether it has a gradient, which its stages have to sum.
    """

    positions: tuple[int, ...]
    size: float
    trainable: bool


@dataclass(frozen=True)
class ChainBytes:
    """Bytes of a chain of n pivots.

    Attributes:
        cut: (n,) float64, results that a pivot up to this one produces and a later one uses, each
            result once.
        variables: (n,) float64, variables that this pivot is the first to read.
        frozen: (n,) float64, frozen weights likewise.
        tied: weights that are read again.
        reads: (n,) object, path of a weight that this pivot is the first to read, or "".
    """

    cut: Array
    variables: Array
    frozen: Array
    tied: tuple[Reads, ...]
    reads: Array


def chain_bytes(graph: Graph, pivots: Array) -> ChainBytes:
    """Count the bytes of a chain of (n,) ``pivots``, instructions at the top, ascending."""
    count = len(pivots)
    user, tensor = graph.uses(pivots)
    producer, produced = graph.makes(pivots)
    reads, views = weight_reads(graph, pivots)
    last_use = np.full(len(graph.element_type), -1)
    np.maximum.at(last_use, tensor, user)
    used_later = last_use[produced] > producer
    used_later &= ~np.isin(produced, np.array(sorted(views), np.int64))
    crossing = produced[used_later]
    # A result crosses every cut from its producer up to its last reader: as differences, whose
    # running sum is what crosses each cut.
    change_bytes = np.zeros(count + 1)
    np.add.at(change_bytes, producer[used_later], graph.tensor_bytes[crossing])
    np.subtract.at(change_bytes, last_use[crossing], graph.tensor_bytes[crossing])
    weights = {Role.VARIABLE: np.zeros(count), Role.FROZEN: np.zeros(count)}
    tied = []
    paths = np.full(count, "", object)
    for index, positions in reads.items():
        paths[positions[0]] = paths[positions[0]] or graph.paths[index]
        role = Role(int(graph.parameter_role[index]))
        size = float(graph.tensor_bytes[graph.parameter_tensor[index]])
        weights[role][positions[0]] += size
        if len(positions) > 1:
            tied.append(Reads(tuple(positions), size, role == Role.VARIABLE))
    cut = np.maximum(np.cumsum(change_bytes)[:count], 0.0)
    return ChainBytes(cut, weights[Role.VARIABLE], weights[Role.FROZEN], tuple(tied), paths)


def weight_reads(graph: Graph, pivots: Array) -> tuple[dict[int, list[int]], set[int]]:
    """Return where each weight is read, and the views of weights that no cut has to send.

    Returns:
        Index of an entry parameter -> places in the chain, ascending, at least one; and tensors.
    """
    weight = {int(graph.parameter_tensor[i]): i for i in graph.weights.tolist()}
    weight_of = dict(weight)  # tensor -> the weight that it is, or is a view of
    direct: dict[int, list[int]] = {}  # weight -> positions that read it itself
    computing: dict[int, list[int]] = {}  # readers of views in place of the views
    views: dict[int, list[int]] = {}
    for position, pivot in enumerate(pivots.tolist()):
        start, end = graph.operand_offset[pivot : pivot + 2]
        read = [t for t in graph.operands[start:end].tolist() if t in weight_of]
        if not read:
            continue
        start, end = graph.result_offset[pivot : pivot + 2]
        results = graph.results[start:end].tolist()
        is_view = graph.opcodes[graph.opcode[pivot]] in VIEWS and len(results) == 1
        for tensor in read:
            if tensor in weight:
                direct.setdefault(weight_of[tensor], []).append(position)
            if not is_view:
                computing.setdefault(weight_of[tensor], []).append(position)
        if is_view:
            weight_of[results[0]] = weight_of[read[0]]
            views.setdefault(weight_of[read[0]], []).append(results[0])
    # A weight counts where it is first computed with: its casts and layouts move with it.
    firsts = np.sort([min(computing.get(index, positions)) for index, positions in direct.items()])
    reads: dict[int, list[int]] = {}
    unsent: set[int] = set()
    for index, positions in direct.items():
        later = sorted(set(computing.get(index, [])))
        # A view far ahead of its reader would send the weight through every cut between.
        early = bool(later) and _apart(firsts, positions[0], later[0])
        if any(_apart(firsts, positions[0], position) for position in later[-1:]):
            unsent.update(views.get(index, ()))
        reads[index] = [later[0] if early else positions[0]]
        for position in later:
            if position > reads[index][-1] and _apart(firsts, reads[index][-1], position):
                reads[index].append(position)
    return reads, unsent


def _apart(firsts: Array, earlier: int, later: int) -> bool:
    # Positions are apart if another weight is first read between: a cut may fall there.
    return bool(np.searchsorted(firsts, earlier, side="right") < np.searchsorted(firsts, later))


def free_instructions(
    rows: Iterable[tuple[str, Sequence[int], Sequence[int]]], scalars: set[int]
) -> Array:
    """Return which instructions depend on constants, iota and ``scalars`` only, (I,) bool.

    ``rows`` are opcode, operands and results of each; operands, results and scalars are tensors.
    An instruction with side effects is not free.
    """
    free_tensors: set[int] = set()
    free = []
    for opcode, operands, results in rows:
        if opcode == "parameter":
            free.append(scalars.issuperset(results))
        # What draws numbers gives others each time, so it cannot be computed anew anywhere.
        elif opcode not in _IMPURE and operands:
            free.append(free_tensors.issuperset(operands))
        else:
            free.append(opcode in _SOURCES)
        if free[-1]:
            free_tensors.update(results)
    return np.array(free, bool)
