"""Lower bounds of the step over all orders of the micro-batches, beside the machine bound.

A step is as long as the longest path through its passes. A path takes some passes of each position;
what it costs is a sum over positions of seconds of the micro-batch there. For one path, the least
sum over all orders is an assignment problem, and a lower bound of the step. ``path_bound`` takes,
for each stage, the machine's path and the one through its warm-up; ``Program`` takes all paths
together, with micro-batches that may be spread over positions (the relaxation of Wagner's model of
permutation flow shops, Naval Research Logistics Quarterly 6, 1959), of which some may be fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np

from parenvs.agents.highs import solver
from parenvs.tasks.order.problem import Order

ROUNDING = 1e-12
"""Share by which sums of seconds are lowered to be bounds."""


def path_costs(problem: Order) -> np.ndarray:
    """(2 S, M, M) seconds that a micro-batch at a position adds to each of two paths of a stage.

    The machine's path of stage d comes through the stages in front with position 0, takes all of
    the passes of d, and goes back with position M - 1. The other comes through all stages with
    position 0 and back to d, as w_d = S - d - 1 forward passes do not fill that time; takes the
    backward passes of d from position 0 and its forward passes from position w_d + 1 on, up to the
    forward pass of position M - 1 (the backward passes before it are those up to M - 2 - w_d); and
    goes on with position M - 1 to the last stage and back to the first. Stage d does these passes
    between the two others and one at a time, so both are paths.
    """
    forward, backward = problem.forward, problem.backward
    stages, count = forward.shape
    position = np.arange(count)
    first, last = position == 0, position == count - 1
    costs = np.zeros((2 * stages, count, count))
    for d in range(stages):
        f, b = forward[d][:, None], backward[d][:, None]
        head, tail = forward[:d].sum(axis=0), backward[:d].sum(axis=0)
        costs[2 * d] = f + b + first * head[:, None] + last * tail[:, None]
        left = stages - d - 1
        if count - 1 <= left:  # no pass of the stage lies between
            costs[2 * d + 1] = (forward.sum(axis=0) + backward.sum(axis=0))[:, None] * first
            continue
        coming = forward.sum(axis=0) + backward[d + 1 :].sum(axis=0)
        going = forward[d + 1 :].sum(axis=0) + backward.sum(axis=0)
        costs[2 * d + 1] = (
            first * coming[:, None]
            + last * going[:, None]
            + (position > left) * f
            + (position <= count - 2 - left) * b
        )
    return costs


def path_bound(problem: Order) -> float:
    """Return the largest of the bounds of single paths, 2 S assignment problems."""
    from scipy.optimize import linear_sum_assignment

    best = problem.bound_seconds
    for costs in path_costs(problem):
        rows, columns = linear_sum_assignment(costs)
        best = max(best, float(costs[rows, columns].sum()) * (1 - ROUNDING))
    return best


class Program:
    """The linear program over all paths together, kept in memory and solved again and again.

    Variables are the shares x[m, k] of micro-batch m at position k (a doubly stochastic matrix) and
    when each pass ends. A pass takes the seconds of its position's micro-batches by their shares,
    and ends that much after what it waits for. Orders are the matrices of 0 and 1; those that have
    some micro-batches at given positions are those in which their shares are 1.

    What the solver says is not trusted. Its dual values weigh what passes wait for; they are made a
    flow from the first pass to the last one, which is an average of paths whatever it is, and the
    least sum of what that average takes, over all orders, is an assignment problem.

    Args:
        problem: the problem.
    """

    def __init__(self, problem: Order) -> None:
        import highspy

        self.seconds = np.stack([problem.forward, problem.backward])
        self.passes = _passes(*problem.forward.shape)
        self._optimal = highspy.HighsModelStatus.kOptimal
        self._fixed = np.zeros(0, dtype=np.int64)
        self._solver = solver(presolve="off")
        self._solver.passModel(self._model(problem.bound_seconds))

    def _model(self, unit: float) -> Any:
        """The program as the solver takes it; its seconds are those of ``unit``.

        A pass has two rows: what it waits for on its stage, then what its micro-batch comes from.
        """
        import highspy
        from scipy.sparse import coo_matrix

        count, square = self.seconds.shape[2], self.seconds.shape[2] ** 2
        own, behind = np.repeat(self.passes[:, 0], 2), self.passes[:, 1:].ravel()
        row, waits = np.arange(len(own)), behind >= 0
        cells = np.arange(count) * count + own[:, None] % count  # column k of the shares
        seconds = self.seconds.reshape(-1, count)[own // count] / unit
        goal, cell = square + len(self.passes), np.arange(square)
        last = len(row)
        parts = [
            (np.repeat(row, count), cells, seconds),
            (row, square + own, np.full(len(row), -1.0)),
            (row[waits], square + behind[waits], np.ones(int(waits.sum()))),
            ([last, last], [square + self.passes[-1, 0], goal], [1.0, -1.0]),
            (last + 1 + cell // count, cell, np.ones(square)),
            (last + 1 + count + cell % count, cell, np.ones(square)),
        ]
        rows, columns, values = (
            np.concatenate([np.ravel(part) for part in x]) for x in zip(*parts, strict=True)
        )
        matrix = coo_matrix((values, (rows, columns))).tocsr()
        model = highspy.HighsLp()
        model.num_row_, model.num_col_ = matrix.shape
        model.col_cost_ = np.eye(1, goal + 1, goal)[0]
        model.col_lower_, model.col_upper_ = np.zeros(goal + 1), np.full(goal + 1, np.inf)
        model.row_lower_ = np.repeat([-np.inf, 1.0], [last + 1, 2 * count])
        model.row_upper_ = np.repeat([0.0, 1.0], [last + 1, 2 * count])
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_, model.a_matrix_.index_ = matrix.indptr, matrix.indices
        model.a_matrix_.value_ = matrix.data
        return model

    def solve(
        self,
        micro_batches: Sequence[int] = (),
        positions: Sequence[int] = (),
        limit: float | None = None,
    ) -> Relaxation | None:
        """Solve it over the orders that have some micro-batches at given positions.

        Args:
            micro_batches: those that are fixed.
            positions: of each of them, all different.
            limit: seconds after which it gives up (None: none).

        Returns:
            The answer; None if there is none in time.
        """
        count, solver = self.seconds.shape[2], self._solver
        fixed = np.asarray(micro_batches, np.int64) * count + np.asarray(positions, np.int64)
        changed = np.union1d(self._fixed, fixed).astype(np.int32)
        self._fixed = fixed
        lower = np.isin(changed, fixed).astype(np.float64)
        solver.changeColsBounds(len(changed), changed, lower, np.full(len(changed), np.inf))
        end = np.inf if limit is None else solver.getRunTime() + max(limit, 0.0)
        solver.setOptionValue("time_limit", end)
        solver.run()
        if solver.getModelStatus() != self._optimal:
            solver.clearSolver()
            return None
        solution = solver.getSolution()
        share = np.array(solution.col_value[: count * count]).reshape(count, count)
        flow = self._flow([max(-y, 0.0) for y in solution.row_dual[: 2 * len(self.passes)]])
        return Relaxation(np.einsum("tsk,tsm->mk", flow, self.seconds), share)

    def _flow(self, weight: list[float]) -> np.ndarray:
        """(2, S, M) share of the average's paths through each pass, from the last one back."""
        flow = [0.0] * len(self.passes)
        flow[self.passes[-1, 0]] = 1.0
        for row, (own, before, source) in reversed(list(enumerate(self.passes.tolist()))):
            through = flow[own]
            if before >= 0:
                both = weight[2 * row] + weight[2 * row + 1]
                share = weight[2 * row] / both if both > 0.0 else 1.0
                flow[before] += share * through
                through -= share * through
            if source >= 0:
                flow[source] += through
        return np.reshape(flow, self.seconds.shape)


