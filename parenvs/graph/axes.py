"""Where a dimension of a tensor goes: through layouts, products and loops, until something ends it.

Sizes alone do not tell the batch. It may stand behind the members of an ensemble, behind time, or
behind the micro-batches that a loop goes through; what tells is what becomes of each dimension.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cache

from parenvs.errors import HloError
from parenvs.graph.checks.limits import FLOATING
from parenvs.graph.flow import CARRIES, Flow
from parenvs.graph.graph import Phase
from parenvs.graph.rules import OUT, Factor, Instruction, Kind, factors_of

STEPPED, CONTRACTED, REDUCED, SHARED = "stepped", "contracted", "reduced", "shared"
"""What ends a dimension, or is done to it: a loop goes through it, a product or a reduction sums
over it, a product pairs it with the same dimension of the other operand."""
_DONE = {Kind.KEPT: "", Kind.CONTRACTED: CONTRACTED, Kind.REDUCED: REDUCED, Kind.INDEXED: ""}
_BOTH_AND_RESULT = 3
"""Dimensions that a product pairs: one of each factor, and the result's."""
Move = tuple[list[int], str]
"""Dimensions of the result that a dimension becomes, and what is done to it, "" for nothing."""


@dataclass
class Journey:
    """Where a dimension of a tensor goes.

    Attributes:
        reached: tensors and dimensions.
        done: what is done to it on the way, and the instructions that do it.
    """

    reached: set[tuple[int, int]] = field(default_factory=set)
    done: dict[str, list[int]] = field(default_factory=dict)


