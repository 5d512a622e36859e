"""Limits of what a module may become while it is read: small files can ask for very much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from parenvs.errors import HloError
from parenvs.graph.proto import TUPLE

MOST_INSTRUCTIONS = 5_000_000
"""Limit of the instructions after calls are inlined."""
MOST_COPIES = 100
"""Limit of the times that all of a file's instructions are copied by inlining, on average."""
FREE_COPIES = 100_000
"""So many instructions are never too much, whatever the size of the file."""
MOST_CALLS = 100
"""Limit of the depth of calls, loops and branches."""
MOST_BYTES = 2**63
"""Tensors of this size and more are refused, as XLA counts bytes in int64."""
_WIDEST = 16
"""Bytes of the largest element, a complex number."""
MOST_COST = 1e60
"""Limit of the FLOPs and of the bytes of an instruction, loops and branches with what is inside.

Sums and products of such costs stay finite.
"""


class Budget:
    """Counts what a reader reads, and stops it at a limit.

    Args:
        instructions: number of instructions in the file.
    """

    def __init__(self, instructions: int) -> None:
        self.left = self.most = min(MOST_INSTRUCTIONS, FREE_COPIES + MOST_COPIES * instructions)
        self.depth = 0

    def enter(self, computation: Any) -> None:
        """Count a computation whose instructions are read in place of a call.

        Raises:
            HloError: the module is too large or too deep.
        """
        self.left -= len(computation.instructions)
        self.depth += 1
        if self.left < 0:
            raise HloError(
                f"its calls would become more than {self.most:,} instructions; give a module that "
                "calls its computations less often"
            )
        if self.depth > MOST_CALLS:
            raise HloError(
                f"its calls, loops and branches are nested more than {MOST_CALLS} deep in "
                f"{computation.name!r}, or a computation calls itself"
            )

    def leave(self) -> None:
        """Count the end of a computation."""
        self.depth -= 1


def check_size(dims: Sequence[int], size: int) -> None:
    """Check that a tensor's bytes can be counted.

    Raises:
        HloError: they cannot.
    """
    if size >= MOST_BYTES or uncountable(dims):
        shown = "x".join(map(str, dims[:8])) + ("..." if len(dims) > 8 else "")
        raise HloError(f"a shape of {shown} has more bytes than can be counted (2^63)")


def uncountable(dims: Sequence[int]) -> bool:
    """Return whether a tensor could have too many bytes, were no dimension empty."""
    return math.prod(max(size, 1) for size in dims) * _WIDEST >= MOST_BYTES


def check_cost(name: str, flops: float, moved: float) -> None:
    """Check that the cost of an instruction is a number that can be summed.

    Args:
        name: the instruction.
        flops: its FLOPs.
        moved: bytes that it reads and writes.

    Raises:
        HloError: one is negative, too large or no number.
    """
    for value, unit in ((flops, "FLOPs"), (moved, "bytes")):
        if not 0 <= value <= MOST_COST:
            raise HloError(f"instruction {name!r} costs {value:.4g} {unit}, not 0 to {MOST_COST:g}")


def check_computation(computation: Any) -> None:
    """Check that a computation has instructions, and numbers for its parameters.

    Args:
        computation: the HloComputationProto.

    Raises:
        HloError: it is empty, an id stands twice, or the parameters are not numbered from 0.
    """
    nodes = computation.instructions
    if not nodes or len({node.id for node in nodes}) < len(nodes):
        raise HloError(f"computation {computation.name!r} is empty or repeats an id")
    numbers = sorted(node.parameter_number for node in nodes if node.opcode == "parameter")
    for place, number in enumerate(numbers):
        if number != place:
            raise HloError(
                f"computation {computation.name!r} has a parameter of number {number}; its "
                f"{len(numbers)} are to be numbered from 0, each once"
            )


def check_value(name: str, shape: Any, found: Sequence[tuple[int, ...]]) -> None:
    """Check that a tuple, or what is taken from one or returned, has the shape that is declared.

    Args:
        name: the instruction.
        shape: its declared shape.
        found: dimensions of the arrays that it is made of.

    Raises:
        HloError: they differ.
    """
    declared = leaves(shape)
    if len(declared) != len(found):
        raise HloError(
            f"instruction {name!r} has {len(found)} arrays, and its shape declares {len(declared)}"
        )
    for leaf, dims in zip(declared, found, strict=True):
        if tuple(leaf.dimensions) != dims:
            raise HloError(
                f"instruction {name!r} is declared with an array of shape "
                f"{list(leaf.dimensions)}, and has {list(dims)}"
            )


def leaves(shape: Any) -> list[Any]:
    """Return the arrays of a shape, tuples flattened."""
    if shape.element_type != TUPLE:
        return [shape]
    return [leaf for part in shape.tuple_shapes for leaf in leaves(part)]