@dataclass(frozen=True)
class Relaxation:
    """What ``Program.solve`` says of the orders with some micro-batches at given positions.

    Attributes:
        costs: (M, M) seconds of each micro-batch at each position on an average of paths. No order
            takes less than the sum of its own.
        share: (M, M) share of each micro-batch (row) at each position.
    """

    costs: np.ndarray
    share: np.ndarray

    def bound(self, micro_batches: Sequence[int] = (), positions: Sequence[int] = ()) -> float:
        """Return seconds that no order takes less than with these micro-batches at positions."""
        from scipy.optimize import linear_sum_assignment

        rows, columns = list(micro_batches), list(positions)
        free = np.delete(np.delete(self.costs, rows, axis=0), columns, axis=1)
        least = free[linear_sum_assignment(free)].sum()
        return float(self.costs[rows, columns].sum() + least) * (1 - ROUNDING)


def relaxed_bound(problem: Order, time_limit: float | None = None) -> float:
    """Return the bound by all paths together, see ``Program``; it is never below ``path_bound``.

    Args:
        problem: the problem.
        time_limit: seconds after which ``path_bound`` alone is returned (None: no limit).
    """
    relaxation = Program(problem).solve(limit=time_limit)
    floor = path_bound(problem)
    return floor if relaxation is None else max(floor, relaxation.bound())


def _passes(stages: int, count: int) -> np.ndarray:
    """(2 S M, 3) passes in an order in which none waits for a later one, and what each waits for.

    A pass is its number in an array of kind (forward, backward), stage and position. The second is
    the pass before it on its stage, the third the one that its micro-batch comes from; -1: none.
    """
    number = np.arange(2 * stages * count).reshape(2, stages, count)
    before, source = np.full((2, *number.shape), -1)
    source[0, 1:], source[1, :-1], source[1, -1] = number[0, :-1], number[1, 1:], number[0, -1]
    for stage in range(stages):
        warm = min(stages - stage - 1, count)
        turns = np.stack([number[0, stage, warm:], number[1, stage, : count - warm]], axis=1)
        own = [*number[0, stage, :warm], *turns.ravel(), *number[1, stage, count - warm :]]
        for one, other in pairwise(own):
            before.flat[other] = one
    waits = {
        own: [one for one in (before.flat[own], source.flat[own]) if one >= 0]
        for own in number.ravel().tolist()
    }
    order = np.array(list(TopologicalSorter(waits).static_order()))
    return np.stack([order, before.flat[order], source.flat[order]], axis=1)
