"""Plays policies that are data on the courses of problems."""

from __future__ import annotations

import numpy as np

from parenvs.agents.elastic.formats import (
    CHANGE_COLUMNS,
    PLAN_COLUMNS,
    Network,
    Ratings,
    Rule,
    Table,
)
from parenvs.agents.elastic.policies import RULES
from parenvs.tasks.elastic.library import EVENTS, GONE, LOST, MAX_PLANS, MAX_SPARES, READY
from parenvs.tasks.elastic.problem import MAX_NODES, Elastic, Moment, Policy, follow
from parenvs.tasks.elastic.problems import load_elastic

DEGREES = 128.0
"""Degrees are observed as log2(1 + degree) over log2 of this."""
QUIET = 60
"""Intervals since the last event beyond which they are not told apart."""
KEEP = 0.95
"""Weight of the past in the means of departures and joins."""
COURSES = 2
"""Courses of a problem on which chance decides; all policies have the same."""
Plans = list[list[int]]
"""Plans of each course of a problem, interval by interval."""


class Observer:
    """The observation of a job; its columns are those of ``formats``, float32 in [0, 1].

    Attributes:
        plans: (1, 64, 6) the candidates.
    """

    def __init__(self, problem: Elastic) -> None:
        self.problem = problem
        library, count = problem.library, len(problem.library)
        plans = np.zeros((1, MAX_PLANS, len(PLAN_COLUMNS)))
        degrees = np.array([plan.degrees for plan in library.candidates])
        plans[0, 1:count, :3] = np.log2(1.0 + degrees) / np.log2(DEGREES)
        plans[0, :count, 3] = library.used / MAX_NODES
        plans[0, :count, 4] = library.spares / MAX_SPARES
        plans[0, :count, 5] = library.rate / library.rate.max()
        changes = np.zeros((EVENTS, MAX_PLANS, MAX_PLANS, len(CHANGE_COLUMNS)))
        seconds, egress = library.tables
        changes[:, :count, :count, 0] = seconds / problem.seconds
        changes[:, :count, :count, 1] = egress / library.state.bytes
        changes[:, :count, :count, 2] = np.eye(count)
        self.plans, self.changes = (np.minimum(x, 1.0).astype(np.float32) for x in (plans, changes))
        self.quiet, self.nodes = 0, 0
        self.leaving = self.joining = 0.0

    def __call__(self, moment: Moment, joined: int, left: int) -> dict[str, np.ndarray]:
        """Return ``plans``, ``change`` (1, 64, 3) and ``numbers`` (1, 16) at an interval."""
        interval, nodes, plan, event, since = moment
        if interval:
            self.quiet = 0 if joined or left else self.quiet + 1
            self.leaving = self.leaving * KEEP + (1 - KEEP) * left / max(self.nodes, 1)
            self.joining = self.joining * KEEP + (1 - KEEP) * joined / MAX_NODES
        self.nodes = nodes
        library, count = self.problem.library, self.problem.intervals
        used, needed = int(library.used[plan]), int(library.needed[plan])
        is_loss = 0 < event < GONE
        numbers = (
            nodes / MAX_NODES,
            joined / MAX_NODES,
            left / MAX_NODES,
            used / MAX_NODES,
            (needed - used) / MAX_NODES,
            max(nodes - needed, 0) / MAX_NODES,
            self.plans[0, plan, 5],
            ((event - 1) % LOST + 1) / LOST if is_loss else 0.0,
            is_loss and event > READY,
            event == GONE,
            since / library.costs.every,
            min(self.quiet, QUIET) / QUIET,
            1.0 - interval / count,
            self.leaving,
            self.joining,
            1.0 / count,
        )
        change = self.changes[event, plan][None]
        return {
            "plans": self.plans,
            "change": change,
            "numbers": np.array([numbers], dtype=np.float32),
        }


class Scored:
    """A table or a network as a policy: what does not fit, or has no row, is to wait."""

    def __init__(self, policy: Table | Network | Ratings) -> None:
        self.policy, self.name = policy, policy.kind

    def start(self, problem: Elastic) -> None:
        """See ``Policy``."""
        self.problem, self.observe = problem, Observer(problem)

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        fits = self.problem.fits(moment.nodes)
        if isinstance(self.policy, Table):
            choices = self.policy.choices.get(self.problem.library.name)
            if choices is None or moment.plan >= choices.shape[2]:
                return 0
            nodes = min(moment.nodes, choices.shape[1] - 1)
            plan = int(choices[moment.event, nodes, moment.plan])
            return plan if 0 <= plan < len(fits) and fits[plan] else 0
        scores = self.policy.scores(self.observe(moment, joined, left))[0, : len(fits)]
        return int(np.where(fits, np.nan_to_num(scores, nan=-np.inf), -np.inf).argmax())


def seeds(problem: Elastic, seed: int) -> range:
    """Return the seeds of a problem's courses, as of ``Elastic.drawn``.

    Args:
        problem: the problem; where nothing is random it has one course.
        seed: of the checker.
    """
    count = COURSES if problem.is_random else 1
    return range(seed * COURSES, seed * COURSES + count)


def load(name: str) -> Elastic:
    """Load a problem: ``SET/NAME`` of a shipped set, or ``TRACE/MODEL``."""
    return load_elastic(name)


def play(
    policy: Table | Network | Ratings | Rule, problems: dict[str, Elastic], seed: int
) -> dict[str, Plans]:
    """Let a policy that is data choose on the courses of problems.

    Args:
        policy: the policy.
        problems: name -> problem.
        seed: of the courses.

    Returns:
        Name of a problem -> the plans chosen on each of its courses.
    """

    def chosen(problem: Elastic, number: int) -> list[int]:
        player: Policy = RULES[policy.name]() if isinstance(policy, Rule) else Scored(policy)
        result: list[int] = follow(problem, problem.drawn(number), player).chosen.tolist()
        return result

    return {
        name: [chosen(problem, number) for number in seeds(problem, seed)]
        for name, problem in problems.items()
    }
