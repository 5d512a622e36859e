"""Orders of micro-batches by rule and by search: sorted, a pyramid, NEH, random, local search."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from parenvs.core.plan import Answer
from parenvs.core.request import Budget
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.order.problem import Order, pyramid

RULES = ("as-drawn", "ascending", "descending", "pyramid")
"""Orders that look at the work of each micro-batch only."""
TOGETHER = 16
"""Moves that ``swap`` judges together, of which the best is kept."""
BLOCK = 1024
"""Random orders that are judged together."""


def by_rule(problem: Order, rule: str) -> Answer:
    """Return an order by one of ``RULES``.

    Raises:
        ParenvsError: there is no such rule.
    """
    begin = time.perf_counter()
    ascending = np.argsort(problem.work, kind="stable")
    if rule not in RULES:
        raise ParenvsError(
            f"unknown rule {shown(rule)}{did_you_mean(str(rule), RULES)}; known: {', '.join(RULES)}"
        )
    orders = {
        "as-drawn": np.arange(problem.micro_batches),
        "ascending": ascending,
        "descending": ascending[::-1],
        "pyramid": pyramid(problem.work),
    }
    return _answer(problem, orders[rule], rule, 1, begin)


def neh(problem: Order, is_late: Callable[[], bool] = lambda: False) -> Answer:
    """Return the order of NEH: the heaviest first, each where the step of those so far is shortest.

    It judges ``M (M + 1) / 2 - 1`` orders (Nawaz, Enscore and Ham, Omega 11, 1983), most of them of
    fewer micro-batches.

    Args:
        problem: the problem.
        is_late: whether time is up; the micro-batches that are left then come last.
    """
    begin = time.perf_counter()
    order, judged = np.empty(0, dtype=np.int64), 0
    heaviest = np.argsort(-problem.work, kind="stable")
    for count, number in enumerate(heaviest):
        if is_late():
            order = np.concatenate([order, heaviest[count:]])
            break
        tried = np.array([np.insert(order, k, number) for k in range(len(order) + 1)])
        judged += len(tried)
        order = tried[int(np.argmin(problem.length(tried)))]
    return _answer(problem, order, "neh", judged, begin)


def random_order(problem: Order, judged: int, rng: np.random.Generator) -> Answer:
    """Return the best of ``judged`` random orders."""
    begin = time.perf_counter()
    best, lowest = np.arange(problem.micro_batches), np.inf
    for start in range(0, judged, BLOCK):
        count = min(BLOCK, judged - start)
        orders = rng.permuted(np.tile(np.arange(problem.micro_batches), (count, 1)), axis=1)
        lengths = problem.length(orders)
        if lengths.min() < lowest:
            best, lowest = orders[int(np.argmin(lengths))], lengths.min()
    return _answer(problem, best, "random", judged, begin)


def local_search(
    problem: Order,
    budget: Budget,
    rng: np.random.Generator,
    start: np.ndarray | None = None,
    width: int = 1,
) -> Answer:
    """Return the order of a search by swaps and insertions.

    Each move swaps two positions or takes a micro-batch to another position, either as likely, and
    is kept if the step gets no longer.

    Args:
        problem: the problem.
        budget: orders that it judges, the first included, and seconds.
        rng: draws the moves.
        start: (M,) the first order (default: the pyramid).
        width: moves that are judged together, of which the best may be kept.
    """
    begin = time.perf_counter()
    order = np.array(by_rule(problem, "pyramid").plan.order if start is None else start)
    length, judged = float(problem.length(order)), 1
    while problem.micro_batches > 1 and (left := budget.left(judged)):
        tried = np.array([_moved(order, rng) for _ in range(min(width, left))])
        judged += len(tried)
        lengths = problem.length(tried)
        best = int(np.argmin(lengths))
        if lengths[best] <= length:
            order, length = tried[best], float(lengths[best])
    return _answer(problem, order, "swap", judged, begin)


def swap(problem: Order, budget: Budget, rng: np.random.Generator) -> Answer:
    """Return the order of a search, ``TOGETHER`` moves at a time, from NEH's or the pyramid.

    Args:
        problem: the problem.
        budget: orders that it judges beside those of NEH, and seconds, of which NEH may take half.
        rng: draws the moves.
    """
    first = neh(problem, lambda: time.perf_counter() >= budget.end(0.5))
    start = min(first, by_rule(problem, "pyramid"), key=lambda answer: answer.cost)
    found = local_search(problem, budget, rng, np.array(start.plan.order), TOGETHER)
    evaluations = first.evaluations + found.evaluations
    return replace(found, evaluations=evaluations, seconds=time.perf_counter() - budget.begin)


def _moved(order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an order with two positions swapped, or with one micro-batch elsewhere."""
    one, other = rng.integers(len(order)), rng.integers(len(order) - 1)
    other += other >= one
    tried = order.copy()
    if rng.random() < 0.5:
        tried[[one, other]] = order[[other, one]]
    elif one < other:
        tried[one:other], tried[other] = order[one + 1 : other + 1], order[one]
    else:
        tried[other + 1 : one + 1], tried[other] = order[other:one], order[one]
    return tried


def _answer(problem: Order, order: np.ndarray, method: str, judged: int, begin: float) -> Answer:
    """Return an order as an answer that proves nothing but the machine bound."""
    return Answer(
        problem=problem,
        plan=problem.plan(order),
        cost=float(problem.length(order)),
        method=method,
        bound=problem.bound_seconds,
        evaluations=judged,
        seconds=time.perf_counter() - begin,
    )
