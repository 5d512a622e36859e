"""Planners of the order of micro-batches by name, and the request that they answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from parenvs.agents.learning.learned import SAMPLES, learned
from parenvs.agents.names import LEARNED, LEARNED_SEARCH
from parenvs.agents.order import exact_order, heuristics
from parenvs.core.plan import Answer
from parenvs.core.request import SECONDS, Budget, Request
from parenvs.errors import InfeasibleError
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
        """Orders that planners judge that draw or search, without a time limit."""
        return max(self.steps // self.problem.micro_batches, 1)

    @property
    def budget(self) -> Budget:
        """What a search may spend that begins now."""
        return Budget(self.judged, seconds=self.time_limit)

    @property
    def label(self) -> str:
        """Stages and micro-batches."""
        return f"p{self.problem.stages}-m{self.problem.micro_batches}"


def _learned(request: OrderRequest, deadline: float = np.inf) -> Answer:
    """Return the best order of the network that ships.

    Raises:
        InfeasibleError: not all micro-batches were inserted at the deadline.
    """
    problem = request.problem
    found = learned("MicroBatchOrder-v1", problem, seed=request.seed, deadline=deadline)
    return Answer(
        problem=problem, plan=found.plan, cost=found.cost, bound=problem.bound_seconds,
        evaluations=SAMPLES + 1,
    )  # fmt: skip


def _searched(request: OrderRequest) -> Answer:
    """Return the order of a search by swaps and insertions from the network's or the pyramid."""
    problem, budget, rng = request.problem, request.budget, np.random.default_rng(request.seed)
    known = [heuristics.by_rule(problem, "pyramid")]
    with suppress(InfeasibleError):
        known.append(_learned(request, budget.end(0.5)))
    start = np.array(min(known, key=lambda answer: answer.cost).plan.order)
    return heuristics.local_search(problem, budget, rng, start, heuristics.TOGETHER)


ORDER_PLANNERS: dict[str, Callable[[OrderRequest], Answer]] = {
    "exact": lambda r: exact_order(
        r.problem,
        SECONDS if r.time_limit is None and r.rounds is None else r.time_limit,
        r.seed,
        r.rounds,
    ),
    "neh": lambda r: heuristics.neh(r.problem),
    "swap": lambda r: heuristics.swap(r.problem, r.budget, np.random.default_rng(r.seed)),
    LEARNED: _learned,
    LEARNED_SEARCH: _searched,
    "random": lambda r: heuristics.random_order(r.problem, r.judged, np.random.default_rng(r.seed)),
    **{
        rule: partial(lambda rule, r: heuristics.by_rule(r.problem, rule), rule)
        for rule in heuristics.RULES
    },
}
"""Planners of the order of micro-batches by name.

``swap`` searches by swaps and insertions from the better order of NEH's and the pyramid,
``learned+search`` of the pyramid and that of the network of ``MicroBatchOrder-v1``, ``learned``.
"""
OrderRequest.planners, OrderRequest.usual = ORDER_PLANNERS, heuristics.RULES[0]