class Axes:
    """The dimensions of a module's tensors on their way."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._factors: dict[tuple[object, ...], tuple[Factor, ...]] = {}

    def factors(self, index: int) -> tuple[Factor, ...]:
        """Factors of an instruction; none if no rule knows its opcode."""
        flow, graph = self.flow, self.flow.graph
        operands = tuple(flow.shapes[t] for t in flow.operands[index])
        results = tuple(flow.shapes[t] for t in flow.results[index])
        attribute = int(graph.attribute[index])
        key = (flow.opcode[index], attribute, operands, results)
        if key not in self._factors:
            fields = json.loads(graph.strings[attribute] or "{}")
            try:
                found = factors_of(Instruction(flow.opcode[index], fields, operands, results))
            except HloError:
                found = ()
            self._factors[key] = found
        return self._factors[key]

    def journey(self, tensor: int, dimension: int, instructions: Container[int]) -> Journey:
        """Follow a dimension through some of the instructions, into loops and out of them."""
        flow, found = self.flow, Journey()
        waiting = deque([(tensor, dimension)])
        found.reached.add((tensor, dimension))
        while waiting:
            tensor, dimension = waiting.popleft()
            new: list[tuple[int, int]] = []
            for index in flow.readers[tensor]:
                if index not in instructions or flow.opcode[index] == "return":
                    continue
                for place, operand in enumerate(flow.operands[index]):
                    if operand == tensor:
                        dimensions, done = self.move(index, place, dimension)
                        new += [(flow.results[index][0], d) for d in dimensions]
                        if done:
                            found.done.setdefault(done, []).append(index)
            for after in flow.after[tensor]:  # what loops and branches carry
                opcode = flow.opcode[flow.producer[after]]
                if opcode in CARRIES or opcode == "parameter":
                    new.append((after, dimension))
            for pair in new:
                if pair not in found.reached:
                    found.reached.add(pair)
                    waiting.append(pair)
        return found

    def move(self, index: int, place: int, dimension: int) -> Move:
        """What an instruction makes of a dimension of its operand at ``place``."""
        flow = self.flow
        if flow.opcode[index] == "dynamic-slice" and not place and flow.graph.parent[index] >= 0:
            before, after = (flow.shapes[row[index][0]] for row in (flow.operands, flow.results))
            if after[dimension] == 1 < before[dimension]:
                return [], STEPPED
        if flow.opcode[index] == "slice":
            return [dimension], ""  # all but the last of time is time
        for factor in self.factors(index):
            if (place, dimension) in factor.pairs:
                made = [d for slot, d in factor.pairs if slot == OUT]
                shared = flow.opcode[index] == "dot" and len(factor.pairs) == _BOTH_AND_RESULT
                return made, SHARED if shared else _DONE[factor.kind]
        return [], ""


def leading_samples(axes: Axes, tensor: int, instructions: Container[int]) -> int:
    """The first dimension of an input that is no loop's, as far as it alone tells.

    It is the first of all if a loop goes through that and a product sums over the next: then the
    loop takes one sample at a time.
    """
    shape = axes.flow.shapes[tensor]
    for dimension in range(len(shape)):
        done = axes.journey(tensor, dimension, instructions).done
        if dimension and CONTRACTED in done:
            return 0
        if STEPPED not in done:
            return dimension
    return 0


def samples(axes: Axes, inputs: Sequence[int], phase: Sequence[int]) -> tuple[int, str]:
    """The samples per batch, and a note if they are not the leading dimension of the inputs.

    Args:
        axes: the module's axes.
        inputs: (n,) tensors of the batch inputs.
        phase: (I,) of each instruction.

    Returns:
        The commonest size among the inputs' own dimensions of samples (of two that are as common,
        that of numbers, not of indices), times the micro-batches that
        a loop with a backward pass goes through; 1 without inputs. And the note, or "".
    """
    flow, instructions = axes.flow, forward_of(phase)
    data = flow.descendants(inputs)

    def of_data(index: int, first: int = 0) -> bool:
        return all(data[tensor] for tensor in flow.operands[index][first:])

    @cache
    def of_weights(size: int) -> set[tuple[int, int]]:
        """Where the dimensions of a size go that other inputs have, and are not repeated along."""
        found: set[tuple[int, int]] = set()
        for tensor in flow.graph.parameter_tensor.tolist():
            for dimension, length in enumerate(() if data[tensor] else flow.shapes[tensor]):
                if length == size:
                    found |= axes.journey(tensor, dimension, instructions).reached
        return found

    def with_members(index: int, size: int) -> bool:
        """Whether a product pairs a dimension of data with one that weights have of their own."""
        return any(
            (flow.operands[index][place], dimension) in of_weights(size)
            for factor in axes.factors(index)
            if len(factor.pairs) == _BOTH_AND_RESULT
            for place, dimension in factor.pairs
            if place != OUT and not data[flow.operands[index][place]]
        )

    votes: Counter[int] = Counter()
    floating: set[int] = set()  # of numbers, not of indices, which may be the edges of a graph
    ahead: dict[int, tuple[str, int]] = {}  # size of a dimension in front -> what it is, and loop
    sizes: dict[int, int] = {}
    for tensor in inputs:
        shape = flow.shapes[tensor]
        skipped: list[tuple[int, str, int]] = []
        attended: set[int] = set()  # products of data that sum over the leading dimension
        for dimension, size in enumerate(shape):
            done = axes.journey(tensor, dimension, instructions).done
            shared = [i for i in done.get(SHARED, ()) if with_members(i, size)]
            if dimension and not all(map(of_data, done.get(CONTRACTED, ()))):
                break
            summed = [i for i in done.get(CONTRACTED, ()) if of_data(i)]
            if attended and attended.isdisjoint(done.get(SHARED, ())):
                break
            if not dimension and summed and STEPPED not in done:
                attended = set(summed)
                skipped.append((size, CONTRACTED, -1))
            elif STEPPED in done:
                skipped.append((size, STEPPED, int(flow.graph.parent[done[STEPPED][0]])))
            elif shared:
                skipped.append((size, SHARED, -1))
            else:
                sizes[tensor] = dimension
                ahead.update((size, (what, loop)) for size, what, loop in skipped)
                break
    found = {flow.shapes[t][d] for t, d in sizes.items() if d}
    for tensor in inputs:
        shape = flow.shapes[tensor]
        dimension = sizes.get(tensor, 0)
        if not dimension and shape[:1] and shape[0] in ahead:
            if len(shape) == 1 and len(inputs) > 1:
                continue
            dimension = int(len(shape) > 1 and shape[1] in found)
        if shape and shape[dimension]:
            votes[shape[dimension]] += 1
            if int(flow.graph.element_type[tensor]) in FLOATING:
                floating.add(shape[dimension])
    if not votes:
        return 1, ""
    for index in sorted(instructions):  # edges are no samples, nor nodes of several graphs
        if len(votes) > 1 and sums_rows(flow, index) and of_data(index, 1):
            votes.pop(flow.shapes[flow.operands[index][-1]][0], None)
    size = max(votes, key=lambda size: (votes[size], size in floating))
    if size not in found:
        return size, ""
    number, (what, loop) = next(iter(ahead.items()))
    if what == CONTRACTED:
        return size, (
            f"attention goes over the {number:,} leading positions of batch inputs, taken as time; "
            f"the batch is taken as the {size:,} samples behind them"
        )
    if what == SHARED:
        return size, (
            f"weights and batch inputs have {number} in front alike, taken as models side by side; "
            f"the batch is taken as the {size:,} samples that each of them sees"
        )
    backward = [
        i
        for i, opcode in enumerate(flow.opcode)
        if opcode in ("dot", "convolution") and phase[i] == Phase.BACKWARD
    ]
    if any(_is_inside(flow, i, loop) for i in backward):
        return size * number, (
            f"a loop with a backward pass goes through the {number:,} leading positions of the "
            f"batch inputs, taken as micro-batches: the batch is taken as {number:,} x {size:,}"
        )
    return size, (
        f"a loop goes through the {number:,} leading positions of batch inputs, taken as time; the "
        f"batch is taken as the {size:,} samples behind them"
    )


def sums_rows(flow: Flow, index: int) -> bool:
    """Whether an instruction sums rows by an index, as the edges of a node or its graph's nodes."""
    if flow.opcode[index] != "scatter":
        return False
    into, _, rows = (flow.shapes[t] for t in flow.operands[index][:3])
    return into[1:] == rows[1:] and into < rows


def forward_of(phase: Sequence[int]) -> set[int]:
    """Return the instructions of the forward pass."""
    return {index for index, found in enumerate(phase) if found == Phase.FORWARD}


def _is_inside(flow: Flow, index: int, loop: int) -> bool:
    """Whether an instruction is in a loop or branch, or in one that is in it."""
    while index > loop:
        index = int(flow.graph.parent[index])
    return index == loop
