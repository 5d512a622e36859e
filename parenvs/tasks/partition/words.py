"""Names of dimensions and classes, and why classes hang together, in words."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from parenvs.graph.layout import shape_text
from parenvs.tasks.partition.classes import DimensionClasses, owner_of

MAX_STEPS = 6
"""Most instructions of a chain of links that are named; the middle of a longer chain is not."""


class Explainer:
    """Puts the classes of a graph into words; dimensions are positions in ``graph.dims``."""

    def __init__(self, classes: DimensionClasses) -> None:
        self.classes, self.graph = classes, classes.graph
        self._owner = owner_of(self.graph)
        tensors = self.graph.parameter_tensor.tolist()
        self._path = dict(zip(tensors, self.graph.paths, strict=True))
        self._trees: dict[int, np.ndarray] = {}

    def dimension(self, position: int) -> str:
        """``dimension 1 of encoder/layer_0/self/q`` or ``dimension 2 of f32[64,512,768]``."""
        path, d = self.name_and_dimension(position)
        return f"dimension {d} of {path}"

    def name_and_dimension(self, position: int) -> tuple[str, int]:
        """Path of an entry parameter, or type of another tensor, and number of its dimension."""
        tensor = int(self._owner[position])
        d = position - int(self.graph.dim_offset[tensor])
        return self._path.get(tensor) or shape_text(self.graph, tensor), d

    def instruction(self, index: int) -> str:
        """``instruction 812, dot (jit(step)/encoder/layer_0/...)``."""
        graph = self.graph
        name = graph.strings[graph.op_name[index]]
        opcode = graph.opcodes[graph.opcode[index]]
        return f"instruction {index}, {opcode}" + (f" ({name})" if name else "")

    def blocked(self, label: int) -> str:
        """Why a class can never be partitioned."""
        classes = self.classes
        blocker = int(classes.blocked_by[label])
        if blocker < 0:
            # No instruction blocks the class: a size that leaves a remainder does.
            splittable = np.flatnonzero((classes.label == label) & (self.graph.dims > 1))
            odd = splittable[self.graph.dims[splittable] % classes.devices != 0][0]
            return (
                f"{self.dimension(int(odd))}, of size {self.graph.dims[odd]}, is no multiple of "
                f"{classes.devices} devices (uneven=forbid)"
            )
        instruction, positions = classes.factors.untouchable.T
        unsplittable = positions[(instruction == blocker) & (classes.label[positions] == label)]
        if unsplittable.size:
            dimension = self.dimension(int(unsplittable[0]))
            return f"{self.instruction(blocker)} cannot split {dimension}"
        first, second, *_ = self._factor_members(blocker, label)
        return f"{self._conflict_words(blocker, first, second)}, which belong together"

    def conflict(self, label: int, rival: int) -> str:
        """Why two classes cannot be partitioned together; ``ValueError`` if they can."""
        at = self.conflict_at(label, rival)
        (first, *_), (second, *_) = (self._factor_members(at, x) for x in (label, rival))
        return self._conflict_words(at, first, second)

    def _conflict_words(self, at: int, first: int, second: int) -> str:
        dimensions = f"{self.dimension(first)} and {self.dimension(second)}"
        return f"{self.instruction(at)} would split both {dimensions}"

    def conflict_at(self, label: int, rival: int) -> int:
        """The first instruction that would split both classes; ``ValueError`` if none does."""
        pair = sorted((label, rival))
        row = np.flatnonzero((self.classes.conflicts == pair).all(axis=1))
        if not row.size:
            raise ValueError(f"classes {label} and {rival} do not conflict")
        return int(self.classes.conflict_at[row[0]])

    def link(self, start: int, end: int) -> str:
        """The instructions through which two dimensions of one class belong together, in words."""
        steps = self.chain(start, end)
        words = [self.instruction(index) for index in steps]
        if len(words) > MAX_STEPS:
            half = MAX_STEPS // 2
            words[half:-half] = [f"{len(words) - 2 * half} more"]
        return ", ".join(words)

    def chain(self, start: int, end: int) -> list[int]:
        """Instructions on a shortest chain of links from one dimension to another of its class.

        Raises:
            ValueError: they belong to different classes.
        """
        predecessors = self._predecessors(start)
        if end != start and predecessors[end] < 0:
            raise ValueError("the dimensions belong to different classes")
        steps: list[int] = []
        position = end
        while position != start:
            previous = int(predecessors[position])
            instruction = int(self._links[previous, position]) - 1
            if not steps or steps[-1] != instruction:
                steps.append(instruction)
            position = previous
        return steps[::-1]

    @cached_property
    def _links(self) -> Any:
        """(N, N) sparse, 1 + the first instruction that links two dimensions."""
        from scipy.sparse import coo_array

        size, factors = len(self.graph.dims), self.classes.factors
        # A pair as one number, so that sorting finds its first instruction.
        low, high = np.sort(factors.links, axis=1).T
        pairs, first = np.unique(low * size + high, return_index=True)
        low, high = np.divmod(pairs, size)
        ends = np.append(low, high), np.append(high, low)
        return coo_array((np.tile(factors.link_at[first] + 1, 2), ends), shape=(size, size)).tocsr()

    def _predecessors(self, start: int) -> np.ndarray:
        """(N,) predecessor of each dimension in a breadth-first tree from ``start``, < 0: none."""
        from scipy.sparse.csgraph import breadth_first_order

        if start not in self._trees:
            self._trees[start] = breadth_first_order(self._links, start)[1]
        return self._trees[start]

    def _factor_members(self, instruction: int, label: int) -> list[int]:
        """A dimension of each factor of an instruction that is in a class."""
        factors = self.classes.factors
        inside = (factors.instruction == instruction) & (self.classes.factor_class == label)
        return factors.member[inside].tolist()
