"""Exact partitions: a weighted independent set on the conflict graph of the classes, by HiGHS."""

from __future__ import annotations

import time

import numpy as np

from parenvs.agents.answer import PartitionAnswer
from parenvs.errors import InfeasibleError
from parenvs.partitioning.problem import Partitioning

_ROUNDS = 200
"""Most solutions whose memory is looked at."""
_TOLERANCE = 1.0
"""Bytes by which rounding may exceed the memory limit."""


def exact_partition(
    problem: Partitioning, memory_limit: float | None = None, scope: str | None = None
) -> PartitionAnswer:
    """The partition of the highest return of a problem's reward, with its proof.

    The memory limit holds at every instruction. There are tens of thousands of them, so only those
    that a solution exceeds become constraints, until none is exceeded.

    Args:
        problem: the problem, with its reward.
        memory_limit: bytes that a device may use at most (default: no limit).
        scope: ``"variables"``, ``"inputs"`` or ``"all"``: what may be decided (default: the
            problem's scope).

    Raises:
        InfeasibleError: no partition keeps the memory limit; says by how much the best one misses.
    """
    begin = time.perf_counter()
    classes, base, weights = problem.decidable(scope), *problem.returns
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
        raise InfeasibleError(f"no partition within memory after {_ROUNDS} rounds")
    value = float(problem.value(chosen))
    return PartitionAnswer(
        problem,
        chosen,
        value,
        method="exact",
        proven=True,
        bound=max(base + bound, value),  # the solver's own rounding aside
        evaluations=nodes,
        seconds=time.perf_counter() - begin,
    )


class _Program:
    """The integer program: a binary for each class, at most one of each pair that conflicts."""

    def __init__(self, problem: Partitioning, classes: np.ndarray) -> None:
        from scipy.sparse import coo_array

        self.problem, self.classes = problem, classes
        count = len(problem.classes)
        place = np.full(count, -1)
        place[classes] = np.arange(len(classes))
        pairs = place[problem.classes.conflicts]
        pairs = pairs[(pairs >= 0).all(axis=1)]
        rows = np.repeat(np.arange(len(pairs), dtype=np.int32), 2)
        entries = (np.ones(rows.size), (rows, pairs.reshape(-1).astype(np.int32)))
        self.conflicts = coo_array(entries, shape=(len(pairs), len(classes))).tocsr()
        self.saved: list[np.ndarray] = []
        self.needed: list[float] = []

    def limit_memory(self, at: int, limit: float, chosen: np.ndarray) -> None:
        """Add the memory limit at one instruction, where the classes ``chosen`` exceed it.

        The solver takes a row that is broken by a millionth as kept. So a second one says that at
        least one class is needed that ``chosen`` lacks and that saves something there: subsets of
        ``chosen`` need no less memory.
        """
        whole, saved = self.problem.footprint.saved_at(at)
        saved, limit = saved[self.classes], max(limit, 1.0)
        self.saved += [saved / limit, np.where(~chosen[self.classes] & (saved > 0), 1.0, 0.0)]
        self.needed += [(whole - limit) / limit, 1.0]

    def maximise(self, weights: np.ndarray) -> tuple[np.ndarray | None, float, int]:
        """The best choice, (C,) bool, its proven bound, and the search nodes; None if none."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        limits = []
        if self.conflicts.shape[0]:
            limits.append(LinearConstraint(self.conflicts, ub=1))
        if self.saved:
            limits.append(LinearConstraint(np.array(self.saved), lb=np.array(self.needed)))
        chosen = np.zeros(len(self.problem.classes), dtype=bool)
        if not len(self.classes):
            return (None if max(self.needed, default=0.0) > 0 else chosen), 0.0, 0
        worth = weights[self.classes]
        solution = milp(
            -worth,
            integrality=np.ones(len(self.classes)),
            bounds=Bounds(0, 1),
            constraints=limits,
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
    """The error where no partition of the classes keeps the limit: by how much it is missed.

    The memory at one instruction after the other is minimised; this finds a partition that needs
    little memory, not always the least.
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
