"""Plans ranked by simulated seconds, as the closed form is a lower bound where stages differ."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from parenvs.agents.hybrid.labels import SLACK
from parenvs.core.plan import Answer
from parenvs.tasks.hybrid.space import UniformSpace
from parenvs.tasks.hybrid.space.objectives import Objective

CANDIDATES = 300
"""Uniform plans that are simulated, at most."""
SIMULATING = 5.0
"""Seconds of the processor after which no further uniform plan is simulated: others' work on the
machine changes no plan."""


@dataclass
class Ranking:
    """The plan whose simulated step is best so far.

    Attributes:
        goal: what is minimised.
        best: that plan, or None.
        value: what is minimised of its simulated seconds, weighted by devices.
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
            self.seen[key] = answer.cost if simulated is None else max(simulated, answer.cost)
            self.count += simulated is not None
        seconds = self.seen[key]
        value = seconds * self.goal.weight(sum(stage.devices for stage in answer.plan.stages))
        if value < self.value * (1 - SLACK):
            self.best, self.value = answer, value
        return seconds


def simulate_uniform(space: UniformSpace, ranking: Ranking, deadline: float) -> None:
    """Offer the uniform plans that are best by the closed form, until none can be better.

    Args:
        space: the plans.
        ranking: takes them.
        deadline: give up at this ``time.process_time()``.
    """
    problem = space.problem
    devices, of = np.unique(space.plans.devices, return_inverse=True)
    weight = np.array([ranking.goal.weight(count) for count in devices.tolist()])[of]
    values = space.length * weight
    for k in np.argsort(values, kind="stable")[:CANDIDATES].tolist():
        if values[k] >= ranking.value or time.process_time() > deadline:
            return
        if np.isfinite(values[k]):
            cost = float(space.length[k])
            ranking.offer(Answer(problem=problem, plan=space.plan(k), cost=cost))
