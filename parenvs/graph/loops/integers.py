"""Whole numbers that are known before a module runs: what it computes from constants alone.

They tell how often a loop runs, and which layer an iteration reads.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from parenvs.graph.checks.limits import ELEMENT_TYPES

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
        found: dict[int, list[int]] = {}
        for row, outer in enumerate(self.parent):
            found.setdefault(outer, []).append(row)
        return found


def _quotient(a: int, b: int) -> int:
    """Return a / b, rounded towards zero as in HLO."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _inverse(a: int) -> int:
    """Return the inverse of all bits, of which a truth value has one."""
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


@lru_cache(maxsize=4096)
def fields_of(attribute: str) -> dict[str, Any]:
    """Return the fields of an instruction's ``attribute``; they are not to be changed."""
    return json.loads(attribute) if attribute else {}


def holds_numbers(shape: Sequence[int], element_type: int) -> bool:
    """Return whether a tensor is a list of whole numbers that is followed."""
    size = math.prod(shape)
    return element_type in _WHOLE and size <= MOST_NUMBERS and (len(shape) < 2 or size == 1)


def value_of(program: Program, row: int, known: Mapping[int, Numbers]) -> Numbers | None:
    """Return the whole numbers that an instruction computes, None if they are not known.

    Args:
        program: the module's instructions.
        row: the instruction.
        known: tensor -> value of the known ones; others are unknown.
    """
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
