"""Checks of what is inside loops and branches against what they are given and return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NESTED = ("while", "conditional")
"""Opcodes whose computations follow them as instructions with a ``parent``."""
Array = tuple[int, tuple[int, ...]]
"""Element type and dimensions."""


class Inside(NamedTuple):
    """A computation of a loop or branch.

    Attributes:
        taken: its parameters, tuples flattened.
        returned: what it returns, likewise.
    """

    taken: Sequence[Array]
    returned: Sequence[Array]


def wrong_nesting(
    opcode: str, operands: Sequence[Array], results: Sequence[Array], inside: Sequence[Inside]
) -> str:
    """Return what is wrong with a loop or branch, "" if nothing is.

    Args:
        opcode: ``"while"`` or ``"conditional"``.
        operands: what it is given, tuples flattened.
        results: what it returns, likewise.
        inside: its computations; of a loop its body, then its condition.
    """
    operands, results = list(operands), list(results)
    if opcode == "while":
        if len(inside) != 2:
            return f"a while has {len(inside)} computations, not a body and a condition"
        if not operands == results == list(inside[0].taken) == list(inside[0].returned):
            return "a while, its body's parameter and its body's result differ"
        if list(inside[1].taken) != operands:
            return "the parameter of a while's condition is not what the loop carries"
        tests = [dims for _, dims in inside[1].returned]
        return "" if tests == [()] else "the condition of a while is not one scalar"
    if not inside:
        return "a conditional has no computation"
    if [dims for _, dims in operands[:1]] != [()]:
        return "a conditional's first operand is not one scalar"
    if [array for part in inside for array in part.taken] != operands[1:]:
        return "the computations of a conditional take other arrays than it is given"
    if any(list(part.returned) != results for part in inside):
        return "the computations of a conditional return other arrays than it does"
    return ""
