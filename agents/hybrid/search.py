"""Local search over the neighbors of hybrid plans, from the best uniform plans.

A start climbs to the fastest of its neighbors until none is faster; then some of its neighbors
are taken by chance, and it climbs again (iterated local search). Several starts go on at once, so
that their neighbors are judged in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parenvs.agents.hybrid.exact import answer_of
from parenvs.core.plan import Answer
from parenvs.core.request import Budget
from parenvs.tasks.hybrid.moves.columns import DEVICES
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.plan_arrays import (
    Plans,
    Table,
    distinct,
    joined,
    neighbors,
    plan_of,
    plans_of,
    prepared,
    table_of,
)
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, Objective, UniformSpace, infeasible

EVALUATIONS = 20_000
"""Plans that are judged where no time limit is given."""
STARTS = 4
"""Uniform plans from which the search starts, no two alike in tp, stages and micro-batch."""
KICKS = 3
"""Most neighbors that are taken by chance before a start climbs again."""
WORSE = 1.5
"""Plans that take longer than this times the one before are not taken by chance."""
SLACK = 1e-9
"""Share by which a plan has to be faster."""


def local_search(
    problem: Hybrid,
    constraints: Constraints | None = None,
    objective: Objective | None = None,
    seed: int = 0,
    evaluations: int | None = None,
    time_limit: float | None = None,
    space: UniformSpace | None = None,
    starts: Sequence[HybridPlan] = (),
) -> Answer:
    """Return the best plan that a search over neighboring plans judges.

    Without a time limit the answer is the same for the same seed. ``evaluations`` plans are judged
    beside the uniform ones (default: ``EVALUATIONS``; with a time limit, as many as it allows).
    ``time_limit`` counts the seconds of the uniform plans, too, which are ``space`` if they were
    judged before. ``starts`` are more legal plans to start from; those that do not go into arrays
    are left out.

    Raises:
        InfeasibleError: no uniform plan fits, and there is no other start; says how many bytes the
            smallest one lacks.
    """
    budget = Budget(EVALUATIONS, evaluations, time_limit)
    limits, goal = constraints or Constraints(), objective or Objective()
    if space is None:
        space = UniformSpace.build(
            problem, replace(limits, uneven=True, expert_tp=limits.expert_tp or 0), budget.end(0.5)
        )
    values = goal.values(problem, space.length, space.plans.devices)
    parts = [plans_of(problem, [plan]) for plan in starts]
    in_arrays = np.where(space.fits & (space.plans.schedule == ""), values, np.inf)
    uniform = [space.plan(int(k)) for k in distinct(space.plans, in_arrays, STARTS)]
    parts += [plans_of(problem, uniform)] if uniform else []
    given = [part for part in parts if part is not None]
    best = space.best(values)
    if best is None and not given:
        raise infeasible(space)
    plan = None if best is None else space.plan(best)
    value = np.inf if best is None else float(values[best])
    judged = 0
    if given and budget.left(0):
        table, rng = table_of([prepared(problem, limits)]), np.random.default_rng(seed)
        climber = Climber(problem, table, joined(given), goal, limits, rng)
        while budget.left(climber.judged) and climber.step():
            pass
        judged, best_start = climber.judged, int(climber.best_value.argmin())
        if climber.best_value[best_start] < value * (1 - SLACK):
            plan = plan_of(problem, climber.best, best_start)
    assert plan is not None
    method = {"method": "search", "evaluations": len(space) + judged}
    return answer_of(problem, plan, problem.length(plan), budget.begin, **method)


class Climber:
    """Several starts of an iterated local search on one problem, in row 0 of the table.

    Attributes:
        best: the best plan of each start so far.
        best_value: (n,) what is minimized of it.
        judged: number of plans that were judged.
    """

    def __init__(
        self,
        problem: Hybrid,
        table: Table,
        plans: Plans,
        goal: Objective,
        limits: Constraints | None,
        rng: np.random.Generator,
    ) -> None:
        self.table, self.goal, self.limits, self.rng = table, goal, limits, rng
        self.problem, self.plans = problem, plans
        judged = table.judge(plans)
        self.busy, self.judged = judged.busy, len(judged.length)
        self.value = self._values(plans, judged.length)
        self.best, self.best_value = plans, self.value.copy()
        self.kicks = np.zeros(len(self.value), np.int64)

    def _values(self, plans: Plans, length: np.ndarray) -> np.ndarray:
        devices = plans.of_stages(DEVICES).sum(axis=1)
        return np.asarray(self.goal.values(self.problem, length, devices))

    def step(self) -> bool:
        """Take one neighbor of every plan; return whether any of them has one."""
        near, of_plan, _ = neighbors(self.table, self.plans, self.busy, self.limits)
        judged = self.table.judge(near)
        self.judged += len(of_plan)
        count = len(self.value)
        value = np.where(judged.fullness <= 1, self._values(near, judged.length), np.inf)
        # Of the plans, the best ones and the neighbors that are taken, which is next.
        following = np.arange(count)
        taken: list[int] = []
        for start in range(count):
            candidates = np.flatnonzero(of_plan == start)
            values = value[candidates]
            # After a kick worse neighbors are taken for some steps, within ``WORSE`` of the value.
            if self.kicks[start] > 0:
                self.kicks[start] -= 1
                fine = candidates[values <= WORSE * self.value[start]]
                if not fine.size:
                    continue
                choice = int(self.rng.choice(fine))
            elif values.size and values.min() < self.value[start] * (1 - SLACK):
                choice = int(candidates[int(values.argmin())])
            else:  # nothing is faster: go on from the best plan by chance
                self.kicks[start] = int(self.rng.integers(1, KICKS + 1))
                following[start] = count + start
                self.value[start] = self.best_value[start]
                continue
            following[start] = 2 * count + len(taken)
            taken.append(choice)
            self.value[start] = value[choice]
        moved = [near.take(np.array(taken))] if taken else []
        self.plans = joined([self.plans, self.best, *moved]).take(following)
        self.busy = self.table.judge(self.plans).busy
        better = self.value < self.best_value * (1 - SLACK)
        either = np.where(better, count, 0) + np.arange(count)
        self.best = joined([self.best, self.plans]).take(either)
        self.best_value = np.where(better, self.value, self.best_value)
        return bool(np.isfinite(value).any())
