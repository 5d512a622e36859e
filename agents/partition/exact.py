"""Exact partitions: a weighted independent set on the conflict graph of the classes.

The integer program is solved by HiGHS, through ``scipy.optimize.milp``.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from parenvs.compiled import Array
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.partition.classes import compatible, conflict_matrix
from parenvs.tasks.partition.problem import Partitioning

_ROUNDS = 200
"""Largest number of integer programs that are solved for one problem."""
_TOLERANCE = 1.0
"""Bytes by which rounding may exceed the memory limit."""
_OPTIMAL, _TIME_IS_UP, _INFEASIBLE = 0, 1, 2
"""SciPy's statuses of a program."""


def exact_partition(
    problem: Partitioning,
    memory_limit: float | None = None,
    scope: str | None = None,
    time_limit: float | None = None,
) -> Answer:
    """The partition of the highest return of a problem's reward, with its proof.

    The memory limit holds at every instruction. There are tens of thousands of them, so a limit
    becomes a constraint only once a solution exceeds it, until a solution exceeds none.

    Args:
        problem: the problem, with its reward.
        memory_limit: bytes that a device may use at most (default: the problem's limit, if any).
        scope: which tensors may be partitioned, ``"variables"``, ``"inputs"`` or ``"all"``
            (default: all that the problem decides).
        time_limit: seconds after which the best partition so far is returned without proof, with a
            valid bound (None: none).

    Raises:
        InfeasibleError: no partition keeps the memory limit; says by how much the best one misses.
        TimeLimitError: the limit was not kept in time, or after many rounds.
    """
    begin = time.perf_counter()
    deadline = np.inf if time_limit is None else begin + time_limit
    memory_limit = problem.step.limit if memory_limit is None else memory_limit
    classes, base_return, weights = problem.decidable(scope), *problem.returns

    def fits(chosen: Array) -> bool:
        if memory_limit is None:
            return True
        return bool(problem.footprint.memory(chosen).peak <= memory_limit + _TOLERANCE)

    program = _Program(problem, classes)
    nodes, bound, best = 0, float(np.maximum(weights[classes], 0.0).sum()), None
    proven, time_is_up = False, False
    for _ in range(_ROUNDS):
        chosen, limit, visited, time_is_up = program.maximize(weights, deadline)
        nodes, bound = nodes + visited, min(bound, limit)
        if chosen is None and not time_is_up:
            raise InfeasibleError(_infeasible_message(program, memory_limit or 0.0, deadline))
        if chosen is not None and fits(chosen):
            best, proven = chosen, not time_is_up
            break
        if time_is_up:
            break
        assert chosen is not None and memory_limit is not None
        at = problem.footprint.memory(chosen).at
        # The limit at one more moment: the programs only get harder, so bounds stay valid.
        program.limit_memory(at, memory_limit, chosen)
    # Partitions that need no search may be as good.
    if not proven:
        heavy = classes[weights[classes] > 0]
        order = heavy[np.argsort(-weights[heavy], kind="stable")]
        greedy = compatible(order, problem.classes.rivals, len(weights))
        simple = best, np.zeros(len(weights), bool), greedy
        options = [x for x in simple if x is not None and fits(x)]
        best = max(options, key=lambda x: float(weights[x].sum()), default=None)
    if best is None:
        when = f"in {time_limit:g} s" if time_is_up else f"after {_ROUNDS} rounds"
        raise TimeLimitError(
            f"{problem.instance}: no partition within memory {when}, which proves "
            f"nothing but that none returns more than {base_return + bound:.6g}"
        )
    return Answer(
        problem=problem,
        plan=problem.plan(best, scope),
        cost=problem.cost(best),
        method="exact",
        proven=proven,
        # The solver's bound is rounded.
        bound=max(base_return + bound, float(problem.value(best))),
        evaluations=nodes,
        seconds=time.perf_counter() - begin,
    )


