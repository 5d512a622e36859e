"""The factor rules applied to a graph: which dimensions are tied, and which exclude others."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parenvs.errors import HloError
from parenvs.graph.graph import Graph, Phase
from parenvs.graph.opcodes import Factor, Instruction, Kind, factors_of, target_rule

LINKED = ("while", "conditional", "opt-barrier", "optimization-barrier")
"""Opcodes through which values go as they are, into and out of the computations inside."""
_SOURCES = ("parameter", "constant", "iota", "partition-id", "replica-id")


@dataclass(frozen=True)
class Factors:
    """The factors and links of every instruction; dimensions are positions in ``graph.dims``.

    Attributes:
        graph: the graph.
        rules: the rule set.
        links: (L, 2) int64 pairs of dimensions that one factor holds.
        link_at: (L,) int32, the instruction whose factor it is.
        instruction: (F,) int32: the instruction of each factor, ascending; those of the entry
            parameters follow, a factor for each dimension.
        member: (F,) int64, a dimension of each factor.
        kind: (F,) uint8, ``Kind`` of each factor.
        untouchable: (U, 2) int64: an instruction, and a dimension that is in none of its factors.
    """

    graph: Graph
    rules: str
    links: np.ndarray
    link_at: np.ndarray
    instruction: np.ndarray
    member: np.ndarray
    kind: np.ndarray
    untouchable: np.ndarray

    @classmethod
    def of(cls, graph: Graph, rules: str) -> Factors:
        """Apply the rules.

        Raises:
            HloError: an opcode without a rule; names the instruction.
        """
        reader = _Reader(graph, rules)
        reader.read()
        return cls(
            graph,
            rules,
            np.array([pair for pair, _ in reader.links], dtype=np.int64).reshape(-1, 2),
            np.array([index for _, index in reader.links], dtype=np.int32),
            np.array([index for index, _, _ in reader.factors], dtype=np.int32),
            np.array([member for _, member, _ in reader.factors], dtype=np.int64),
            np.array([kind for _, _, kind in reader.factors], dtype=np.uint8),
            np.array(reader.untouchable, dtype=np.int64).reshape(-1, 2),
        )

    @cached_property
    def partial(self) -> np.ndarray:
        """(F,) bool, whether splitting a factor leaves a partial result, to be all-reduced."""
        return self.kind != Kind.KEPT


class _Reader:
    """Goes over the instructions once and collects the links and factors of each."""

    def __init__(self, graph: Graph, rules: str) -> None:
        self.graph, self.rules = graph, rules
        self.links: list[tuple[tuple[int, int], int]] = []
        self.factors: list[tuple[int, int, int]] = []
        self.untouchable: list[tuple[int, int]] = []
        self.shapes = [graph.shape(t) for t in range(len(graph.element_type))]
        self.offset = graph.dim_offset.tolist()
        self.known: dict[tuple[object, ...], tuple[Factor, ...]] = {}
        self.free = free_tensors(graph).tolist()
        self.warned: set[str] = set()

    def read(self) -> None:
        """All instructions, in order."""
        graph = self.graph
        operands, results = graph.operands.tolist(), graph.results.tolist()
        ins, outs = graph.operand_offset.tolist(), graph.result_offset.tolist()
        free = graph.free.tolist()
        for index, code in enumerate(graph.opcode.tolist()):
            opcode = graph.opcodes[code]
            read = operands[ins[index] : ins[index + 1]]
            written = results[outs[index] : outs[index + 1]]
            if opcode in LINKED:
                self.pass_through(index, opcode, read, written)
            elif opcode not in _SOURCES and opcode != "return" and not free[index]:
                self.instruction(index, opcode, read, written)
        self.entry_parameters()

    def instruction(self, index: int, opcode: str, read: list[int], written: list[int]) -> None:
        """Links and factors of one instruction, and the dimensions that are in none."""
        slots = {**dict(enumerate(read)), **{-1 - k: t for k, t in enumerate(written)}}
        linked: set[int] = set()
        for factor in self.factors_of(index, opcode, read, written):
            if factor.kind == Kind.REDUCED and self.whole(index, opcode, written):
                continue
            members = [
                self.offset[slots[slot]] + d
                for slot, d in factor.pairs
                if not self.free[slots[slot]]
            ]
            if members:
                self.links += [((members[0], other), index) for other in members[1:]]
                linked.update(members)
                self.factors.append((index, members[0], int(factor.kind)))
        for tensor in slots.values():
            if not self.free[tensor]:
                for d, size in enumerate(self.shapes[tensor]):
                    if size != 1 and self.offset[tensor] + d not in linked:
                        self.untouchable.append((index, self.offset[tensor] + d))

    def whole(self, index: int, opcode: str, written: list[int]) -> bool:
        """Whether the rule set leaves the dimensions whole that an instruction reduces.

        Automap's does for every ``reduce``, but for numbers made of gradients and weights after the
        forward pass, like the norm by which gradients are clipped: they join all variables, so that
        otherwise no class were left.
        """
        if self.rules != "automap" or opcode != "reduce":
            return False
        number = all(size == 1 for tensor in written for size in self.shapes[tensor])
        return not number or bool(self.graph.phase[index] == Phase.FORWARD)

    def entry_parameters(self) -> None:
        """With one mesh axis a tensor is split once, even if no instruction reads it.

        These rows stand last, so that an instruction that says the same is named instead.
        """
        graph = self.graph
        if "parameter" in graph.opcodes:
            code = graph.opcodes.index("parameter")
            for index in np.flatnonzero((graph.opcode == code) & (graph.parent < 0)).tolist():
                first, end = graph.result_offset[index : index + 2]
                for tensor in graph.results[first:end].tolist():
                    for d, size in enumerate(self.shapes[tensor]):
                        if size != 1:
                            self.factors.append((index, self.offset[tensor] + d, int(Kind.KEPT)))

    def factors_of(
        self, index: int, opcode: str, read: Sequence[int], written: Sequence[int]
    ) -> tuple[Factor, ...]:
        """Factors of one instruction: layers repeat, a few hundred kinds for tens of thousands."""
        operands = tuple(self.shapes[t] for t in read)
        results = tuple(self.shapes[t] for t in written)
        attribute = int(self.graph.attribute[index])
        key = (opcode, attribute, operands, results)
        if key not in self.known:
            text = self.graph.strings[attribute]
            instruction = Instruction(opcode, json.loads(text) if text else {}, operands, results)
            if opcode == "custom-call":
                self.warn(index, instruction.attribute.get("target", ""))
            try:
                self.known[key] = factors_of(instruction)
            except HloError as error:
                name = self.graph.strings[self.graph.op_name[index]]
                raise HloError(f"{self.graph.name}: instruction {index} {name}: {error}") from None
        return self.known[key]

    def warn(self, index: int, target: str) -> None:
        """Say once of each target that nobody knows what it does."""
        if target not in self.warned and target_rule(target) is None:
            self.warned.add(target)
            name = self.graph.op_names(np.array([index]))[0]
            warnings.warn(
                f"{self.graph.name}: no rule knows the custom call {target!r} ({name}); "
                "its dimensions are never partitioned",
                stacklevel=2,
            )

    def pass_through(self, index: int, opcode: str, read: list[int], written: list[int]) -> None:
        """Values that go through an instruction as they are: carried state, branches, barriers."""
        graph = self.graph
        groups = [written]
        if opcode != "conditional":
            groups.append(read)
        inside = np.flatnonzero(graph.parent == index).tolist() if opcode in LINKED[:2] else []
        branches = 0
        for inner in inside:
            name = graph.opcodes[graph.opcode[inner]]
            if name == "parameter":
                values = graph.results[graph.result_offset[inner] : graph.result_offset[inner + 1]]
                if opcode == "while":
                    groups.append(values.tolist())
                else:  # operand 0 chooses; each branch takes its share of the others
                    share = read[1 + branches : 1 + branches + len(values)]
                    self.tie(index, [share, values.tolist()])
                    branches += len(values)
            elif name == "return":
                out = graph.operands[graph.operand_offset[inner] : graph.operand_offset[inner + 1]]
                if len(out) == len(written):  # not the condition's
                    groups.append(out.tolist())
        self.tie(index, groups)

    def tie(self, index: int, groups: Sequence[Sequence[int]]) -> None:
        """Link dimension d of the k-th tensor of every group."""
        for tensors in zip(*groups, strict=False):
            first = next((t for t in tensors if not self.free[t]), None)
            for other in self._others(tensors, first):
                for d, size in enumerate(self.shapes[other]):
                    if size != 1:
                        pair = (self.offset[first] + d, self.offset[other] + d)
                        self.links.append((pair, index))

    def _others(self, tensors: Iterable[int], first: int | None) -> list[int]:
        return [] if first is None else [t for t in tensors if t != first and not self.free[t]]


def free_tensors(graph: Graph) -> np.ndarray:
    """(T,) bool: results of free instructions, which take part in no rule."""
    free = np.zeros(len(graph.element_type), dtype=bool)
    free[graph.results[np.repeat(graph.free, np.diff(graph.result_offset))]] = True
    return free
