"""Lower bounds of the step over all orders of the micro-batches, beside the machine bound.

A step is as long as the longest path through its passes. A path takes some passes of each position;
what it costs is a sum over positions of seconds of the micro-batch there. For one path, the least
sum over all orders is an assignment problem, and a lower bound of the step. ``path_bound`` takes,
for each stage, the machine's path and the one through its warm-up; ``relaxed_bound`` takes all
paths together, with micro-batches that may be spread over positions (the relaxation of Wagner's
model of permutation flow shops, Naval Research Logistics Quarterly 6, 1959).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from parenvs.tasks.order.problem import Order

ROUNDING, TOLERANCE = 1e-12, 1e-6
"""Shares by which sums of seconds, and answers of linear programs, are lowered to be bounds."""


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


@dataclass(frozen=True)
class Relaxation:
    """An answer of ``relaxed_bound``.

    Attributes:
        bound: seconds that no order takes less than.
        share: (M, M) share of each micro-batch (row) at each position; None without an answer.
    """

    bound: float
    share: np.ndarray | None


def relaxed_bound(problem: Order, time_limit: float | None = None) -> Relaxation:
    """Return the bound by all paths together, a linear program.

    Variables are the shares x[m, k] of micro-batch m at position k (a doubly stochastic matrix) and
    when each pass ends. A pass takes the seconds of its position's micro-batches by their shares,
    and ends that much after what it waits for. Orders are the matrices of 0 and 1.

    Args:
        problem: the problem.
        time_limit: seconds after which ``path_bound`` alone is returned.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    floor = path_bound(problem)
    stages, count = problem.forward.shape
    square, passes = count * count, stages * count
    unit = problem.bound_seconds
    seconds = np.stack([problem.forward, problem.backward]) / unit
    end = square + np.arange(2 * passes).reshape(2, stages, count)
    step = square + 2 * passes  # the variable of the step's length
    waits = _waits(stages, count)
    own, behind = waits[:, :3], waits[:, 3:]
    number = np.arange(len(waits))
    cells = np.arange(count) * count + own[:, 2, None]  # column k of the shares
    has = behind[:, 0] >= 0
    parts = [
        (np.repeat(number, count), cells.ravel(), seconds[own[:, 0], own[:, 1]].ravel()),
        (number, end[tuple(own.T)], np.full(len(waits), -1.0)),
        (number[has], end[tuple(behind[has].T)], np.ones(int(has.sum()))),
        (np.array([len(waits)] * 2), np.array([end[1, 0, -1], step]), np.array([1.0, -1.0])),
    ]
    row, column, value = (np.concatenate(x) for x in zip(*parts, strict=True))
    before = coo_matrix((value, (row, column)), shape=(len(waits) + 1, step + 1)).tocsr()
    cell = np.arange(square)
    sums = np.concatenate([cell // count, count + cell % count])
    stochastic = coo_matrix(
        (np.ones(2 * square), (sums, np.tile(cell, 2))), shape=(2 * count, step + 1)
    ).tocsr()
    goal = np.zeros(step + 1)
    goal[step] = 1.0
    solved = linprog(
        goal, before, np.zeros(before.shape[0]), stochastic, np.ones(2 * count), (0, None),
        "highs", options={} if time_limit is None else {"time_limit": time_limit},
    )  # fmt: skip
    if solved.status != 0:
        return Relaxation(floor, None)
    bound = float(solved.fun) * unit * (1 - TOLERANCE)
    return Relaxation(max(floor, bound), solved.x[:square].reshape(count, count))


def _waits(stages: int, count: int) -> np.ndarray:
    """(n, 6) what each pass waits for: its kind, stage and position, and those of the other pass.

    The other is -1 where the pass waits for nothing.
    """
    rows: list[tuple[int, ...]] = []
    for stage in range(stages):
        left = stages - stage - 1
        warm = min(left, count)
        passes = [(0, stage, k) for k in range(warm)]
        for k in range(count - warm):
            passes += [(0, stage, warm + k), (1, stage, k)]
        passes += [(1, stage, k) for k in range(count - warm, count)]
        rows += [(*two, *one) for one, two in pairwise(passes)]
        for k in range(count):
            rows.append((0, stage, k, *((0, stage - 1, k) if stage else (-1, -1, -1))))
            rows.append((1, stage, k, *((1, stage + 1, k) if left else (0, stage, k))))
    return np.array(rows)
