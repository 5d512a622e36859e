"""Dimension classes: what is partitioned together, what can never be, and what excludes what.

Every tensor has one partitioning, the same for its producer and all its consumers, and nothing is
resharded. So all dimensions that factors link, directly or through others, form a **class**:
partitioning one member partitions all. A class is **blocked** if a member is in no factor of an
instruction that touches it, or if two factors of one instruction fall in it. Two classes
**conflict** if they hold two factors of one instruction. Deciding a class "partition" forces every
class that conflicts with it to "replicate"; that is the whole closure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parenvs.errors import HloError, ParenvsError
from parenvs.graph import Graph
from parenvs.rules import Factor, Instruction, Kind, factors_of

RULE_SETS = ("shardy", "automap")
"""``automap`` (arXiv 2007.04069): a reduced dimension cannot be partitioned."""
UNEVEN = ("pad", "forbid")
_LINKED = ("while", "conditional", "opt-barrier", "optimization-barrier")
_SOURCES = ("parameter", "constant", "iota", "partition-id", "replica-id")


@dataclass(frozen=True)
class DimensionClasses:
    """The dimension classes of a graph. N dimensions in all (``Graph.dims``), C classes.

    Attributes:
        graph: the graph.
        label: (N,) int32, class of each dimension of each tensor; classes that hold only free
            tensors and dimensions of size 1 have no factor and never matter.
        blocked: (C,) bool.
        blocked_by: (C,) int32, an instruction that blocks the class; -1 if none does, or if only
            its size does (``uneven="forbid"``).
        conflicts: (K, 2) int32 pairs of classes, the lower first, sorted, each once.
        conflict_at: (K,) int32, the first instruction that makes each pair conflict.
    """

    graph: Graph
    label: np.ndarray
    blocked: np.ndarray
    blocked_by: np.ndarray
    conflicts: np.ndarray
    conflict_at: np.ndarray

    @cached_property
    def variable_dimensions(self) -> np.ndarray:
        """(V,) int64, positions in ``graph.dims`` of the variables' dimensions, in their order."""
        graph = self.graph
        tensors = graph.parameter_tensor[graph.variables]
        return np.concatenate(
            [np.arange(graph.dim_offset[t], graph.dim_offset[t + 1]) for t in tensors]
            or [np.zeros(0, dtype=np.int64)]
        )

    @cached_property
    def variable_counts(self) -> np.ndarray:
        """(C,) number of variable dimensions, larger than 1, in each class."""
        dims = self.variable_dimensions
        dims = dims[self.graph.dims[dims] > 1]
        return np.bincount(self.label[dims], minlength=len(self.blocked))

    def rivals(self, chosen: int) -> np.ndarray:
        """Classes that conflict with a class: what partitioning it forces to replicate."""
        first, second = self.conflicts.T
        return np.sort(np.concatenate([second[first == chosen], first[second == chosen]]))


