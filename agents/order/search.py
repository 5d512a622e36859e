"""Branch and bound over the orders of micro-batches, many nodes at a time.

A node is the beginning of an order. Its frontier is all that the rest needs to know
(``parenvs.tasks.order.formulas``), so a child costs one turn. What is left to do on a stage cannot
be done faster than one pass after the other, from when the next forward pass can reach the stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parenvs.agents.order.bounds import relaxed_bound
from parenvs.agents.order.heuristics import local_search, neh
from parenvs.core.answer import Answer
from parenvs.tasks.order import formulas
from parenvs.tasks.order.problem import Order

WIDTH = 256
"""Nodes that are expanded together, always the most promising of the deepest."""
START = 1024
"""Orders that the local search judges before the search begins."""
CLOSE = 1e-12
"""A node is left out if its bound is at most this share below the best length."""


class _Nodes(NamedTuple):
    """Beginnings of orders, all of the same length k.

    Attributes:
        order: (n, k) micro-batches.
        frontier: (n, S) seconds, see ``formulas``.
        used: (n, M) bool.
        bound: (n,) seconds that no order with this beginning takes less than.
    """

    order: np.ndarray
    frontier: np.ndarray
    used: np.ndarray
    bound: np.ndarray

    def rows(self, which: np.ndarray) -> _Nodes:
        """Return some of the nodes."""
        return _Nodes(*(x[which] for x in self))


class _Expansion:
    """Children of nodes, and their bounds."""

    def __init__(self, problem: Order) -> None:
        self.problem, self.seconds = problem, problem.seconds
        forward, backward = problem.forward, problem.backward
        self.stages, self.count = forward.shape
        self.wait = formulas.warming(self.stages, self.count + self.stages)
        self.work = (forward + backward).T
        self.tail = (backward.cumsum(axis=0) - backward).T
        through = np.concatenate([np.zeros((1, self.count)), forward.cumsum(axis=0)])
        # (S, S, M) forward seconds of each micro-batch from stage i up to, not including, stage s.
        self.between = np.array(
            [
                [through[s] - through[min(i, s)] for s in range(self.stages)]
                for i in range(self.stages)
            ]
        )

    def root(self) -> _Nodes:
        """Return the empty order."""
        nothing = np.zeros((1, 0), dtype=np.int64)
        used = np.zeros((1, self.count), dtype=bool)
        return _Nodes(nothing, np.zeros((1, self.stages)), used, np.zeros(1))

    def children(self, nodes: _Nodes) -> _Nodes:
        """Return all children of nodes that are not complete."""
        parent, chosen = np.nonzero(~nodes.used)
        turn, stages = nodes.order.shape[1], self.stages
        order = np.concatenate([nodes.order[parent], chosen[:, None]], axis=1)
        used = nodes.used[parent]
        used[np.arange(len(chosen)), chosen] = True
        before = nodes.frontier[parent]
        reached = formulas.forward_turn(
            before, self.seconds.before[chosen], self.seconds.through[chosen]
        )
        position = turn - (stages - 1 - np.arange(stages))
        passing = np.zeros_like(reached)
        at = np.flatnonzero(position >= 0)
        passing[:, at] = self.seconds.backward[order[:, position[at]], at]
        frontier = formulas.backward_turn(reached, before, passing, self.wait[turn])
        return _Nodes(order, frontier, used, self._bounds(order, frontier, used))

    def _bounds(self, order: np.ndarray, frontier: np.ndarray, used: np.ndarray) -> np.ndarray:
        """(n,) seconds that no completion takes less than."""
        left = ~used
        if not left.any():
            return self.problem.length(order)
        placed, stages = order.shape[1], self.stages
        remaining = left @ self.work
        for stage in range(stages):  # backward passes of what is placed
            waiting = order[:, max(placed - (stages - 1 - stage), 0) :]
            remaining[:, stage] += self.seconds.backward[waiting, stage].sum(axis=1)
        free = np.where(left[:, None, None, :], self.between, np.inf).min(axis=3)
        start = frontier[:, :, None] + np.triu(np.ones((stages, stages))) * free
        start = np.where(np.triu(np.ones((stages, stages), dtype=bool)), start, 0.0).max(axis=1)
        tail = np.where(left[:, :, None], self.tail, np.inf).min(axis=1)
        return np.asarray((start + remaining + tail).max(axis=1))


def exact_order(
    problem: Order,
    time_limit: float | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Answer:
    """Return an order that is proven optimal, or the best one within the time limit.

    Args:
        problem: the problem.
        time_limit: seconds (None: none).
        seed: of the local search whose order the search begins with.
        clock: what the limit is measured by, in seconds.

    Returns:
        The answer; ``bound`` is the least bound of the nodes that are left, or that of
        ``relaxed_bound`` if it is higher.
    """
    begin = clock()
    first = local_search(problem, START, np.random.default_rng(seed), neh(problem).plan.order, 16)
    best, length, judged = np.array(first.plan.order), first.cost, first.evaluations
    spare = None if time_limit is None else time_limit / 4
    floor = relaxed_bound(problem, spare).bound
    expansion = _Expansion(problem)
    levels: list[list[_Nodes]] = [[expansion.root()]] + [[] for _ in range(problem.micro_batches)]
    complete = problem.micro_batches
    while any(levels):
        if floor >= length * (1 - CLOSE):
            break
        if time_limit is not None and clock() - begin > time_limit:
            break
        depth = max(k for k, batches in enumerate(levels) if batches)
        nodes = levels[depth].pop()
        nodes = nodes.rows(np.flatnonzero(nodes.bound < length * (1 - CLOSE)))
        if not len(nodes.bound):
            continue
        if len(nodes.bound) > WIDTH:
            levels[depth].append(nodes.rows(np.arange(WIDTH, len(nodes.bound))))
            nodes = nodes.rows(np.arange(WIDTH))
        children = expansion.children(nodes)
        judged += len(children.bound)
        if depth + 1 == complete:
            lowest = int(np.argmin(children.bound))
            if children.bound[lowest] < length:
                best, length = children.order[lowest], float(children.bound[lowest])
            continue
        promising = np.flatnonzero(children.bound < length * (1 - CLOSE))
        promising = promising[np.argsort(children.bound[promising], kind="stable")]
        if len(promising):
            levels[depth + 1].append(children.rows(promising))
    open_bounds = [float(nodes.bound.min()) for batches in levels for nodes in batches]
    bound = min(max(floor, min(open_bounds, default=length)), length)
    proven = bound >= length * (1 - CLOSE)
    return Answer(
        problem=problem,
        plan=problem.plan(best),
        cost=length,
        method="exact",
        proven=proven,
        bound=length if proven else bound,
        evaluations=judged,
        seconds=clock() - begin,
    )
