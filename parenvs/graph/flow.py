"""The flow of data through a module, tensor by tensor, through loops and branches by position.

An instruction's results depend on all of its operands; what a loop carries, a branch takes and
returns or a barrier holds goes through as it is. So an input that a loop hands through unchanged
depends on nothing else in it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

import numpy as np

from parenvs.graph.flops import ELEMENTWISE
from parenvs.graph.graph import Graph

_VIEWS = (
    "add-dependency bitcast convert copy opt-barrier optimization-barrier reduce-precision reshape "
    "transpose"
)
VIEWS = frozenset(_VIEWS.split())
"""Opcodes whose result is their operand, cast or in another layout."""
PARTS = frozenset(("slice", "concatenate", "dynamic-slice"))
"""Opcodes whose result holds elements of their operands as they are."""
BARRIERS = ("opt-barrier", "optimization-barrier")
"""Opcodes that hand each of their operands on as it is."""
CARRIES = ("while", "conditional")
"""Opcodes through which values go by position, into and out of the computations inside."""


class Flow:
    """What each tensor of a graph is made of, and what is made of it. T tensors, I instructions.

    Attributes:
        graph: the graph.
        opcode: (I,) name of each instruction's opcode; annotations count as copies.
        operands, results: (I,) lists of tensors.
        producer: (T,) instruction that makes each tensor; those inside a loop have theirs.
        before: (T,) tensors that each tensor is made of.
        after: (T,) tensors that are made of each tensor.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        names = graph.opcodes
        self.opcode = [names[code] for code in graph.opcode.tolist()]
        for index in self._annotations():
            self.opcode[index] = "copy"
        self.operands = _rows(graph.operands, graph.operand_offset)
        self.results = _rows(graph.results, graph.result_offset)
        tensors = len(graph.element_type)
        self.producer = [-1] * tensors
        for index, made in enumerate(self.results):
            for tensor in made:
                self.producer[tensor] = index
        self.before: list[list[int]] = [[] for _ in range(tensors)]
        carried = self._carried()
        for index, made in enumerate(self.results):
            if self.opcode[index] in BARRIERS:
                for source, tensor in zip(self.operands[index], made, strict=False):
                    self.before[tensor].append(source)
            elif self.opcode[index] not in CARRIES:
                for tensor in made:
                    self.before[tensor].extend(self.operands[index])
        for source, target in carried:
            self.before[target].append(source)

    @cached_property
    def after(self) -> list[list[int]]:
        """(T,) tensors that are made of each tensor."""
        after: list[list[int]] = [[] for _ in self.before]
        for tensor, row in enumerate(self.before):
            for source in row:
                after[source].append(tensor)
        return after

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """(T,) dimensions of each tensor."""
        rows = _rows(self.graph.dims, self.graph.dim_offset)
        return [tuple(row) for row in rows]

    @cached_property
    def readers(self) -> list[list[int]]:
        """(T,) instructions that read each tensor; loops and branches are not among them."""
        readers: list[list[int]] = [[] for _ in self.before]
        for index, row in enumerate(self.operands):
            if self.opcode[index] not in CARRIES:
                for tensor in row:
                    readers[tensor].append(index)
        return readers

    def ancestors(self, tensors: Iterable[int]) -> np.ndarray:
        """(T,) bool: ``tensors``, and everything that they are made of."""
        return self._closure(tensors, self.before)

    def descendants(
        self, tensors: Iterable[int], kinds: Collection[int] | None = None
    ) -> np.ndarray:
        """(T,) bool: ``tensors``, and everything that is made of them.

        Args:
            tensors: where to start.
            kinds: codes of element types, if nothing else is to be gone through.
        """
        if kinds is None:
            return self._closure(tensors, self.after)
        fits = np.isin(self.graph.element_type, list(kinds)).tolist()
        after = [[t for t in row if fits[t]] for row in self.after]
        return self._closure((t for t in tensors if fits[t]), after)

    def makers(self, tensors: np.ndarray) -> np.ndarray:
        """(I,) bool: the instructions that make any of ``tensors``, (T,) bool."""
        makers = np.zeros(len(self.opcode), dtype=bool)
        made = np.array(self.producer)[tensors]
        makers[made[made >= 0]] = True
        return makers

    def sources(self, tensor: int) -> list[int]:
        """Tensors whose elements ``tensor`` takes one for one, with others of the same shape.

        Casts, layouts, elementwise operations, slices and concatenations, and what loops and
        branches carry. Numbers that are combined with an array are left out, and so are broadcasts.
        """
        index = self.producer[tensor]
        opcode = self.opcode[index] if index >= 0 else "parameter"
        if opcode in CARRIES or opcode == "parameter":
            return self.before[tensor]
        if opcode in VIEWS or opcode == "concatenate":
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
            index = self.producer[tensor]
            opcode = self.opcode[index] if index >= 0 else "parameter"
            if opcode in VIEWS or opcode in ("slice", "dynamic-slice"):
                tensor = self.before[tensor][0]
                continue
            source = self._handed_on(tensor) if opcode in (*CARRIES, "parameter") else None
            if source is None:
                return tensor
            tensor = source

    def _handed_on(self, tensor: int) -> int | None:
        """The tensor outside that a loop or branch hands on unchanged as ``tensor``, or None."""
        sources = set(self.before[tensor]) - {tensor}
        outside = {s for s in sources if not self._is_invariant(s, sources)}
        return outside.pop() if len(outside) == 1 else None

    def _is_invariant(self, tensor: int, sources: set[int]) -> bool:
        """Whether ``tensor`` is a loop's own name for another of ``sources``, never changed."""
        made_of = set(self.before[tensor]) - {tensor}
        index = self.producer[tensor]
        inner = index >= 0 and self.opcode[index] == "parameter"
        return inner and len(made_of) == 1 and made_of <= sources

    @staticmethod
    def _closure(tensors: Iterable[int], neighbours: list[list[int]]) -> np.ndarray:
        reached = np.zeros(len(neighbours), dtype=bool)
        seen = set(tensors)
        waiting = list(seen)
        while waiting:
            for tensor in neighbours[waiting.pop()]:
                if tensor not in seen:
                    seen.add(tensor)
                    waiting.append(tensor)
        reached[list(seen)] = True
        return reached

    def _annotations(self) -> list[int]:
        """Custom calls that only say where their operand should be."""
        targets = ("Sharding", "xla.sdy.", "annotate_device_placement", "MoveTo")
        return [
            index
            for index, opcode in enumerate(self.opcode)
            if opcode == "custom-call"
            and json.loads(self.graph.strings[self.graph.attribute[index]] or "{}")
            .get("target", "")
            .startswith(targets)
        ]

    def _carried(self) -> Iterator[tuple[int, int]]:
        """Pairs of a tensor and the tensor that it becomes on its way into or out of a body."""
        parents = self.graph.parent.tolist()
        inside: dict[int, list[int]] = {}
        for index, outer in enumerate(parents):
            if outer >= 0:
                inside.setdefault(outer, []).append(index)
        for outer, members in inside.items():
            read, written = self.operands[outer], self.results[outer]
            given: list[int] = []  # tensors of the computation's own parameters
            branch = 1  # operand 0 of a conditional chooses the branch
            body = True  # a loop's body comes before its condition
            for index in members:
                if self.opcode[index] == "parameter":
                    given += self.results[index]
                elif self.opcode[index] == "return":
                    out = self.operands[index]
                    if self.opcode[outer] == "while":
                        yield from zip(read, given, strict=False)
                        if body:
                            yield from zip(out, given, strict=False)
                            yield from zip(out, written, strict=False)
                    else:
                        yield from zip(read[branch:], given, strict=False)
                        branch += len(given)
                        yield from zip(out, written, strict=False)
                    given, body = [], False
        for outer, opcode in enumerate(self.opcode):  # a loop that never runs returns its operands
            if opcode == "while":
                yield from zip(self.operands[outer], self.results[outer], strict=False)


def _rows(flat: np.ndarray, offset: np.ndarray) -> list[list[int]]:
    """The rows of a ragged list."""
    values, ends = flat.tolist(), offset.tolist()
    return [values[a:b] for a, b in itertools.pairwise(ends)]
