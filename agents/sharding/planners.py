"""Planners of shardings by name, and the request that they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parenvs.agents.sharding import heuristics
from parenvs.agents.sharding.solve import SECONDS, solve_iopddl
from parenvs.core.plan import Answer
from parenvs.core.request import Request
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.task import ShardingSearch


@dataclass(frozen=True)
class ShardingRequest(ShardingSearch, Request):
    """A program whose nodes need strategies; ``random`` plays one episode for each n ``steps``.

    Attributes:
        problem: the program, n nodes.
    """

    problem: Sharding

    @property
    def label(self) -> str:
        """Number of nodes."""
        return f"{len(self.problem)}-nodes"


def _exact(request: ShardingRequest) -> Answer:
    open_ended = request.time_limit is None and request.rounds is None
    seconds = SECONDS if open_ended else request.time_limit
    return solve_iopddl(
        request.problem, seconds, request.seed, request.rounds, threads=request.threads
    )


SHARDING_PLANNERS: dict[str, Callable[[ShardingRequest], Answer]] = {
    "exact": _exact,
    "greedy": lambda r: heuristics.greedy(r.problem),
    "random": lambda r: heuristics.random_plans(
        r.problem, max(r.steps // len(r.problem), 1), np.random.default_rng(r.seed)
    ),
}
"""Planners of shardings by name; ``exact`` searches, and proves a bound, within a time limit."""
ShardingRequest.planners = SHARDING_PLANNERS
