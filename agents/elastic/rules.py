"""Rules that choose plans: what systems do, and looking ahead as Parcae does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from parenvs.tasks.elastic.chances import plan_chances
from parenvs.tasks.elastic.library import GONE
from parenvs.tasks.elastic.movement import Degrees
from parenvs.tasks.elastic.problem import Elastic, Moment
from parenvs.tasks.elastic.references import Fastest
from parenvs.tasks.elastic.run import Policy

FASTER = 1.1
"""By how much a plan must be faster for ``Hysteresis`` to change without need."""
AHEAD = 12
"""Intervals that ``LookAhead`` looks ahead, as Parcae does (section 10 of its paper: minutes)."""
WINDOW = 60
"""Intervals over which ``LookAhead`` counts departures and joins."""


class Myopic(Fastest):
    """The plan that earns most in this interval, with its change."""

    name = "myopic"

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        fits = self.problem.fits(moment.nodes)
        earned = self.problem.earned[moment.event, moment.plan]
        best = int(np.where(fits, earned, -np.inf).argmax())
        if best == 0 or earned[best] <= 0:  # a start pays later
            return self.best_of(fits, moment)
        return best


class KeepDegrees(Fastest):
    """Elastic data parallelism: T and P stay those of the first choice, D follows the nodes.

    The first choice is the fastest plan when the first node is there. Where no plan of these
    degrees fits, the job waits.
    """

    name = "keep-degrees"

    def start(self, problem: Elastic) -> None:
        """See ``Policy``."""
        super().start(problem)
        self.mine: np.ndarray | None = None

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        fits = self.problem.fits(moment.nodes)
        plans = self.problem.library.candidates
        if self.mine is None:
            first = self.best_of(fits, moment)
            if first == 0:
                return 0
            ours = plans[first - 1].degrees
            self.mine = np.array(
                [True, *((p.degrees.tensor, p.degrees.pipeline) == ours[:2] for p in plans)]
            )
        return self.best_of(fits & self.mine, moment)


class Hysteresis(Fastest):
    """Changes if it must, or to a plan that is a tenth faster."""

    name = "hysteresis"

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        fits, rate = self.problem.fits(moment.nodes), self.problem.library.rate
        best = self.best_of(fits, moment)
        if fits[moment.plan] and rate[best] <= FASTER * rate[moment.plan]:
            return moment.plan
        return best


class LookAhead:
    """Parcae's rule: the most samples over the next intervals, with nodes as predicted.

    The number of nodes is predicted from the departures and joins of the last hour: it keeps to
    their mean trend. Within it, what preemptions cost each plan is an expectation, which Parcae
    samples and here is exact (``parenvs.tasks.elastic.chances``). The first plan of the best
    sequence is chosen. Parcae predicts by ARIMA and has no spares. See NSDI 2024, sections 5 and 6.

    Args:
        ahead: intervals to look ahead.
    """

    def __init__(self, ahead: int = AHEAD) -> None:
        self.ahead, self.name = ahead, "look-ahead"

    def start(self, problem: Elastic) -> None:
        """See ``Policy``."""
        self.problem = problem
        self.left, self.joined, self.there = np.zeros((3, WINDOW))
        self.cache: dict[tuple[float, tuple[int, ...]], np.ndarray] = {}
        self.chances: dict[float, np.ndarray] = {}

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        slot = moment.interval % WINDOW
        first = moment.interval == 0  # those that are there at the beginning did not join
        self.left[slot], self.joined[slot] = left, 0 if first else joined
        self.there[slot] = moment.nodes
        seen = min(moment.interval + 1, WINDOW)
        leave = round(float(self.left.sum() / max(self.there.sum(), 1.0)), 3)
        trend = float((self.joined - self.left).sum()) / seen
        max_nodes = self.problem.nodes
        steps = min(self.ahead, self.problem.intervals - moment.interval)
        nodes = tuple(
            int(np.clip(round(moment.nodes + trend * h), 0, max_nodes)) for h in range(1, steps)
        )
        after = self._value(leave, nodes)
        fits = self.problem.fits(moment.nodes)
        now = self.problem.earned[moment.event, moment.plan].copy()
        if moment.event == 0 and self.problem.saves(moment.since):
            now[moment.plan] -= self.problem.saved[moment.plan]
        return int(np.where(fits, now + after, -np.inf).argmax())

    def _value(self, leave: float, nodes: tuple[int, ...]) -> np.ndarray:
        """Return the expected samples after each choice, (K,), for predicted numbers of nodes."""
        if not nodes:
            return np.zeros(len(self.problem.library))
        if (leave, nodes) not in self.cache:
            chances = self._chances(leave)
            fits = self.problem.fits(nodes[0])
            later = np.where(fits, self._value(leave, nodes[1:]), -np.inf)
            best = (self.problem.earned + later).max(axis=2)
            # Half of the time between two checkpoints is lost on average.
            best[GONE] -= self.problem.lost_samples * self.problem.library.costs.every / 2
            self.cache[leave, nodes] = (chances * best).sum(axis=0)
        return self.cache[leave, nodes]

    def _chances(self, leave: float) -> np.ndarray:
        """Return the probabilities of what happens to each plan, (EVENTS, K)."""
        if leave not in self.chances:
            sizes = self.problem.library.sizes
            rows = [plan_chances(*size, leave).sum(axis=1) for size in sizes]
            self.chances[leave] = np.array(rows).T
        return self.chances[leave]


class Given:
    """Follows degrees that are given for each interval, such as another system's decisions.

    Degrees that are no candidate, or for which nodes are missing, are exchanged for the fastest
    plan with the same number of stages, or else the fastest of all.

    Args:
        degrees: of each interval.
        name: of the system.
    """

    def __init__(self, degrees: Sequence[Degrees], name: str) -> None:
        self.degrees, self.name = degrees, name

    def start(self, problem: Elastic) -> None:
        """See ``Policy``."""
        self.problem, self.exchanged = problem, 0
        self.number = {
            plan.degrees: k
            for k, plan in enumerate(problem.library.candidates, 1)
            if plan.spares == 0
        }

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        fits, wanted = self.problem.fits(moment.nodes), self.degrees[moment.interval]
        if fits[self.number.get(wanted, -1)] and wanted in self.number:
            return self.number[wanted]
        self.exchanged += 1
        library = self.problem.library
        alike = [False, *(p.degrees.pipeline == wanted.pipeline for p in library.candidates)]
        allowed = fits & np.array(alike)
        return int(np.where(allowed if allowed.any() else fits, library.rate, -1.0).argmax())


RULES: dict[str, Callable[[], Policy]] = {
    rule.name: rule for rule in (KeepDegrees, Fastest, Myopic, Hysteresis)
} | {"look-ahead": LookAhead}
"""Rules by name."""
