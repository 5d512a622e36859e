"""Plans ranked by their simulated step, and by the mean over the stacks that may run them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK
from parenvs.core.plan import Answer
from parenvs.tasks.hybrid.explain import under
from parenvs.tasks.hybrid.space import Objective, UniformSpace
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.tune.prior import lengths
from parenvs.view.words import duration

CANDIDATES = 300
"""Uniform plans that are simulated, at most."""
SIMULATING = 3.0
"""Seconds of the processor after which no further uniform plan is simulated: others' work on the
machine changes no plan."""


@dataclass
class Ranking:
    """The plan whose simulated step is best so far.

    Attributes:
        value: what is minimized of its simulated seconds, weighted by devices.
        count: plans that were simulated.
    """

    goal: Objective
    best: Answer | None = None
    value: float = np.inf
    count: int = 0
    seen: dict[str, float] = field(default_factory=dict)

    def offer(self, answer: Answer) -> float:
        """Simulate a plan, keep it if it is the best, and return its simulated seconds.

        The closed form counts for plans of more passes than are simulated.
        """
        key = str(answer.plan)
        if key not in self.seen:
            simulated = answer.problem.report(answer.plan).simulated_seconds
            # Rounding may put the simulation below the closed form, which bounds it from below.
            self.seen[key] = answer.cost if simulated is None else max(simulated, answer.cost)
            self.count += simulated is not None
        seconds = self.seen[key]
        value = seconds * weight_of(self.goal, answer)
        if value < self.value * (1 - SLACK):
            self.best, self.value = answer, value
        return seconds


def simulate_uniform(space: UniformSpace, ranking: Ranking, deadline: float) -> None:
    """Offer the uniform plans that are best by the closed form, until none can be better.

    ``deadline``: give up at this ``time.process_time()``.
    """
    problem = space.problem
    values = space.length * ranking.goal.weight(space.plans.devices)
    for k in np.argsort(values, kind="stable")[:CANDIDATES].tolist():
        # The closed form is a lower bound of the simulation: nothing behind can be shorter.
        if values[k] >= ranking.value or time.process_time() > deadline:
            return
        if np.isfinite(values[k]):
            cost = float(space.length[k])
            ranking.offer(Answer(problem=problem, plan=space.plan(k), cost=cost))


def weight_of(goal: Objective, answer: Answer) -> float:
    """Factor of an answer's seconds in what is minimized."""
    return goal.weight(sum(stage.devices for stage in answer.plan.stages))


RANKED, NEAR = 20, 1.25
"""Plans of each stack among which that of the best mean is looked for, and how much longer by the
problem's own stack they may be than its best one."""


def best_mean(
    space: UniformSpace, stacks: tuple[Stack, ...], ranking: Ranking, deadline: float
) -> tuple[Answer, str]:
    """Return the plan of the best mean logarithm over stacks, and what they say of it.

    Simulations add by each stack what they add by the problem's own, whose best ``ranking`` has.
    """
    problem, goal, alone = space.problem, ranking.goal, ranking.best
    assert alone is not None
    values = np.log(space.length * goal.weight(space.plans.devices))
    near = np.flatnonzero(values <= values.min() + np.log(NEAR))
    plans = space.plans.take(near)
    logs = lengths(problem, stacks, plans) + np.log(goal.weight(plans.devices))
    means = logs.mean(axis=0)
    few = np.unique(np.argsort(logs, axis=1, kind="stable")[:, :RANKED])
    own = lengths(problem, stacks, alone.plan).mean() + np.log(weight_of(goal, alone))
    best, least = alone, own + np.log(ranking.offer(alone) / alone.cost)
    most = least
    for k in few[np.lexsort((values[near[few]], means[few]))].tolist():
        # What the simulation adds is not negative: nothing behind can be better.
        if means[k] >= least - SLACK or time.process_time() > deadline:
            break
        cost = float(space.length[near[k]])
        answer = Answer(problem=problem, plan=space.plan(int(near[k])), cost=cost)
        value = means[k] + np.log(ranking.offer(answer) / cost)
        if value < least - SLACK:
            best, least = answer, value
    others = [replace(problem, stack=stack) for stack in stacks]
    judged = [(x.report(under(x, best.plan)), x.stack.name) for x in others]
    (low, first), *_, (high, last) = sorted((x.length_seconds, name) for x, name in judged)
    words = f"{len(stacks)} stacks say {duration(low)} ({first}) to {duration(high)} ({last})"
    if full := [name for report, name in judged if not report.legal]:
        words += f", and that it does not fit by {', '.join(full)}"
    if best is not alone:
        words += (
            f"; {problem.stack.name} alone prefers {alone.plan.words}, {duration(alone.cost)}, "
            f"which is {np.expm1(most - least):.1%} longer in the mean"
        )
    return best, words
