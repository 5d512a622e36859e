"""A module's instructions as rows, and how often its loops run.

A counted loop keeps a counter among its carried values. Its condition and its step are run on the
counter alone, so that any start, step, direction and comparison will do; a long loop is run for
some iterations, and the others follow from the step.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from parenvs.graph.checks import ELEMENT_TYPES, NESTED, fields_of, rows_of
from parenvs.graph.graph import TYPES, Graph, offsets_of, pack_texts

Numbers = tuple[int, ...]
"""Values of a tensor of rank 0 or 1, or of any tensor with one element."""
Values = Mapping[int, Numbers | None]
"""What a loop carries, by position."""
Start = Sequence[Numbers | None]
"""The inputs of a loop, as far as they are known."""
MOST_NUMBERS = 1024
"""Tensors with more elements are not followed."""
LARGEST = 2**64
"""Larger numbers, which a module would not hold either, are not followed."""
_WHOLE = frozenset(
    code for code, (name, _) in ELEMENT_TYPES.items() if name == "pred" or name[0] in "su"
)
"""Element types of whole numbers and truth values."""


class Row(NamedTuple):
    """One instruction; see ``Graph`` for the meaning of its fields."""

    opcode: str
    operands: list[int]
    results: list[int]
    flops: float = 0.0
    bytes_accessed: float = 0.0
    phase: int = 0
    parent: int = -1
    name: str = ""
    attribute: str = ""


_COLUMNS = ("flops", "bytes_accessed", "phase", "parent")
"""Fields of rows that are those of a graph."""


class Program:
    """The instructions of a module as rows, which can be read one by one and added to.

    Attributes:
        rows: the instructions; those in a loop or branch follow it.
        shapes, types: (T,) dimensions and element type of each tensor.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.shapes: list[tuple[int, ...]] = []
        self.types: list[int] = []

    @classmethod
    def of(cls, graph: Graph) -> Program:
        """Return the program of a graph."""
        program = cls()
        columns = (
            map(graph.opcodes.__getitem__, graph.opcode.tolist()),
            map(list, rows_of(graph.operands, graph.operand_offset)),
            map(list, rows_of(graph.results, graph.result_offset)),
            graph.flops.tolist(),
            graph.bytes_accessed.tolist(),
            graph.phase.tolist(),
            graph.parent.tolist(),
            map(graph.strings.__getitem__, graph.op_name.tolist()),
            map(graph.strings.__getitem__, graph.attribute.tolist()),
        )
        program.rows = list(map(Row._make, zip(*columns, strict=True)))
        program.shapes = rows_of(graph.dims, graph.dim_offset)
        program.types = graph.element_type.tolist()
        return program

    def tensor(self, shape: tuple[int, ...], element_type: int) -> int:
        """Add a tensor and return its number."""
        self.shapes.append(shape)
        self.types.append(element_type)
        return len(self.shapes) - 1

    def inside(self) -> dict[int, list[int]]:
        """Return the instructions in the computations of each loop and branch, in order."""
        result: dict[int, list[int]] = {}
        for index, row in enumerate(self.rows):
            result.setdefault(row.parent, []).append(index)
        return result

    def arrays(
        self, paths: Sequence[str], texts: Iterable[str] | None = None, **lists: Sequence[int]
    ) -> dict[str, Any]:
        """Return the fields of the ``Graph`` that has these instructions.

        ``paths`` are (P,) those of the entry parameters; ``texts`` are the first of the strings
        (default: names and attributes in the order of the rows); ``lists`` are other fields.
        """
        rows = self.rows
        names, attributes = [row.name for row in rows], [row.attribute for row in rows]
        if texts is None:
            texts = chain.from_iterable(zip(names, attributes, strict=True))
        opcodes = _numbered(row.opcode for row in rows)
        strings = _numbered(["", *texts, *attributes, *paths])
        ragged: dict[str, tuple[str, Sequence[Sequence[int]]]] = {
            "dim": ("dims", self.shapes),
            "operand": ("operands", [row.operands for row in rows]),
            "result": ("results", [row.results for row in rows]),
        }
        values: dict[str, Any] = {
            **{key: list(chain.from_iterable(parts)) for key, parts in ragged.values()},
            **{f"{key}_offset": offsets_of(parts) for key, (_, parts) in ragged.items()},
            **{key: [getattr(row, key) for row in rows] for key in _COLUMNS},
            "element_type": self.types,
            "opcode": [opcodes[row.opcode] for row in rows],
            "op_name": [strings[name] for name in names],
            "attribute": [strings[text] for text in attributes],
            "parameter_path": [strings[path] for path in paths],
            "opcode_names": pack_texts(list(opcodes)),
            "string_table": pack_texts(list(strings)),
            **lists,
        }
        return {key: np.array(value, TYPES[key]) for key, value in values.items()}


