"""Whole numbers that are known before a module runs, and the trip counts that they give.

A counted loop keeps a counter among its carried values. Its condition and its step are run on the
counter alone, so that any start, step, direction and comparison will do.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from parenvs.graph.proto import ELEMENT_TYPES

MOST_TRIPS = 1_000_000
"""Loops that run more often count as loops of unknown length."""
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
        found: dict[int, list[int]] = {}
        for row, outer in enumerate(self.parent):
            found.setdefault(outer, []).append(row)
        return found


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


def _quotient(a: int, b: int) -> int:
    """Return a / b, rounded towards zero as in HLO."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _inverse(a: int) -> int:
    return not a if isinstance(a, bool) else ~a


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
    **dict.fromkeys(
        ("convert", "copy", "reshape", "bitcast", "broadcast", "transpose", "optimization-barrier"),
        lambda a: a,
    ),
}
"""Opcode -> its value on whole numbers."""


@lru_cache(maxsize=4096)
def fields_of(attribute: str) -> dict[str, Any]:
    """Return the fields of an instruction's ``attribute``; they are not to be changed."""
    return json.loads(attribute) if attribute else {}


def is_number(shape: Sequence[int], element_type: int) -> bool:
    """Return whether a tensor is one whole number or truth value, of whatever rank."""
    return element_type in _WHOLE and all(size == 1 for size in shape)


def value_of(program: Program, row: int, known: Mapping[int, int]) -> int | None:
    """Return the whole number that an instruction computes, None if it is not known.

    Args:
        program: the module's instructions.
        row: the instruction.
        known: tensor -> value of the known ones; others are unknown.
    """
    opcode, results = program.opcodes[row], program.results[row]
    if len(results) != 1 or not is_number(program.shapes[results[0]], program.types[results[0]]):
        return None
    fields = fields_of(program.attributes[row]) if opcode in ("constant", "compare") else {}
    if opcode == "constant":
        return fields.get("value")
    formula = _COMPARISONS.get(fields.get("direction", "")) or _FORMULAS.get(opcode)
    operands = [known[t] for t in program.operands[row] if t in known]
    if formula is None or not operands or len(operands) < len(program.operands[row]):
        return None
    try:
        return formula(*operands)
    except (ArithmeticError, TypeError, ValueError):  # a division by zero; too many operands
        return None


def learn(program: Program, rows: Iterable[int], known: dict[int, int]) -> None:
    """Add to ``known`` what the instructions ``rows`` compute from it."""
    for row in rows:
        value = value_of(program, row, known)
        if value is not None:
            known[program.results[row][0]] = value


def trip_count(program: Program, loop: Loop, start: Sequence[int | None]) -> int | None:
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
        known: dict[int, int] = {loop.seen[k]: v for k, v in values.items() if v is not None}
        learn(program, condition, known)
        if loop.test not in known:
            return None
        if not known[loop.test]:
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

    def visit(rows: Iterable[int], known: dict[int, int]) -> None:
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
