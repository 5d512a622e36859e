"""What loops and branches cost: the instructions inside them, times the trips of a loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from parenvs.graph.checks.nesting import NESTED
from parenvs.graph.loops.integers import Program
from parenvs.graph.loops.trips import trip_counts


def inside_costs(
    program: Program, costs: Sequence[Sequence[float]]
) -> Iterator[tuple[int, int | None, np.ndarray]]:
    """Yield each loop and branch, its trip count, and the sum of the costs inside it.

    Of a branch's computations the dearest counts. A loop of unknown length counts as one trip.

    Args:
        program: the module's instructions.
        costs: (I, kinds) costs of each instruction; those of loops and branches do not matter.

    Yields:
        The instruction, its trip count (None for a branch, or if it is not known), and (kinds,)
        float64.
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