def _numbered(texts: Iterable[str]) -> dict[str, int]:
    return {text: number for number, text in enumerate(dict.fromkeys(texts))}


def _quotient(a: int, b: int) -> int:
    # XLA divides toward zero, where Python's // rounds down.
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


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
    "not": lambda a: not a if isinstance(a, bool) else ~a,
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


def value_of(program: Program, row: Row, known: Mapping[int, Numbers]) -> Numbers | None:
    """Return the whole numbers that an instruction computes of ``known`` ones, None if unknown."""
    if len(row.results) != 1:
        return None
    shape = program.shapes[row.results[0]]
    if not holds_numbers(shape, program.types[row.results[0]]):
        return None
    fields = fields_of(row.attribute)
    size = math.prod(shape)
    operands = [known[t] for t in row.operands if t in known]
    if row.opcode == "constant":
        return tuple(fields["value"]) if "value" in fields else None
    if row.opcode == "iota":
        return tuple(range(size))
    if not operands or len(operands) < len(row.operands):
        return None
    if row.opcode == "concatenate":
        value = tuple(value for part in operands for value in part)
        return value if len(value) == size else None
    if row.opcode == "slice":
        return operands[0][slice(*fields["slices"][0])]
    if row.opcode == "dynamic-slice":
        # XLA moves a slice that begins out of range inside.
        first = min(max(operands[1][0], 0), len(operands[0]) - size)
        return operands[0][first : first + size]
    formula = _COMPARISONS.get(fields.get("direction", "")) or _FORMULAS.get(row.opcode)
    if formula is None or not size or any(len(values) not in (1, size) for values in operands):
        return None
    columns = [values * (size // len(values)) for values in operands]
    try:
        value = tuple(formula(*values) for values in zip(*columns, strict=True))
        return value if all(abs(number) < LARGEST for number in value) else None
    except (ArithmeticError, TypeError, ValueError):  # a division by zero; too many operands
        return None


def learn(program: Program, indices: Iterable[int], known: dict[int, Numbers]) -> None:
    """Add to ``known`` what some instructions compute from it."""
    for index in indices:
        row = program.rows[index]
        value = value_of(program, row, known)
        if value is not None:
            known[row.results[0]] = value


_STEPS = 2048
"""A loop that runs more often must have a counter that grows by the same step each time."""
_LINEAR = ("add", "subtract", "constant", "copy", "convert", "reshape", "bitcast")
_MONOTONE = ("LT", "LE", "GT", "GE")


class Loop(NamedTuple):
    """A ``while``: its two computations, and the tensors that are carried.

    Attributes:
        program: what it is part of.
        inputs: tensors that the body starts from.
        body: indices of its instructions, without its parameter and its return.
        outputs: tensors that it returns, in the order of ``inputs``.
        tested: tensors that the condition starts from.
        condition: its instructions, likewise.
        test: tensor that tells whether the loop goes on.
    """

    program: Program
    inputs: Sequence[int]
    body: Sequence[int]
    outputs: Sequence[int]
    tested: Sequence[int]
    condition: Sequence[int]
    test: int

    @classmethod
    def of(cls, program: Program, indices: Sequence[int]) -> Loop:
        """Return the loop of the instructions ``indices``: a body, then a condition."""
        rows = program.rows
        split = [rows[k].opcode for k in indices].index("return") + 1
        parts = []
        for block in (indices[:split], indices[split:]):
            inputs = [t for k in block if rows[k].opcode == "parameter" for t in rows[k].results]
            inner = [k for k in block if rows[k].opcode not in ("parameter", "return")]
            parts.append((inputs, inner, rows[block[-1]].operands))
        (inputs, body, outputs), (tested, condition, test) = parts
        return cls(program, inputs, body, outputs, tested, condition, test[0])

    @property
    def rows(self) -> list[Row]:
        """The instructions of the body."""
        return [self.program.rows[k] for k in self.body]

    def needed(self, indices: Sequence[int], tensors: set[int]) -> tuple[list[int], set[int]]:
        """Return the instructions that compute ``tensors``, and all tensors that they need."""
        needed, result = set(tensors), []
        for index in reversed(indices):
            row = self.program.rows[index]
            if not needed.isdisjoint(row.results):
                needed.update(row.operands)
                result.append(index)
        return result[::-1], needed

    def goes_on(self, condition: Sequence[int], values: Values) -> bool | None:
        """Return whether the loop runs again with carried values, None if that is not known."""
        known = _known(self.tested, values)
        learn(self.program, condition, known)
        return bool(known[self.test][0]) if self.test in known else None


def trip_count(loop: Loop, start: Start) -> int | None:
    """Return how often a loop runs from known ``start`` values of its inputs, None if unknown."""
    program = loop.program
    condition, needed = loop.needed(loop.condition, {loop.test})
    carried = {k for k, t in enumerate(loop.tested) if t in needed}
    # Closure: carried values that the test depends on, through any number of iterations.
    while True:
        body, used = loop.needed(loop.body, {loop.outputs[k] for k in carried})
        more = carried | {k for k, t in enumerate(loop.inputs) if t in used}
        if more == carried:
            break
        carried = more
    # Only what the test needs is run: the loop's work may have any size.
    values = [{k: start[k] for k in carried}]  # before each iteration
    for trips in range(_STEPS):
        goes_on = loop.goes_on(condition, values[-1])
        if not goes_on:
            return trips if goes_on is not None else None
        known = _known(loop.inputs, values[-1])
        learn(program, body, known)
        values.append({k: known.get(loop.outputs[k]) for k in carried})
    if any(program.rows[k].opcode not in _LINEAR for k in body):
        return None
    # The carried values must grow by the same step each time: then the rest follows.
    columns = [[row[k] for row in values[-3:]] for k in carried]
    directions = {
        fields_of(row.attribute).get("direction", "LT")
        for row in map(program.rows.__getitem__, condition)
        if row.opcode not in _LINEAR
    }
    numbers = [[value[0] for value in column if value and len(value) == 1] for column in columns]
    if not directions.issubset(_MONOTONE) or any(len(column) < 3 for column in numbers):
        return None
    if any(b - a != c - b for a, b, c in numbers):
        return None

    def stops(further: int) -> bool:
        values = ((a + further * (b - a),) for a, b, _ in numbers)
        return not loop.goes_on(condition, dict(zip(carried, values, strict=True)))

    # Exponential, then binary search: the test of a linear counter changes once.
    end = 1
    while not stops(end):
        end *= 2
        if end > 1 << 62:
            return None
    return _STEPS - 2 + bisect_left(range(end + 1), True, key=stops)


def _known(tensors: Sequence[int], values: Values) -> dict[int, Numbers]:
    return {tensors[k]: value for k, value in values.items() if value is not None}


def trip_counts(program: Program) -> dict[int, int | None]:
    """Return how often each loop of a module runs, None where that is not known."""
    inside = program.inside()
    counts: dict[int, int | None] = {}

    def visit(indices: Iterable[int], known: dict[int, Numbers]) -> None:
        for index in indices:
            row = program.rows[index]
            if row.opcode == "while":
                loop = Loop.of(program, inside[index])
                start = [known.get(t) for t in row.operands]
                counts[index] = trip_count(loop, start)
                # What a loop hands on unchanged has its value inside, too, and behind the loop.
                invariants: dict[int, Numbers] = {}
                carried = zip(loop.inputs, loop.outputs, row.results, start, strict=True)
                for inner, out, result, value in carried:
                    if inner == out and value is not None:
                        invariants[inner] = known[result] = value
                visit(loop.body, invariants)
                visit(loop.condition, {})
            elif index in inside:
                visit(inside[index], {})
            else:
                learn(program, (index,), known)

    visit(inside.get(-1, []), {})
    return counts


def inside_costs(program: Program) -> Iterator[tuple[int, int | None, float, float]]:
    """Yield each loop and branch, its trip count, and the FLOPs and bytes inside it.

    Of a branch's computations the dearest counts. A loop of unknown length counts as one trip; its
    trip count, and a branch's, is None.
    """
    nested = [k for k, row in enumerate(program.rows) if row.opcode in NESTED]
    if not nested:
        return
    trips, inside = trip_counts(program), program.inside()
    total = np.array([(row.flops, row.bytes_accessed) for row in program.rows])
    for index in reversed(nested):  # what is inside has higher numbers
        inner = inside.get(index, [])
        ends = [k for k, x in enumerate(inner, 1) if program.rows[x].opcode == "return"]
        parts = [total[part].sum(axis=0) for part in np.split(inner, ends) if len(part)]
        count = trips.get(index)
        if index in trips:
            total[index] = np.sum(parts, axis=0) * (1 if count is None else count)
        else:
            total[index] = np.max(parts, axis=0)
        yield index, count, *total[index].tolist()
