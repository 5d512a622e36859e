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


class Foresight:
    """What every choice is worth on a course that is known beforehand; as a policy, hindsight.

    Args:
        problem: the problem.
        course: the course.

    Attributes:
        after: (S+1, K, C) most samples to come at the beginning of each interval, by the plan in
            force and the intervals since its state is safe; what happened to the plan before the
            interval is the course's.
    """

    name = "hindsight"

    def __init__(self, problem: Elastic, course: Course) -> None:
        self.problem, self.backup = problem, Backup(problem)
        plans, every = self.backup.keep.shape
        rows, since = np.arange(plans), np.arange(every)
        self.after = np.zeros((problem.intervals + 1, plans, every))
        for t in range(problem.intervals - 1, -1, -1):
            after = self.after[t + 1]
            fits, event = problem.fits(int(course.nodes[t])), problem.events(course.lost[t])
            options = self.backup.change[event, rows] + np.where(fits, after[:, 0], -np.inf)
            lost = np.where(event == GONE, problem.lost_samples, 0.0)
            moved = options.max(axis=1)[:, None] - lost[:, None] * since
            keep, _ = self.backup.kept(after)
            keep[~fits | (event > 0)] = -np.inf
            keep[0] = -np.inf
            self.after[t] = np.maximum(keep, moved)

    def worth(self, moment: Moment) -> np.ndarray:
        """Return the samples of an interval's choices and those to come, (K + 1,).

        The last is to keep the plan and have a checkpoint written; minus infinity stands for what
        cannot be chosen. What was lost before the interval is left out, as no choice changes it.
        """
        t, nodes, plan, event, since = moment
        after, fits = self.after[t + 1], self.problem.fits(nodes)
        result = np.full(len(fits) + 1, -np.inf)
        result[:-1] = self.backup.change[event, plan] + np.where(fits, after[:, 0], -np.inf)
        if event == 0 and plan > 0 and fits[plan]:
            every = after.shape[1]
            result[plan] = self.backup.keep[plan, since] + after[plan, (since + 1) % every]
            result[-1] = self.backup.write[plan] + after[plan, 0]
        return result

    def start(self, problem: Elastic) -> None:
        """See ``Policy``."""

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``: ties go to the plan in force."""
        worth, old = self.worth(moment), moment.plan
        best = int(worth[:-1].argmax())
        if moment.event == 0 and old > 0 and max(worth[old], worth[-1]) >= worth[best]:
            return CHECKPOINT if worth[-1] > worth[old] else old
        return best


def hindsight(problem: Elastic, course: Course) -> Run:
    """Return the most that can be earned on a course that is known beforehand.

    No policy earns more on it. Ties go to the plan in force.
    """
    return follow(problem, course, Foresight(problem, course))


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
