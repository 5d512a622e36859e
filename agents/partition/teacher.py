"""What each choice of ``PartitionPlan-v2`` is worth: the return of the best plan behind it.

The best plan behind a choice is the optimum of an integer program of the classes that are open
then, which HiGHS solves in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from parenvs.agents.partition.exact import solve
from parenvs.compiled import Array
from parenvs.tasks.partition.choice import PartitionChoice
from parenvs.tasks.partition.game import OPEN, PARTITION, REPLICATE
from parenvs.tasks.partition.linear import Linear

KEPT = 200_000
"""States of which it is known what their choices are worth."""


GAP = 1e-6
"""Share that the worth of a plan may lack."""


class Best(NamedTuple):
    """A shortest plan: its seconds, inf if there is none, and the classes that it splits, (K,)."""

    seconds: float
    split: Array


class Continuations:
    """The best plans that go on from partial plans of a problem."""

    def __init__(self, problem: Linear) -> None:
        self.problem = problem
        self.saved = problem.saved_bytes[:, problem.fullest].T / problem.limit
        self.needed = problem.replicated_bytes[problem.fullest] / problem.limit - 1.0
        self._known: dict[bytes, Best] = {}

    def best(self, decisions: Array) -> Best:
        """Return the shortest plan that keeps to decisions, (K,)."""
        key = decisions.tobytes()
        if key not in self._known:
            self._keep(key, self._solve(decisions))
        return self._known[key]

    def behind(self, decisions: Array, stake: int, choice: int) -> Best:
        """Return the shortest plan that keeps to decisions and to one more, of the class ``stake``.

        Often it is the shortest without that one.
        """
        made = decisions.copy()
        made[stake] = choice
        if choice == PARTITION:
            made[self.problem.rivals[stake]] = REPLICATE
        best = self.best(decisions)
        if best.split[stake] == (choice == PARTITION):
            self._keep(made.tobytes(), best)
        return self.best(made)

    def _keep(self, key: bytes, best: Best) -> None:
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[key] = best

    def _solve(self, decisions: Array) -> Best:
        problem, split = self.problem, decisions == PARTITION
        free = np.flatnonzero(decisions == OPEN)
        needed = self.needed - self.saved[:, split].sum(axis=1)
        tight = needed > 0
        if len(free):
            conflicts = problem.conflicts[:, free]
            conflicts = conflicts[conflicts.sum(axis=1) == 2]
            rows = self.saved[np.ix_(tight, free)]
            solution, _ = solve(problem.gain[free], conflicts, rows, needed[tight], np.inf, GAP)
            if solution.x is None:
                return Best(np.inf, split)
            split[free] = solution.x > 0.5
        elif tight.any():
            return Best(np.inf, split)
        return Best(float(problem.seconds(split)), split)


def teach(game: Any) -> Callable[[], Array] | None:
    """Return a function of what choices are worth, (n, 2), NaN of those that are not legal.

    The unit is the return of the episode; None is returned of another game.
    """
    if not isinstance(game, PartitionChoice):
        return None
    problems: dict[Linear, Continuations] = {}

    def action_values() -> Array:
        legal, result = game.legal, np.full((game.count, 2), np.nan, np.float32)
        for row in np.flatnonzero(~game.over).tolist():
            problem, stake = game.linear(row), int(game.position[row])
            behind = problems.setdefault(problem, Continuations(problem))
            decisions = game.partial_plans.decisions[row, : len(problem.gain)]
            for choice in np.flatnonzero(legal[row]).tolist():
                best = behind.behind(decisions, stake, choice)
                result[row, choice] = np.log(game.reference[row] / best.seconds)
        return result

    return action_values
