"""Why agents miss optima of ``OperatorPartition-v0``: what the first decision is worth.

    python benchmarks/traps.py

An agent decides class by class. Of the two actions of the first decision that is open, the table
has the best return that each still allows, and the mean return of random play behind it. The last
column is how often each later decision has to be the best plan's until the better action pays more
than the other one does with the best play: the nearer to 1, the longer the optimum looks worse.
"""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, brentq, milp
from scipy.sparse import coo_array

from benchmarks.framework import INSTANCES, main, measurement, percent, table
from parenvs.bench.problems import BenchProblem, solve_problems
from parenvs.tasks.partition.game import PartitionSpace

EPISODES = 20_000
"""Random episodes behind an action."""
SURE = 1 - 1e-9


class Decisions:
    """Classes in the order in which an episode asks for them, what they pay, and their rivals.

    Args:
        space: of the environment; a return is a base and what the partitioned classes pay.
    """

    def __init__(self, space: PartitionSpace) -> None:
        self.base = space.problem.returns.base
        self.pays = space.problem.returns.weights[space.classes]
        self.rivals = [np.array(rivals, dtype=int) for rivals in space.rivals]

    def best(self, first: int) -> np.ndarray:
        """(K,) bool, the best plan whose first decision is ``first``."""
        count = len(self.pays)
        pairs = [(a, b) for a, rivals in enumerate(self.rivals) for b in rivals if a < b]
        bounds = Bounds(np.eye(1, count)[0] * first, 1 - np.eye(1, count)[0] * (1 - first))
        rows = np.repeat(np.arange(len(pairs)), 2)
        matrix = coo_array((np.ones(2 * len(pairs)), (rows, np.ravel(pairs).astype(int))),
                           shape=(len(pairs), count))  # fmt: skip
        limits = [LinearConstraint(matrix.tocsr(), ub=1)] if pairs else []
        found = milp(-self.pays, integrality=np.ones(count), bounds=bounds, constraints=limits)
        return np.round(found.x).astype(bool)

    def mean(self, plan: np.ndarray, share: float, rng: np.random.Generator) -> float:
        """Mean return of episodes with the plan's first decision.

        Args:
            plan: (K,) bool, the plan.
            share: how likely each later decision is the plan's; the others are the other action.
            rng: of the episodes.
        """
        draws = plan ^ (rng.random((EPISODES, len(plan))) >= share)
        draws[:, 0] = plan[0]
        ruled_out = np.zeros(draws.shape, dtype=bool)
        total = np.zeros(EPISODES)
        for k, rivals in enumerate(self.rivals):
            split = draws[:, k] & ~ruled_out[:, k]
            total += self.pays[k] * split
            ruled_out[np.ix_(split, rivals)] = True
        return self.base + float(total.mean())

    def needed(self, better: np.ndarray, other: float) -> float:
        """Share of right decisions from which a plan pays more than the return ``other``."""

        def lead(share: float) -> float:
            return self.mean(better, share, np.random.default_rng(0)) - other

        return 0.5 if lead(0.5) > 0 else float(brentq(lead, 0.5, SURE, xtol=1e-5))


def row(problem: BenchProblem) -> list[str]:
    """The table's row of a problem."""
    env = gym.make(problem.env_id, **problem.env_kwargs)
    decisions = Decisions(env.get_wrapper_attr("game").space)
    plans = [decisions.best(first) for first in (0, 1)]
    best = [decisions.base + float(decisions.pays @ plan) for plan in plans]
    assert np.isclose(max(best), problem.optimum), (best, problem.optimum)
    chance = [decisions.mean(plan, 0.5, np.random.default_rng(0)) for plan in plans]
    good = int(best[1] >= best[0])
    cells = [f"{percent(problem.gap(a))}; {b:.4g}" for a, b in zip(best, chance, strict=True)]
    return [
        problem.setting, problem.instance, str(len(decisions.pays)),
        percent(decisions.pays[0] / problem.optimum, 1), "partition" if good else "do not",
        *cells[::-1], f"{decisions.needed(plans[good], best[1 - good]):.4f}",
    ]  # fmt: skip


@measurement(title="Optima that look worse at first")
def traps() -> Iterator[list[str]]:
    for problem in solve_problems(["OperatorPartition-v0"], INSTANCES, [])[0]:
        yield row(problem)


@traps.page
def page(rows: list[list[str]]) -> list[str]:
    header = ["variant", "instance", "decisions", "the first pays", "best first action",
              "partition: gap; at random", "do not: gap; at random", "right decisions"]  # fmt: skip
    words = (
        f"{__doc__.split(chr(10) * 2)[2].strip()} Gap: of the best plan behind the action to the "
        f"optimum, as in `agents.md`. At random: mean return of {EPISODES:,} episodes behind it."
    )
    return [words.replace("\n", " "), table(header, rows, left=2)]


if __name__ == "__main__":
    main(traps)