class _Program:
    """The integer program: a binary for each class, at most one of each pair that conflicts.

    Attributes:
        classes: (k,) int64, the classes that may be partitioned; the program's variables.
        conflicts: (pairs, k) sparse, a row of two ones for each pair that conflicts.
        saved: rows, (k,) each, of the memory constraints ``saved @ variables >= needed``.
        needed: their right-hand sides.
    """

    def __init__(self, problem: Partitioning, classes: Array) -> None:
        self.problem, self.classes = problem, classes
        column = np.full(len(problem.classes), -1)
        column[classes] = np.arange(len(classes))
        pairs = column[problem.classes.conflicts]
        pairs = pairs[(pairs >= 0).all(axis=1)]
        self.conflicts = conflict_matrix(pairs, len(classes))
        self.saved: list[Array] = []
        self.needed: list[float] = []

    def limit_memory(self, at: int, limit: float, chosen: Array) -> None:
        """Add the memory limit in bytes at the instruction ``at`` as two constraints.

        The solver tolerates a constraint that is broken by a millionth. So the second demands a
        class that ``chosen``, (C,) bool, which exceeds the limit, lacks and that saves something
        there: subsets of ``chosen`` need no less memory.
        """
        whole_bytes, saved_bytes = self.problem.footprint.saved_at(at)
        saved_bytes, unit = saved_bytes[self.classes], max(limit, 1.0)
        helps = ~chosen[self.classes] & (saved_bytes > 0)
        self.saved += [saved_bytes / unit, np.where(helps, 1.0, 0.0)]
        self.needed += [(whole_bytes - unit) / unit, 1.0]

    def maximize(self, weights: Array, deadline: float) -> tuple[Array | None, float, int, bool]:
        """Solve for the weights of the classes, (C,), until a ``time.perf_counter()``.

        Returns:
            The best choice, (C,) bool, None if none exists or was found in time; a proven upper
            bound of its weight; the nodes searched; and whether time ended before the proof.
        """
        chosen = np.zeros(len(self.problem.classes), bool)
        if not len(self.classes):
            is_feasible = max(self.needed, default=0.0) <= 0
            return chosen if is_feasible else None, 0.0, 0, False
        remaining, weights = deadline - time.perf_counter(), weights[self.classes]
        # Without conflicts all positive weights add up: a bound that needs no search.
        upper = float(np.maximum(weights, 0.0).sum())
        if remaining <= 0:
            return None, upper, 0, True
        rows, needed = np.array(self.saved), np.array(self.needed)
        solution, bound = solve(weights, self.conflicts, rows, needed, remaining)
        if solution.status not in (_OPTIMAL, _TIME_IS_UP, _INFEASIBLE):
            raise RuntimeError(f"the solver failed: {solution.message}")
        bound, time_is_up = min(upper, bound), solution.status == _TIME_IS_UP
        nodes = int(solution.mip_node_count or 0)
        if solution.x is None:
            return None, bound, nodes, time_is_up
        chosen[self.classes] = solution.x > 0.5
        if not self.problem.legal(chosen):
            raise RuntimeError("the solver broke a constraint; install a newer SciPy")
        return chosen, bound, nodes, time_is_up


def solve(
    weights: Array, conflicts: Any, rows: Array, needed: Array, seconds: float, gap: float = 0.0
) -> tuple[Any, float]:
    """Choose classes of the largest weight by integer programming.

    Args:
        weights: (k,) of the classes.
        conflicts: see ``conflict_matrix``.
        rows: (r, k), of constraints ``rows @ chosen >= needed``.
        needed: (r,).
        seconds: time limit, inf for none.
        gap: share of the weight that the choice may lack.

    Returns:
        SciPy's result, and a proven upper bound of the weight; inf if there is none.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    constraints = []
    if conflicts.shape[0]:
        constraints.append(LinearConstraint(conflicts, ub=1))
    if len(rows):
        constraints.append(LinearConstraint(rows, lb=needed))
    # The presolve of SciPy 1.11 to 1.15 took a broken constraint for an optimum.
    options: dict[str, Any] = {"mip_rel_gap": gap, "presolve": False}
    if np.isfinite(seconds):
        options["time_limit"] = seconds
    integrality, limits = np.ones(len(weights)), Bounds(0, 1)
    solution = milp(
        -weights, integrality=integrality, bounds=limits, constraints=constraints, options=options
    )
    lowest = solution.mip_dual_bound
    if lowest is None and solution.status == _OPTIMAL:
        lowest = solution.fun
    return solution, np.inf if lowest is None or not np.isfinite(lowest) else -float(lowest)


def _infeasible_message(program: _Program, limit: float, deadline: float) -> str:
    """The error message for a limit in bytes that no partition of the program's classes keeps.

    It names the smallest memory among partitions that minimize the memory at one instruction, each
    time at the fullest of the partition before: not always the least possible.
    """
    problem = program.problem
    free = _Program(problem, program.classes)
    memory = problem.footprint.memory(np.zeros(len(problem.classes), bool))
    at, smallest = memory.at, memory.peak
    for _ in range(_ROUNDS):
        chosen, *_ = free.maximize(problem.footprint.saved_at(at).saved_bytes, deadline)
        if chosen is None:  # time is up
            break
        memory = problem.footprint.memory(chosen)
        smallest = min(smallest, memory.peak)
        if memory.at == at:
            break
        at = memory.at
    return (
        f"{problem.graph.name} on {problem.cluster}: no partition fits {limit:,.0f} bytes a device;"
        f" the smallest found needs {smallest:,.0f}, {smallest - limit:,.0f} more"
    )
