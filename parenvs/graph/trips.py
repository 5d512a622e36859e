"""How often a loop runs.

A counted loop keeps a counter among its carried values. Its condition and its step are run on the
counter alone, so that any start, step, direction and comparison will do; a long loop is run for
some iterations, and the others follow from the step.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from parenvs.graph.checks import ELEMENT_TYPES, NESTED, fields_of

Numbers = tuple[int, ...]
"""Values of a tensor of rank 0 or 1, or of any tensor with one element."""
MOST_NUMBERS = 1024
"""Tensors with more elements are not followed."""
LARGEST = 2**64
"""Larger numbers, which a module would not hold either, are not followed."""
_WHOLE = frozenset(
    code for code, (name, _) in ELEMENT_TYPES.items() if name == "pred" or name[0] in "su"
)
"""Element types of whole numbers and truth values."""


class Program(NamedTuple):
    """The instructions of a module as lists; see ``Graph`` for their meaning.

    Attributes:
        opcodes: (I,) names.
        attributes: (I,) JSON texts.
        operands: (I,) tensors that each reads.
        results: (I,) tensors that each produces.
        parent: (I,) instruction whose computation each is in, -1 at the top.
        shapes: (T,) dimensions of each tensor.
        types: (T,) element type of each tensor.
    """

    opcodes: Sequence[str]
    attributes: Sequence[str]
    operands: Sequence[Sequence[int]]
    results: Sequence[Sequence[int]]
    parent: Sequence[int]
    shapes: Sequence[tuple[int, ...]]
    types: Sequence[int]

    def inside(self) -> dict[int, list[int]]:
        """Return the instructions in the computations of each loop and branch, in order."""
        result: dict[int, list[int]] = {}
        for row, outer in enumerate(self.parent):
            result.setdefault(outer, []).append(row)
        return result


def _quotient(a: int, b: int) -> int:
    # XLA divides toward zero, where Python's // rounds down.
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _inverse(a: int) -> int:
    return not a if isinstance(a, bool) else ~a


_AS_IT_IS = ("convert", "copy", "reshape", "bitcast", "broadcast", "transpose")
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
    "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
_FORMULAS: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": _quotient,
    "remainder": lambda a, b: a - b * _quotient(a, b),
    "maximum": max,
    "minimum": min,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": _inverse,
    "negate": operator.neg,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "select": lambda test, a, b: a if test else b,
    "clamp": lambda low, a, high: min(max(a, low), high),
    **dict.fromkeys(_AS_IT_IS, lambda a: a),
}
"""Opcode -> its value on whole numbers, element by element."""


def holds_numbers(shape: Sequence[int], element_type: int) -> bool:
    """Return whether a tensor is a list of whole numbers that is followed."""
    size = math.prod(shape)
    return element_type in _WHOLE and size <= MOST_NUMBERS and (len(shape) < 2 or size == 1)


def value_of(program: Program, row: int, known: Mapping[int, Numbers]) -> Numbers | None:
    """Return the whole numbers that an instruction computes of ``known`` ones, None if unknown."""
    opcode, results = program.opcodes[row], program.results[row]
    if len(results) != 1:
        return None
    shape = program.shapes[results[0]]
    if not holds_numbers(shape, program.types[results[0]]):
        return None
    fields = fields_of(program.attributes[row])
    size = math.prod(shape)
    operands = [known[t] for t in program.operands[row] if t in known]
    if opcode == "constant":
        return tuple(fields["value"]) if "value" in fields else None
    if opcode == "iota":
        return tuple(range(size))
    if not operands or len(operands) < len(program.operands[row]):
        return None
    if opcode == "concatenate":
        value = tuple(value for part in operands for value in part)
        return value if len(value) == size else None
    if opcode == "slice":
        return operands[0][slice(*fields["slices"][0])]
    if opcode == "dynamic-slice":
        # XLA moves a slice that begins out of range inside.
        first = min(max(operands[1][0], 0), len(operands[0]) - size)
        return operands[0][first : first + size]
    formula = _COMPARISONS.get(fields.get("direction", "")) or _FORMULAS.get(opcode)
    if formula is None or not size or any(len(values) not in (1, size) for values in operands):
        return None
    columns = [values * (size // len(values)) for values in operands]
    try:
        value = tuple(formula(*values) for values in zip(*columns, strict=True))
        return value if all(abs(number) < LARGEST for number in value) else None
    except (ArithmeticError, TypeError, ValueError):  # a division by zero; too many operands
        return None


def learn(program: Program, rows: Iterable[int], known: dict[int, Numbers]) -> None:
    """Add to ``known`` what the instructions ``rows`` compute from it."""
    for row in rows:
        value = value_of(program, row, known)
        if value is not None:
            known[program.results[row][0]] = value


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
    """Return how often a loop runs from known ``start`` values of its inputs, None if unknown."""
    condition, tested = _needed(program, loop.condition, {loop.test})
    carried = {k for k, t in enumerate(loop.seen) if t in tested}
    # Closure: carried values that the test depends on, through any number of iterations.
    while True:
        body, used = _needed(program, loop.body, {loop.outputs[k] for k in carried})
        more = carried | {k for k, t in enumerate(loop.inputs) if t in used}
        if more == carried:
            break
        carried = more
    # Only what the test needs is run: the loop's work may have any size.
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
    return {tensors[k]: value for k, value in values.items() if value is not None}


def _goes_on(
    program: Program, loop: Loop, condition: Sequence[int], values: Mapping[int, Numbers | None]
) -> bool | None:
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

    ``values`` are those before three iterations in a row, which ``passed`` others precede;
    ``condition`` holds the instructions that the test needs.
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

    # Exponential, then binary search: the test of a linear counter changes once.
    end = 1
    while not stops(end):
        end *= 2
        if end > 1 << 62:
            return None
    return passed + bisect_left(range(end + 1), True, key=stops)


def _needed(program: Program, rows: Sequence[int], tensors: set[int]) -> tuple[list[int], set[int]]:
    """Return those of ``rows`` that compute ``tensors``, and these with all that they need."""
    needed, result = set(tensors), []
    for row in reversed(rows):
        if not needed.isdisjoint(program.results[row]):
            needed.update(program.operands[row])
            result.append(row)
    return result[::-1], needed


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
                # What a loop hands on unchanged has its value inside, too, and behind the loop.
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


def inside_costs(
    program: Program, costs: Sequence[Sequence[float]]
) -> Iterator[tuple[int, int | None, np.ndarray]]:
    """Yield each loop and branch, its trip count, and the (kinds,) float64 costs inside it.

    Of a branch's computations the dearest counts. A loop of unknown length counts as one trip; its
    trip count, and a branch's, is None. ``costs`` is (I, kinds).
    """
    nested = [row for row, opcode in enumerate(program.opcodes) if opcode in NESTED]
    if not nested:
        return
    trips, inside = trip_counts(program), program.inside()
    total = np.array(costs, dtype=np.float64)
    for row in reversed(nested):  # what is inside has higher numbers
        rows = inside.get(row, [])
        ends = [k for k, inner in enumerate(rows, 1) if program.opcodes[inner] == "return"]
        parts = [total[part].sum(axis=0) for part in np.split(rows, ends) if len(part)]
        if program.opcodes[row] == "while":
            count = trips[row]
            total[row] = np.sum(parts, axis=0) * (1 if count is None else count)
        else:
            count = None
            total[row] = np.max(parts, axis=0)
        yield row, count, total[row]
