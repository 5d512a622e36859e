"""Planners of the order of unequal servers, one server for each stage, by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parenvs.agents.hybrid.servers.heuristics import random_orders, sorted_orders, swap_search
from parenvs.agents.hybrid.servers.sandwich import sandwich
from parenvs.agents.hybrid.servers.solve import subset_search
from parenvs.agents.hybrid.servers.tables import one_server
from parenvs.core.plan import Answer
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints

SERVER_PLANNERS: dict[
    str, Callable[[Hybrid, Constraints, int, float | None], Answer]
] = {
    "sorted-servers": lambda problem, limits, seed, seconds: sorted_orders(problem, limits),
    "random-servers": lambda problem, limits, seed, seconds: random_orders(
        problem, np.random.default_rng(seed), limits, time_limit=seconds
    ),
    "swap-search": lambda problem, limits, seed, seconds: swap_search(
        problem, np.random.default_rng(seed), limits, time_limit=seconds
    ),
    "sandwich": lambda problem, limits, seed, seconds: sandwich(
        problem, one_server(limits), time_limit=seconds
    ),
    "subset-dp": lambda problem, limits, seed, seconds: subset_search(
        problem, one_server(limits), time_limit=seconds
    ),
}  # fmt: skip
"""Name -> planner; each takes a problem, constraints, a seed and a time limit."""
