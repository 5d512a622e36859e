"""How often a loop runs.

A counted loop keeps a counter among its carried values. Its condition and its step are run on the
counter alone, so that any start, step, direction and comparison will do; a long loop is run for
some iterations, and the others follow from the step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from parenvs.graph.loops.integers import Numbers, Program, fields_of, learn

_STEPS = 2048
"""A loop that runs more often must have a counter that grows by the same step each time."""
_LINEAR = ("add", "subtract", "constant", "copy", "convert", "reshape", "bitcast")
_MONOTONE = ("LT", "LE", "GT", "GE")


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
    values = [{k: start[k] for k in carried}]  # before each iteration
    for trips in range(_STEPS):
        goes_on = _goes_on(program, loop, condition, values[-1])
        if not goes_on:
            return trips if goes_on is not None else None
        known = _known(loop.inputs, values[-1])
        learn(program, body, known)
        values.append({k: known.get(loop.outputs[k]) for k in carried})
    if any(program.opcodes[row] not in _LINEAR for row in body):
        return None
    return _extrapolated(program, loop, condition, values[-3:], _STEPS - 2)


def _known(tensors: Sequence[int], values: Mapping[int, Numbers | None]) -> dict[int, Numbers]:
    """Return the known ones of carried values, by tensor."""
    return {tensors[k]: value for k, value in values.items() if value is not None}


def _goes_on(
    program: Program, loop: Loop, condition: Sequence[int], values: Mapping[int, Numbers | None]
) -> bool | None:
    """Return whether the loop goes on with these carried values, None if that is not known."""
    known = _known(loop.seen, values)
    learn(program, condition, known)
    return bool(known[loop.test][0]) if loop.test in known else None


def _extrapolated(
    program: Program,
    loop: Loop,
    condition: Sequence[int],
    values: Sequence[Mapping[int, Numbers | None]],
    passed: int,
) -> int | None:
    """Return the trip count of a loop whose carried values grow by the same step each time.

    Args:
        program: the module's instructions.
        loop: the loop.
        condition: the instructions that its test needs.
        values: carried values before three iterations in a row.
        passed: iterations before the first of these.
    """
    columns = [[row[k] for row in values] for k in values[0]]
    directions = {
        fields_of(program.attributes[row]).get("direction", "LT")
        for row in condition
        if program.opcodes[row] not in _LINEAR
    }
    numbers = [[value[0] for value in column if value and len(value) == 1] for column in columns]
    if not directions.issubset(_MONOTONE) or any(len(column) < 3 for column in numbers):
        return None
    if any(b - a != c - b for a, b, c in numbers):
        return None

    def stops(further: int) -> bool:
        then: dict[int, Numbers | None] = {
            k: (a + further * (b - a),) for k, (a, b, _) in zip(values[0], numbers, strict=True)
        }
        return not _goes_on(program, loop, condition, then)

    end = 1
    while not stops(end):
        end *= 2
        if end > 1 << 62:
            return None
    return passed + bisect_left(range(end + 1), True, key=stops)


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
