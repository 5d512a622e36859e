"""How often a loop runs.

A counted loop keeps a counter among its carried values. Its condition and its step are run on the
counter alone, so that any start, step, direction and comparison will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parenvs.graph.loops.integers import Numbers, Program, learn

MOST_TRIPS = 1_000_000
"""Loops that run more often count as loops of unknown length."""


class Loop(NamedTuple):
    """A ``while``: the rows of its two computations, and the tensors that are carried.

    Attributes:
        inputs: tensors that the body starts from.
        body: its instructions, without its parameter and its return.
        outputs: tensors that it returns, in the order of ``inputs``.
        seen: tensors that the condition starts from.
        condition: its instructions, likewise.
        test: tensor that tells whether the loop goes on.
    """

    inputs: Sequence[int]
    body: Sequence[int]
    outputs: Sequence[int]
    seen: Sequence[int]
    condition: Sequence[int]
    test: int

    @classmethod
    def of(cls, program: Program, rows: Sequence[int]) -> Loop:
        """Return the loop whose instructions are ``rows``: a body, then a condition."""
        split = [program.opcodes[row] for row in rows].index("return") + 1
        parts = []
        for block in (rows[:split], rows[split:]):
            inputs = [
                t for x in block if program.opcodes[x] == "parameter" for t in program.results[x]
            ]
            inner = [x for x in block if program.opcodes[x] not in ("parameter", "return")]
            parts.append((inputs, inner, program.operands[block[-1]]))
        (inputs, body, outputs), (seen, condition, test) = parts
        return cls(inputs, body, outputs, seen, condition, test[0])


def trip_count(program: Program, loop: Loop, start: Sequence[Numbers | None]) -> int | None:
    """Return how often a loop runs, None if that is not known.

    Args:
        program: the module's instructions.
        loop: the loop.
        start: value of each of its inputs before the first iteration, None if it is not known.
    """
    condition, tested = _needed(program, loop.condition, {loop.test})
    carried = {k for k, t in enumerate(loop.seen) if t in tested}
    while True:
        body, used = _needed(program, loop.body, {loop.outputs[k] for k in carried})
        more = carried | {k for k, t in enumerate(loop.inputs) if t in used}
        if more == carried:
            break
        carried = more
    values = {k: start[k] for k in carried}
    for trips in range(MOST_TRIPS):
        if None in values.values():
            return None
        known: dict[int, Numbers] = {loop.seen[k]: v for k, v in values.items() if v is not None}
        learn(program, condition, known)
        if loop.test not in known:
            return None
        if not known[loop.test][0]:
            return trips
        known = {loop.inputs[k]: v for k, v in values.items() if v is not None}
        learn(program, body, known)
        values = {k: known.get(loop.outputs[k]) for k in carried}
    return None


def _needed(program: Program, rows: Sequence[int], tensors: set[int]) -> tuple[list[int], set[int]]:
    """Return those of ``rows`` that compute ``tensors``, and these with all that they need."""
    needed, found = set(tensors), []
    for row in reversed(rows):
        if not needed.isdisjoint(program.results[row]):
            needed.update(program.operands[row])
            found.append(row)
    return found[::-1], needed


def trip_counts(program: Program) -> dict[int, int | None]:
    """Return how often each loop of a module runs, None where that is not known."""
    inside = program.inside()
    counts: dict[int, int | None] = {}

    def visit(rows: Iterable[int], known: dict[int, Numbers]) -> None:
        for row in rows:
            if program.opcodes[row] == "while":
                loop = Loop.of(program, inside[row])
                start = [known.get(t) for t in program.operands[row]]
                counts[row] = trip_count(program, loop, start)
                fixed = [
                    (before, after, value)
                    for before, out, after, value in zip(
                        loop.inputs, loop.outputs, program.results[row], start, strict=True
                    )
                    if before == out and value is not None
                ]
                visit(loop.body, {before: value for before, _, value in fixed})
                visit(loop.condition, {})
                known.update((after, value) for _, after, value in fixed)
            elif row in inside:
                visit(inside[row], {})
            else:
                learn(program, (row,), known)

    visit(inside.get(-1, []), {})
    return counts
