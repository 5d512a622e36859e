"""Exact partitions: a weighted independent set on the conflict graph of the classes.

The integer program is solved by HiGHS, through ``scipy.optimize.milp``.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from parenvs.core.answer import Answer
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.partition.problem import Partitioning

_ROUNDS = 200
"""Largest number of integer programs that are solved for one problem."""
_TOLERANCE = 1.0
"""Bytes by which rounding may exceed the memory limit."""


def exact_partition(
    problem: Partitioning, memory_limit: float | None = None, scope: str | None = None
) -> Answer:
    """The partition of the highest return of a problem's reward, with its proof.

    The memory limit holds at every instruction. There are tens of thousands of them, so a limit
    becomes a constraint only once a solution exceeds it, until a solution exceeds none.

    Args:
        problem: the problem, with its reward.
        memory_limit: bytes that a device may use at most (default: the problem's limit, if any).
        scope: which tensors may be partitioned, ``"variables"``, ``"inputs"`` or ``"all"``
            (default: all that the problem decides).

    Raises:
        InfeasibleError: no partition keeps the memory limit; says by how much the best one misses.
        TimeLimitError: the limit was not kept after many rounds.
    """
    begin = time.perf_counter()
    memory_limit = problem.step.limit if memory_limit is None else memory_limit
    classes, base_return, weights = problem.decidable(scope), *problem.returns
    program = _Program(problem, classes)
    nodes = 0
    for _ in range(_ROUNDS):
        chosen, bound, explored = program.maximise(weights)
        nodes += explored
        if chosen is None:
            raise InfeasibleError(_least_memory(problem, classes, memory_limit or 0.0))
        if memory_limit is None:
            break
        memory = problem.footprint.memory(chosen)
        if memory.peak <= memory_limit + _TOLERANCE:
            break
        program.limit_memory(memory.at, memory_limit, chosen)
    else:
        raise TimeLimitError(
            f"{problem.instance}: no partition within memory after {_ROUNDS} rounds, which proves "
            f"nothing but that none returns more than {base_return + bound:.6g}"
        )
    value = float(problem.value(chosen))
    return Answer(
        problem=problem,
        plan=problem.plan(chosen, scope),
        cost=problem.cost(chosen),
        method="exact",
        proven=True,
        bound=max(base_return + bound, value),  # the solver's bound is rounded
        evaluations=nodes,
        seconds=time.perf_counter() - begin,
    )


class _Program:
    """The integer program: a binary for each class, at most one of each pair that conflicts.

    Attributes:
        problem: the problem.
        classes: (k,) int64, the classes that may be partitioned; the program's variables.
        conflicts: (pairs, k) sparse, a row of two ones for each pair that conflicts.
        saved: rows, (k,) each, of the memory constraints ``saved @ variables >= needed``.
        needed: their right-hand sides.
    """

    def __init__(self, problem: Partitioning, classes: np.ndarray) -> None:
        from scipy.sparse import coo_array

        self.problem, self.classes = problem, classes
        column = np.full(len(problem.classes), -1)
        column[classes] = np.arange(len(classes))
        pairs = column[problem.classes.conflicts]
        pairs = pairs[(pairs >= 0).all(axis=1)]
        rows = np.repeat(np.arange(len(pairs), dtype=np.int32), 2)
        entries = (np.ones(rows.size), (rows, pairs.reshape(-1).astype(np.int32)))
        self.conflicts = coo_array(entries, shape=(len(pairs), len(classes))).tocsr()
        self.saved: list[np.ndarray] = []
        self.needed: list[float] = []

    def limit_memory(self, at: int, limit: float, chosen: np.ndarray) -> None:
        """Add the memory limit at one instruction as two constraints.

        The solver tolerates a constraint that is broken by a millionth. So the second one says that
        at least one class is needed that ``chosen`` lacks and that saves something there: subsets
        of ``chosen`` need no less memory.

        Args:
            at: the instruction.
            limit: bytes.
            chosen: (C,) bool, a choice of classes that exceeds the limit there.
        """
        whole_bytes, saved_bytes = self.problem.footprint.saved_at(at)
        saved_bytes, unit = saved_bytes[self.classes], max(limit, 1.0)
        helps = ~chosen[self.classes] & (saved_bytes > 0)
        self.saved += [saved_bytes / unit, np.where(helps, 1.0, 0.0)]
        self.needed += [(whole_bytes - unit) / unit, 1.0]

    def maximise(self, weights: np.ndarray) -> tuple[np.ndarray | None, float, int]:
        """Solve the program for the weights of the classes, (C,).

        Returns:
            The best choice of classes, (C,) bool, or None if none keeps the constraints; the proven
            upper bound of the weight of any; and the number of search nodes.

        Raises:
            RuntimeError: the solver returned a choice of classes that conflict.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        constraints = []
        if self.conflicts.shape[0]:
            constraints.append(LinearConstraint(self.conflicts, ub=1))
        if self.saved:
            constraints.append(LinearConstraint(np.array(self.saved), lb=np.array(self.needed)))
        chosen = np.zeros(len(self.problem.classes), dtype=bool)
        if not len(self.classes):
            return (None if max(self.needed, default=0.0) > 0 else chosen), 0.0, 0
        solution = milp(
            -weights[self.classes],
            integrality=np.ones(len(self.classes)),
            bounds=Bounds(0, 1),
            constraints=constraints,
            # The presolve of SciPy 1.11 to 1.15 took a broken constraint for an optimum.
            options={"mip_rel_gap": 0.0, "presolve": False},
        )
        if solution.x is None:
            return None, 0.0, 0
        chosen[self.classes] = solution.x > 0.5
        if not self.problem.legal(chosen):
            raise RuntimeError("the solver broke a constraint; install a newer SciPy")
        bound = -solution.fun if solution.mip_dual_bound is None else -solution.mip_dual_bound
        return chosen, float(bound), int(solution.mip_node_count or 0)


def _least_memory(problem: Partitioning, classes: np.ndarray, limit: float) -> str:
    """The error message for a limit that no partition of the classes keeps, in bytes.

    It names the smallest memory of the partitions that minimise the memory at one instruction, each
    time at the one where the partition before needed the most. That is not always the least.
    """
    program = _Program(problem, classes)
    at = problem.footprint.memory(np.zeros(len(problem.classes), dtype=bool)).at
    smallest = np.inf
    for _ in range(_ROUNDS):
        chosen, _, _ = program.maximise(problem.footprint.saved_at(at).saved)
        assert chosen is not None
        memory = problem.footprint.memory(chosen)
        smallest = min(smallest, memory.peak)
        if memory.at == at:
            break
        at = memory.at
    return (
        f"{problem.graph.name} on {problem.cluster}: no partition fits {limit:,.0f} bytes a device;"
        f" the smallest found needs {smallest:,.0f}, {smallest - limit:,.0f} more"
    )


def best_of_game(game: Any, row: int) -> Answer:
    """Return the best plan of the problem of an episode; see ``Game.exact``."""
    return exact_partition(game.problem(row))
