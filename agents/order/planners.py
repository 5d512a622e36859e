"""Planners of the order of micro-batches by name, and the request that they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from parenvs.agents.learning.learned import SAMPLES, learned
from parenvs.agents.names import LEARNED, LEARNED_SEARCH
from parenvs.agents.order import exact_order, heuristics
from parenvs.core.answer import Answer
from parenvs.core.request import SECONDS, Request
from parenvs.tasks.order.problem import Order
from parenvs.tasks.order.task import OrderSearch


@dataclass(frozen=True)
class OrderRequest(OrderSearch, Request):
    """Micro-batches to be ordered; planners that draw orders judge one for each M ``steps``.

    Attributes:
        problem: the micro-batches.
    """

    problem: Order

    @property
    def judged(self) -> int:
        """Orders that planners judge that draw or search."""
        return max(self.steps // self.problem.micro_batches, 1)

    @property
    def label(self) -> str:
        """Stages and micro-batches."""
        return f"p{self.problem.stages}-m{self.problem.micro_batches}"


def _learned(request: OrderRequest) -> Answer:
    """Return the best order of the network that ships."""
    problem = request.problem
    found = learned("MicroBatchOrder-v1", problem, seed=request.seed)
    return Answer(
        problem=problem, plan=found.plan, cost=found.cost, bound=problem.bound_seconds,
        evaluations=SAMPLES + 1,
    )  # fmt: skip


def _searched(request: OrderRequest) -> Answer:
    """Return the order of a search by swaps and insertions from the network's."""
    rng, start = np.random.default_rng(request.seed), np.array(_learned(request).plan.order)
    width = heuristics.TOGETHER
    return heuristics.local_search(request.problem, request.judged, rng, start, width)


ORDER_PLANNERS: dict[str, Callable[[OrderRequest], Answer]] = {
    "exact": lambda r: exact_order(
        r.problem,
        SECONDS if r.time_limit is None and r.rounds is None else r.time_limit,
        r.seed,
        r.rounds,
    ),
    "neh": lambda r: heuristics.neh(r.problem),
    "swap": lambda r: heuristics.swap(r.problem, r.judged, np.random.default_rng(r.seed)),
    LEARNED: _learned,
    LEARNED_SEARCH: _searched,
    "random": lambda r: heuristics.random_order(r.problem, r.judged, np.random.default_rng(r.seed)),
    **{
        rule: partial(lambda rule, r: heuristics.by_rule(r.problem, rule), rule)
        for rule in heuristics.RULES
    },
}
"""Planners of the order of micro-batches by name.

``swap`` searches from the order of NEH by swaps and insertions, ``learned+search`` from that of the
network of ``MicroBatchOrder-v1``, ``learned``.
"""
OrderRequest.planners, OrderRequest.usual = ORDER_PLANNERS, heuristics.RULES[0]
