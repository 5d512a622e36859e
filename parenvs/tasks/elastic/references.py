"""What courses are measured against: the most that can be earned on them, and the fastest plans.

On a course that is known beforehand the next state depends on the plan in force, what happened to
it, the intervals since its state was safe, and the time, so going back from the last interval gives
the most that any policy can earn on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.elastic.course import Course
from parenvs.tasks.elastic.library import CHECKPOINT, GONE
from parenvs.tasks.elastic.problem import Elastic, Moment
from parenvs.tasks.elastic.run import Run, follow


class Fastest:
    """The fastest plan that fits, whatever the change costs; among equals that with most spares."""

    name = "fastest"

    def start(self, problem: Elastic) -> None:
        """See ``Policy``."""
        self.problem = problem
        library = problem.library
        self.rank = library.rate * (1.0 + 1e-9 * library.spares)

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        return self.best_of(self.problem.fits(moment.nodes), moment)

    def best_of(self, allowed: np.ndarray, moment: Moment) -> int:
        """Return the best of some plans, the one in force among equals."""
        best = int(np.where(allowed, self.rank, -1.0).argmax())
        old = moment.plan
        return old if allowed[old] and self.rank[old] >= self.rank[best] else best


class Backup:
    """What an interval earns, laid out for going back.

    Attributes:
        change: (EVENTS, K, K) samples of changes and repairs; those that are none cannot be chosen.
        keep: (K, C) samples of keeping a plan, by the intervals since its state was safe.
        write: (K,) the same with a checkpoint that the policy has written; minus infinity where
            it cannot.
    """

    def __init__(self, problem: Elastic) -> None:
        plans, every = len(problem.library), problem.library.costs.every
        self.change = problem.earned.copy()
        own = np.arange(1, plans)
        self.change[0, own, own] = -np.inf  # to keep a plan is no change
        unchanged = np.diagonal(problem.earned[0])[:, None]
        written = np.array([problem.saves(since) for since in range(every)])
        self.keep = unchanged - written * problem.saved[:, None]
        self.write = unchanged[:, 0] - (problem.saved if problem.checkpoints else np.inf)

    def kept(self, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what keeping a plan earns, and whether to have a checkpoint written for that.

        Args:
            after: (..., K, C) samples to come, by the intervals since the state is safe then.

        Returns:
            (..., K, C) float64 and bool.
        """
        keep = self.keep + np.roll(after, -1, axis=-1)
        write = (self.write + after[..., 0])[..., None]
        return np.maximum(keep, write), write > keep


def hindsight(problem: Elastic, course: Course) -> Run:
    """Return the most that can be earned on a course that is known beforehand.

    No policy earns more on it. Ties go to the plan in force.
    """
    library, count = problem.library, problem.intervals
    plans, every = len(library), library.costs.every
    backup, rows = Backup(problem), np.arange(plans)
    change = np.zeros((count, plans), dtype=np.int8)
    stays, writes = np.zeros((2, count, plans, every), dtype=bool)
    after = np.zeros((plans, every))
    for t in range(count - 1, -1, -1):
        fits = problem.fits(int(course.nodes[t]))
        event = problem.events(course.lost[t])
        options = backup.change[event, rows] + np.where(fits, after[:, 0], -np.inf)
        change[t] = options.argmax(axis=1)
        moved = options[rows, change[t]][:, None]
        lost = np.where(event == GONE, problem.lost_samples, 0.0)
        moved = moved - lost[:, None] * np.arange(every)
        keep, writes[t] = backup.kept(after)
        keep[~fits | (event > 0)] = -np.inf
        keep[0] = -np.inf
        stays[t] = keep >= moved
        after = np.maximum(keep, moved)
    return follow(problem, course, _Known(change, stays, writes))


class _Known:
    """Follows what was worked out for a course."""

    name = "hindsight"

    def __init__(self, change: np.ndarray, stays: np.ndarray, writes: np.ndarray) -> None:
        self.change, self.stays, self.writes = change, stays, writes

    def start(self, problem: Elastic) -> None:
        """See ``Policy``."""

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        t, _, plan, event, since = moment
        if event == 0 and self.stays[t, plan, since]:
            return CHECKPOINT if self.writes[t, plan, since] else plan
        return int(self.change[t, plan])


class Known(NamedTuple):
    """What is earned on the course of a problem on which nothing is random.

    Attributes:
        best: samples of hindsight, which no policy exceeds; more than 0.
        start: samples of ``Fastest``.
    """

    best: float
    start: float


def known_of(problem: Elastic, course: Course | None = None) -> Known:
    """Return what is earned on a course (default: the problem's only one).

    Raises:
        InfeasibleError: no plan earns anything on it.
    """
    course = problem.course() if course is None else course
    best = hindsight(problem, course).total
    if best <= 0.0:
        raise InfeasibleError(f"{problem.name}: no plan earns anything on this course")
    return Known(best, follow(problem, course, Fastest()).total)