def dimension_classes(
    graph: Graph, rules: str = "shardy", uneven: str = "pad", devices: int = 0
) -> DimensionClasses:
    """The dimension classes of a graph.

    Args:
        graph: the graph.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` splits any dimension; ``"forbid"`` blocks classes with a member that is no
            multiple of ``devices``.
        devices: devices that a dimension would be split over; needed for ``"forbid"`` only.

    Raises:
        ParenvsError: an unknown rule set or treatment of uneven dimensions.
        HloError: an opcode without a rule; names the instruction.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if rules not in RULE_SETS or uneven not in UNEVEN:
        raise ParenvsError(f"rules must be one of {RULE_SETS}, uneven one of {UNEVEN}")
    factors = _Factors(graph, rules)
    links = np.array(factors.links, dtype=np.int64).reshape(-1, 2)
    size = len(graph.dims)
    pairs = coo_array((np.ones(len(links)), (links[:, 0], links[:, 1])), shape=(size, size))
    count, label = connected_components(pairs, directed=False)
    blocked_by = np.full(count, -1, dtype=np.int32)
    for instruction, dimension in reversed(factors.untouchable):
        blocked_by[label[dimension]] = instruction
    found: dict[tuple[int, int], int] = {}
    for instruction, members in factors.exclusive:
        classes = sorted(label[members].tolist())
        for i, one in enumerate(classes):
            for other in classes[i + 1 :]:
                if one == other:
                    if blocked_by[one] < 0:
                        blocked_by[one] = instruction
                else:
                    found.setdefault((one, other), instruction)
    blocked = blocked_by >= 0
    if uneven == "forbid":
        odd = (graph.dims > 1) & (graph.dims % max(devices, 1) != 0)
        blocked[label[odd]] = True
    keys = sorted(found)
    return DimensionClasses(
        graph=graph,
        label=label.astype(np.int32),
        blocked=blocked,
        blocked_by=blocked_by,
        conflicts=np.array(keys, dtype=np.int32).reshape(-1, 2),
        conflict_at=np.array([found[key] for key in keys], dtype=np.int32),
    )


class _Factors:
    """What the rules say of every instruction, as positions in ``graph.dims``.

    Attributes:
        links: pairs of dimensions of one factor.
        untouchable: (instruction, dimension) where no factor holds the dimension.
        exclusive: (instruction, one dimension of each factor), for two factors or more.
    """

    def __init__(self, graph: Graph, rules: str) -> None:
        self.graph, self.rules = graph, rules
        self.links: list[tuple[int, int]] = []
        self.untouchable: list[tuple[int, int]] = []
        self.exclusive: list[tuple[int, list[int]]] = []
        self._shapes = [graph.shape(t) for t in range(len(graph.element_type))]
        self._offset = graph.dim_offset.tolist()
        self._known: dict[tuple[object, ...], tuple[Factor, ...]] = {}
        self._free = np.zeros(len(self._shapes), dtype=bool)
        operands, results = graph.operands.tolist(), graph.results.tolist()
        for index in np.flatnonzero(graph.free).tolist():
            first, end = graph.result_offset[index : index + 2]
            self._free[results[first:end]] = True
        ins, outs = graph.operand_offset.tolist(), graph.result_offset.tolist()
        opcodes = [graph.opcodes[code] for code in graph.opcode.tolist()]
        for index, opcode in enumerate(opcodes):
            read = operands[ins[index] : ins[index + 1]]
            made = results[outs[index] : outs[index + 1]]
            if opcode in _LINKED:
                self._pass_through(index, opcode, read, made)
            elif opcode not in _SOURCES and opcode != "return" and not graph.free[index]:
                self._instruction(index, opcode, read, made)

    def _instruction(self, index: int, opcode: str, read: list[int], made: list[int]) -> None:
        slots = {**dict(enumerate(read)), **{-1 - k: t for k, t in enumerate(made)}}
        heads: list[int] = []
        held: set[int] = set()
        for factor in self._factors(index, opcode, read, made):
            if self.rules == "automap" and factor.kind == Kind.REDUCED and opcode == "reduce":
                continue
            members = [
                self._offset[slots[slot]] + d
                for slot, d in factor.pairs
                if not self._free[slots[slot]]
            ]
            if members:
                self.links += [(members[0], other) for other in members[1:]]
                held.update(members)
                heads.append(members[0])
        if len(heads) > 1:
            self.exclusive.append((index, heads))
        for tensor in slots.values():
            if not self._free[tensor]:
                for d, size in enumerate(self._shapes[tensor]):
                    if size != 1 and self._offset[tensor] + d not in held:
                        self.untouchable.append((index, self._offset[tensor] + d))

    def _factors(
        self, index: int, opcode: str, read: Sequence[int], made: Sequence[int]
    ) -> tuple[Factor, ...]:
        operands = tuple(self._shapes[t] for t in read)
        results = tuple(self._shapes[t] for t in made)
        attribute = int(self.graph.attribute[index])
        key = (opcode, attribute, operands, results)
        if key not in self._known:  # layers repeat: a few hundred kinds for tens of thousands
            text = self.graph.strings[attribute]
            instruction = Instruction(opcode, json.loads(text) if text else {}, operands, results)
            try:
                self._known[key] = factors_of(instruction)
            except HloError as error:
                name = self.graph.strings[self.graph.op_name[index]]
                raise HloError(f"{self.graph.name}: instruction {index} {name}: {error}") from None
        return self._known[key]

    def _pass_through(self, index: int, opcode: str, read: list[int], made: list[int]) -> None:
        """Values that go through an instruction as they are: carried state, branches, barriers."""
        graph = self.graph
        groups = [made]
        if opcode != "conditional":
            groups.append(read)
        inside = np.flatnonzero(graph.parent == index).tolist() if opcode in _LINKED[:2] else []
        branches = 0
        for inner in inside:
            name = graph.opcodes[graph.opcode[inner]]
            if name == "parameter":
                values = graph.results[graph.result_offset[inner] : graph.result_offset[inner + 1]]
                if opcode == "while":
                    groups.append(values.tolist())
                else:  # operand 0 chooses; each branch takes its share of the others
                    self._tie([read[1 + branches : 1 + branches + len(values)], values.tolist()])
                    branches += len(values)
            elif name == "return":
                out = graph.operands[graph.operand_offset[inner] : graph.operand_offset[inner + 1]]
                if len(out) == len(made):  # not the condition's
                    groups.append(out.tolist())
        self._tie(groups)

    def _tie(self, groups: Sequence[Sequence[int]]) -> None:
        """Link dimension d of the k-th tensor of every group."""
        for tensors in zip(*groups, strict=False):
            first = next((t for t in tensors if not self._free[t]), None)
            for other in tensors if first is not None else ():
                if other != first and not self._free[other]:
                    for d, size in enumerate(self._shapes[other]):
                        if size != 1:
                            self.links.append((self._offset[first] + d, self._offset[other] + d))
