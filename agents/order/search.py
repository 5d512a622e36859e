"""Branch and bound over the positions of micro-batches, the heaviest first.

A node fixes the positions of the d heaviest micro-batches; its bound is that of the linear program
over all paths with these shares fixed (``parenvs.agents.order.bounds``). A heavy micro-batch that
the program may spread over all positions costs it little, and one that has a position delays all
that comes after it, so bounds rise quickly. Before a node's own program is solved, its bound is
that of its parent's average of paths. The open node with the least bound is always the next.

Passes take whole nanoseconds, and so do steps: a bound is rounded up to the next one.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parenvs.agents.order.bounds import Program, Relaxation, path_bound
from parenvs.agents.order.heuristics import local_search, neh
from parenvs.core.plan import Answer
from parenvs.core.request import Budget
from parenvs.tasks.order.problem import NANO, Order

START = 32
"""Orders for each micro-batch that a local search judges before the first program is solved."""
PART = 2048
"""Orders that a local search judges between two looks at the clock."""
PACE = 3e-7
"""Seconds for each coefficient of a program until it can be solved, on a slow core."""
SLACK = 1e-3
"""Nanoseconds that a bound may be above a whole one and still be called that one."""


class _Node(NamedTuple):
    """Orders that have some micro-batches at given positions.

    Attributes:
        bound: seconds that none of them takes less than.
        number: tells nodes apart; of equal bounds the one with the greatest depth is first.
        positions: of the heaviest micro-batches, heaviest first.
        relaxation: of the parent until the own program is solved.
        is_solved: whether that is the node's own.
    """

    bound: float
    number: tuple[int, int]
    positions: tuple[int, ...]
    relaxation: Relaxation | None
    is_solved: bool


class _Search:
    """One problem's search: its best order, its open nodes, and what it has spent."""

    def __init__(
        self,
        problem: Order,
        seed: int,
        programs: int | None,
        left: Callable[[], float | None],
    ) -> None:
        self.problem, self.rng, self.left = problem, np.random.default_rng(seed), left
        self.programs = math.inf if programs is None else programs
        first = neh(problem, self._is_late)
        self.order, self.length = np.array(first.plan.order), first.cost
        self.judged, self.solved, self.made = first.evaluations, 0, 0
        self._improve(START * problem.micro_batches)
        self.by_work = np.argsort(-problem.work, kind="stable")
        self.open: list[_Node] = []
        self.floor = _rounded_up(path_bound(problem))

    @property
    def bound(self) -> float:
        """Seconds that no order takes less than."""
        least = self.open[0].bound if self.open else self.length
        return min(max(self.floor, least), self.length)

    def run(self) -> None:
        """Search until the best order is proven, or nothing of what may be spent is left."""
        self._push(self.floor, (), None, False)
        program = None
        while self.open and self.bound < self.length:
            if self.solved >= self.programs or self._is_late():
                return
            left, node = self.left(), heapq.heappop(self.open)
            if node.is_solved:
                self._expand(node)
                continue
            if program is None:
                stages, count = self.problem.forward.shape
                if left is not None and PACE * 4 * stages * count**2 > left:
                    heapq.heappush(self.open, node)
                    return
                program, left = Program(self.problem), self.left()
            relaxation = program.solve(self._fixed(node), node.positions, left)
            if relaxation is None:
                heapq.heappush(self.open, node)
                return
            self.solved += 1
            self._suggest(relaxation.share)
            bound = relaxation.bound(self._fixed(node), node.positions)
            self._push(max(node.bound, bound), node.positions, relaxation, True)

    def _expand(self, node: _Node) -> None:
        """Put the next micro-batch at every free position."""
        depth, count = len(node.positions), self.problem.micro_batches
        free = [k for k in range(count) if k not in node.positions]
        if len(free) <= 2:
            orders = [[*node.positions, *rest] for rest in (free, free[::-1])]
            self._judge(self.by_work[np.argsort(orders, axis=1)])
            return
        relaxation = node.relaxation
        assert relaxation is not None
        chosen = self.by_work[: depth + 1]
        for k in free:
            positions = (*node.positions, k)
            bound = max(node.bound, relaxation.bound(chosen, positions))
            self._push(bound, positions, relaxation, False)

    def _push(
        self, bound: float, positions: tuple[int, ...], relaxation: Relaxation | None, solved: bool
    ) -> None:
        bound = _rounded_up(bound)
        if bound < self.length:
            self.made += 1
            number = (-len(positions), self.made)
            heapq.heappush(self.open, _Node(bound, number, positions, relaxation, solved))

    def _fixed(self, node: _Node) -> np.ndarray:
        return np.asarray(self.by_work[: len(node.positions)])

    def _suggest(self, share: np.ndarray) -> None:
        """Judge the order of the micro-batches' mean positions, and orders near the best one."""
        order = np.argsort(share @ np.arange(len(share)), kind="stable")
        self._judge(order[None])
        self._improve(self.problem.stages * self.problem.micro_batches // 2)

    def _improve(self, judged: int) -> None:
        """Judge orders near the best one, about as long as a program takes."""
        width = 2 * self.problem.micro_batches
        while judged > 0 and not self._is_late():
            near = local_search(
                self.problem, Budget(min(judged, PART)), self.rng, self.order, width
            )
            self.judged += near.evaluations
            judged -= PART
            if near.cost <= self.length:
                self.order, self.length = np.array(near.plan.order), near.cost

    def _is_late(self) -> bool:
        left = self.left()
        return left is not None and left <= 0

    def _judge(self, orders: np.ndarray) -> None:
        lengths = self.problem.length(orders)
        self.judged += len(orders)
        index = int(np.argmin(lengths))
        if lengths[index] < self.length - SLACK / NANO:
            self.order, self.length = orders[index], float(lengths[index])


def _rounded_up(bound: float) -> float:
    """Seconds of the next whole nanosecond."""
    return math.ceil(bound * NANO - SLACK) / NANO


def exact_order(
    problem: Order,
    time_limit: float | None = None,
    seed: int = 0,
    rounds: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Answer:
    """Return an order that is proven optimal, or the best one within the limits, with a bound.

    Args:
        problem: the problem.
        time_limit: seconds (None: none).
        seed: of the local searches.
        rounds: linear programs that are solved (None: as many as it takes); without a time limit
            the answer is the same every time.
        clock: what the time limit is measured by, in seconds.
    """
    begin = clock()

    def left() -> float | None:
        return None if time_limit is None else begin + time_limit - clock()

    search = _Search(problem, seed, rounds, left)
    search.run()
    proven = search.bound >= search.length
    return Answer(
        problem=problem,
        plan=problem.plan(search.order),
        cost=search.length,
        method="exact",
        proven=proven,
        bound=search.length if proven else search.bound,
        evaluations=search.judged,
        seconds=clock() - begin,
    )
