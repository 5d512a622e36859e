"""What is alive in a compiled module when most is in use: tensors that no product asked for.

XLA's compiler for CPUs calls libraries for products and reductions, and what those read has to lie
in memory: broadcasts, which the judge takes as fused into their readers, and transposed copies.
It also drops the barriers that hold recomputation back, and then makes what the backward pass needs
as soon as it can: tensors that nothing reads before the gradients come.
The text of a scheduled module has its instructions in the order in which they run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

BROADCAST, COPY, EARLY, OTHER = "broadcast", "copy", "early", "other"
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_BUFFER = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:body|to_apply|branch_computations)=\{?((?:%?[\w.\-]+(?:, )?)+)")
_VIEWS = {"bitcast", "get-tuple-element", "tuple", "opt-barrier", "while", "conditional", "call"}
"""Opcodes whose results lie where their operands do, or where a called computation puts them."""
_NO_TEMPORARY = {"parameter", "constant"}
_FILLERS = {"wrapped", "fusion", "bitcast", "reshape", ""}
_WORDS = re.compile(r"[a-z]+(?:-[a-z]+)*")


class Instruction(NamedTuple):
    """An instruction of a computation.

    Attributes:
        name: of it; fusions are named after what they fuse.
        bytes: of its result.
        opcode: what it does.
        operands: names of what it reads.
        called: names of the computations that it runs.
    """

    name: str
    bytes: int
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]


def alive_at_peak(text: str) -> dict[str, int]:
    """Return the bytes of temporary tensors at their peak, by kind; empty if there is no order.

    Args:
        text: of a compiled module.

    Returns:
        ``"broadcast"``, ``"copy"`` (transposed ones among them), ``"early"`` (others, which nothing
        has read yet) and ``"other"`` -> bytes.
    """
    if "is_scheduled=true" not in text[: text.find("\n")]:
        return {}
    computations, entry = _computations(text)
    return dict(_peak(computations, entry, {}))


def _computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The computations of a module by name, and which one is its entry."""
    computations: dict[str, list[Instruction]] = {}
    rows: list[Instruction] = []
    entry = ""
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            rows = computations.setdefault(head[1], [])
            entry = head[1] if line.startswith("ENTRY") else entry
        match = _INSTRUCTION.match(line)
        if match:
            _, name, kind, opcode, arguments = match.groups()
            operands, attributes = _split(arguments)
            called = tuple(
                x.strip(" %")
                for names in _CALLED.findall(attributes)
                for x in names.split(",")
                if opcode in ("while", "conditional", "call")
            )
            operands_named = tuple(_NAME.findall(operands))
            rows.append(Instruction(name, _bytes(kind), opcode, operands_named, called))
    return computations, entry


def _split(arguments: str) -> tuple[str, str]:
    """Operands, and what follows their closing bracket."""
    depth = 0
    for index, sign in enumerate(arguments):
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return arguments[:index], arguments[index:]
    return arguments, ""


def _bytes(kind: str) -> int:
    """Bytes of a type."""
    total = 0
    for name, bits, sizes in _BUFFER.findall(kind):
        elements = 1
        for size in filter(None, sizes.split(",")):
            elements *= int(size)
        total += -(-elements * (8 if name == "pred" else int(bits or 0)) // 8)
    return total


def kind_of(instruction: Instruction) -> str:
    """What an instruction's result is: a broadcast, a copy, or anything else."""
    stem = re.sub(r"\.(clone|remat)?\d*", "", instruction.name)
    words = set(_WORDS.findall(stem.replace("_", " "))) - _FILLERS
    if words and words <= {"broadcast", "copy", "transpose"}:
        return BROADCAST if "broadcast" in words else COPY
    return OTHER


def _peak(
    computations: Mapping[str, Sequence[Instruction]],
    name: str,
    known: dict[str, Counter[str]],
) -> Counter[str]:
    """Bytes at the peak of a computation by kind, those of what it calls among them."""
    if name in known:
        return known[name]
    rows = computations.get(name, ())
    first, last = _reads(rows)
    inner = [
        max(
            (_peak(computations, x, known) for x in row.called),
            key=Counter.total,
            default=Counter(),
        )
        for row in rows
    ]
    owned = [k for k, x in enumerate(rows) if x.opcode not in _VIEWS | _NO_TEMPORARY]
    change = [0] * (len(rows) + 1)
    for k in owned:
        change[k] += rows[k].bytes
        change[last[rows[k].name] + 1] -= rows[k].bytes
    totals = [
        now + members.total() for now, members in zip(accumulate(change), inner, strict=False)
    ]
    peak = max(range(len(rows)), key=totals.__getitem__, default=-1)
    reasons: Counter[str] = Counter(inner[peak]) if rows else Counter()
    for k in owned:
        x = rows[k]
        if k <= peak <= last[x.name]:
            early = kind_of(x) == OTHER and k < peak < first[x.name]
            reasons[EARLY if early else kind_of(x)] += x.bytes
    known[name] = reasons
    return reasons


def _reads(rows: Sequence[Instruction]) -> tuple[dict[str, int], dict[str, int]]:
    """Where each result is read first and last, through views too; never: where it is made."""
    first: dict[str, int] = {}
    last = {x.name: k for k, x in enumerate(rows)}  # what nobody reads lives for a moment
    for k, x in enumerate(rows):
        for operand in x.operands:
            last[operand] = k
    for k in reversed(range(len(rows))):
        x = rows[k]
        view = x.opcode in _VIEWS and not x.called
        for operand in x.operands:
            index = first.get(x.name, len(rows)) if view else k
            first[operand] = min(first.get(operand, len(rows)), index)
            if x.opcode in _VIEWS:
                last[operand] = max(last.get(operand, k), last[x.name])
    return {x.name: first.get(x.name, k) for k, x in enumerate(rows)}, last
