"""Tells what a loop goes through: layers, independent batches, or steps of a recurrence."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parenvs.graph.flops import ELEMENTWISE
from parenvs.graph.loops.integers import Numbers, Program, learn
from parenvs.graph.loops.trips import Loop
from parenvs.graph.loops.views import size_of

MAPPED = ELEMENTWISE | {"copy", "transpose", "bitcast"}
"""Opcodes that may treat each position of the leading dimension apart."""
VIEWS = ("reshape", "bitcast")
"""Opcodes that give the same numbers other dimensions."""

_HEAVY = ("dot", "convolution", "while", "conditional", "custom-call")
"""Opcodes that do a model's work."""


def goes_through_layers(
    program: Program, loop: Loop, start: Sequence[Numbers | None], weights: Collection[int]
) -> bool:
    """Return whether an iteration's own weights outweigh those that all iterations share.

    Its own are blocks of stacked weights, at places that the counter tells.

    Args:
        program: the module's instructions.
        loop: the loop.
        start: value of each of its inputs before the first iteration, None if it is not known.
        weights: inputs that hold weights, and are the same in every iteration.
    """
    first = {t: v for t, v in zip(loop.inputs, start, strict=True) if v is not None}
    learn(program, loop.body, first)
    second = {
        t: first[out] for t, out in zip(loop.inputs, loop.outputs, strict=True) if out in first
    }
    learn(program, loop.body, second)
    stacks, shared, own = set(weights), set(), 0
    for row in loop.body:
        opcode, operands = program.opcodes[row], program.operands[row]
        used = stacks.intersection(operands)
        if not used:
            continue
        if opcode in ("dynamic-slice", "gather") and any(
            first.get(t) != second.get(t) for t in operands[1:]
        ):
            own += size_of(program.shapes[program.results[row][0]])
        elif opcode in MAPPED or opcode in VIEWS:
            stacks.update(program.results[row])
        else:
            shared |= used
    return own > sum(size_of(program.shapes[t]) for t in shared)


def is_independent(program: Program, loop: Loop, start: Sequence[Numbers | None]) -> bool:
    """Return whether no iteration works on what an earlier one computed.

    Counters, sums over the iterations and stacks of their results are no work.

    Args:
        program: the module's instructions.
        loop: the loop.
        start: value of each of its inputs before the first iteration, None if it is not known.
    """
    carried = {
        before
        for before, after, value in zip(loop.inputs, loop.outputs, start, strict=True)
        if before != after and value is None
    }
    for row in loop.body:
        if not carried.isdisjoint(program.operands[row]):
            if program.opcodes[row] in _HEAVY:
                return False
            carried.update(program.results[row])
    return True


def blocks_of_stacks(program: Program) -> set[int]:
    """Return the tensors that loops read or write block by block.

    With them come the tensors of which they are casts, reshapes and joins, or which are put into
    them: what computes these can wait until a block is needed.
    """
    read: set[int] = set()
    written: set[int] = set()
    inside = program.inside()
    for row in range(len(program.opcodes) - 1, -1, -1):  # what is inside a loop has higher numbers
        opcode, operands, results = (
            program.opcodes[row],
            program.operands[row],
            program.results[row],
        )
        if opcode == "while":
            inputs = Loop.of(program, inside[row]).inputs
            read.update(t for t, inner in zip(operands, inputs, strict=True) if inner in read)
        elif opcode == "dynamic-update-slice":
            written.add(operands[1])
        elif program.parent[row] >= 0 and opcode in ("dynamic-slice", "gather"):
            read.add(operands[0])
        elif opcode in VIEWS or opcode == "concatenate":
            read.update(operands if not read.isdisjoint(results) else ())
            written.update(operands if not written.isdisjoint(results) else ())
        elif (opcode in MAPPED or opcode == "slice") and not read.isdisjoint(results):
            read.update(operands)
    return read | written
