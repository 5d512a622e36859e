"""Who teaches in ``MicroBatchOrder-v1``: orders of NEH that a local search improved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parenvs.agents.order.heuristics import local_search, neh
from parenvs.core.request import Budget
from parenvs.tasks.order.insertion import Insertion, MicroBatchInsertion

JUDGED, WIDTH = 1024, 16
"""Orders that the search of a problem judges, and how many of them together."""


def teach(game: Any) -> Callable[[], np.ndarray] | None:
    """Return a function of what actions are worth, (n, A); None if nothing is known of the game.

    The teacher's choice is worth 0, and of other actions nothing is known, which is NaN. It puts
    the next micro-batch where its order has it among those that are ordered.
    """
    if not isinstance(game, MicroBatchInsertion):
        return None
    orders: dict[int, tuple[Insertion, np.ndarray]] = {}

    def worth() -> np.ndarray:
        size = game.mask.shape[1]
        known = np.full((game.count, size), np.nan, dtype=np.float32)
        for row in np.flatnonzero(~game.over).tolist():
            problem = game.problems[row]
            if id(problem) not in orders:
                orders[id(problem)] = problem, _ranks(problem)
            ranks = orders[id(problem)][1]
            placed = int(game.placed[row])
            ordered = game.order[row, :placed] - row * size
            coming = ranks[problem.heaviest[placed]]
            known[row, int((ranks[ordered] < coming).sum())] = 0.0
        return known

    return worth


def _ranks(problem: Insertion) -> np.ndarray:
    """Return the position of each micro-batch in the teacher's order, (M,)."""
    first = np.array(neh(problem.problem).plan.order)
    rng = np.random.default_rng(0)
    found = local_search(problem.problem, Budget(JUDGED), rng, first, WIDTH)
    return np.argsort(np.array(found.plan.order))
