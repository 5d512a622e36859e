"""Rules that choose plans: what systems do, and looking ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.library import (
    CHECKPOINT,
    EVENTS,
    GONE,
    PRIOR,
    Array,
    Library,
    binomial,
    departures,
    event_chances,
    plan_chances,
)
from parenvs.tasks.elastic.problem import (
    Backup,
    Course,
    Elastic,
    Fastest,
    Moment,
    Policy,
    Run,
    follow,
)
from parenvs.tasks.elastic.problems import Markov

FASTER = 1.1
"""By how much a plan must be faster for ``Hysteresis`` to change without need."""
AHEAD = 12
"""Intervals that ``LookAhead`` looks ahead, as Parcae does (section 10 of its paper: minutes)."""
WINDOW = 60
"""Intervals over which ``LookAhead`` counts departures and joins."""
SAME = 1e-9
"""Share by which values may differ by rounding, and the least probability of a loss of state."""
DEEPER = 1.5
"""How much deeper than the shallowest pipeline that fits Bamboo's is (section 4 of its paper)."""


class Myopic(Fastest):
    """The plan that earns most in this interval, with its change."""

    name = "myopic"

    def choose(self, moment: Moment, joined: int, left: int) -> int:
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
        super().start(problem)
        self.allowed: Array | None = None

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        fits = self.problem.fits(moment.nodes)
        if self.allowed is None:
            first = self.best_of(fits, moment)
            if first == 0:
                return 0
            degrees = [plan.degrees[:2] for plan in self.problem.library.candidates]
            self.allowed = np.array([True, *(x == degrees[first - 1] for x in degrees)])
        return self.best_of(fits & self.allowed, moment)


class Hysteresis(Fastest):
    """Changes if it must, or to a plan that is a tenth faster."""

    name = "hysteresis"

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        fits, rate = self.problem.fits(moment.nodes), self.problem.library.rate
        best = self.best_of(fits, moment)
        if fits[moment.plan] and rate[best] <= FASTER * rate[moment.plan]:
            return moment.plan
        return best


class LookAhead:
    """The most samples over the next intervals, with nodes as predicted.

    The number of nodes keeps to the mean trend of the last hour. Within it, what departures cost
    each plan is an expectation, and exact (``parenvs.tasks.elastic.library``); their rate is that
    of the last hour with known counts before it. The first plan of the best sequence is chosen; of
    plans that are equally good, the one in force. Checkpoints, where they can be chosen, are
    at most sqrt(2 x seconds of one x mean seconds to a loss) apart (Young, CACM 17, 1974).

    Args:
        prior: departures and intervals of a node that count before any are seen.
    """

    name = "look-ahead"
    saves = True

    def __init__(self, prior: tuple[float, float] = PRIOR) -> None:
        self.prior = prior

    def start(self, problem: Elastic) -> None:
        self.problem = problem
        self.left, self.joined, self.there = np.zeros((3, WINDOW))
        self.cache: dict[tuple[float, tuple[int, ...]], Array] = {}

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        slot = moment.interval % WINDOW
        first = moment.interval == 0  # those that are there at the beginning did not join
        self.left[slot], self.joined[slot] = left, 0 if first else joined
        self.there[slot] = moment.nodes
        steps = min(AHEAD, self.problem.intervals - moment.interval)
        # Numbers of nodes are predicted; which plans lose nodes is an exact expectation.
        leave, trend = self.predicted(moment)
        nodes = tuple(
            min(max(round(moment.nodes + trend * h), 0), self.problem.nodes)
            for h in range(1, steps)
        )
        # Two digits of the rate: values are shared between intervals that are alike.
        leave = float(f"{leave:.2g}")
        after = self._value(leave, nodes)
        earned = self.problem.earned[moment.event, moment.plan].copy()
        if moment.event == 0 and self.problem.saves(moment.since):
            earned[moment.plan] -= self.problem.saved[moment.plan]
        worth = np.where(self.allowed(moment.nodes), earned + after, -np.inf)
        best = int(worth.argmax())
        # Ties go to the plan in force, since a change that gains nothing adds risk.
        if worth[moment.plan] < worth[best] - SAME * abs(worth[best]):
            return best
        gone = plan_chances(*self.problem.library.sizes[moment.plan], leave)[GONE].sum()
        is_due = moment.plan > 0 and moment.event == 0 and moment.since + 1 >= self._apart(gone)
        return CHECKPOINT if is_due and self.problem.checkpoints else moment.plan

    def predicted(self, moment: Moment) -> tuple[float, float]:
        """Return the probability that a node leaves in an interval, and how many more there are."""
        seen = min(moment.interval + 1, WINDOW)
        leave = departures(self.left.sum(), self.there.sum(), self.prior)
        return float(leave), float((self.joined - self.left).sum()) / seen

    def allowed(self, nodes: int) -> Array:
        """(K,) bool, plans that so many nodes are enough for."""
        return self.problem.fits(nodes)

    def _value(self, leave: float, nodes: tuple[int, ...]) -> Array:
        """Return the expected samples after each choice, (K,), for predicted numbers of nodes."""
        if not nodes:
            return np.zeros(len(self.problem.library))
        if (leave, nodes) not in self.cache:
            chances = event_chances(self.problem.library, leave)
            allowed = self.allowed(nodes[0])
            later = np.where(allowed, self._value(leave, nodes[1:]), -np.inf)
            # best[e, k]: the most that follows if event e happens to plan k.
            best = (self.problem.earned + later).max(axis=2)
            # Half of the time between two checkpoints is lost on average.
            best[GONE] -= self.problem.lost_samples * self._apart(chances[GONE]) / 2
            self.cache[leave, nodes] = (chances * best).sum(axis=0)
        return self.cache[leave, nodes]

    def _apart(self, gone: Array) -> Array:
        """Intervals between checkpoints, by the probability of a loss of state in one."""
        costs = self.problem.library.costs
        if not (self.saves and self.problem.checkpoints):
            return np.full_like(gone, costs.every)
        young = np.sqrt(2 * costs.save / self.problem.seconds / np.maximum(gone, SAME))
        return np.asarray(np.minimum(young, costs.every))


class Parcae(LookAhead):
    """Parcae's rule, as its paper has it (NSDI 2024, sections 5 to 7): liveput over 12 intervals.

    Nodes are predicted from the last twelve intervals; departures are expected as far as the number
    of nodes is predicted to fall, and fall on all nodes alike; there are no spares. Parcae predicts
    by ARIMA, here the mean trend is taken, and it samples what is exact here. What it moves before
    a node leaves, which notice allows, is not in our decision process.
    """

    name = "parcae"
    saves = False

    def predicted(self, moment: Moment) -> tuple[float, float]:
        seen = min(moment.interval, AHEAD)
        slots = np.arange(moment.interval - seen + 1, moment.interval + 1) % WINDOW
        trend = float((self.joined - self.left)[slots].sum()) / max(seen, 1)
        # Expected departures are spread over all nodes alike.
        return min(max(-trend, 0.0) / max(moment.nodes, 1), 0.5), trend

    def allowed(self, nodes: int) -> Array:
        return self.problem.fits(nodes) & (self.problem.library.spares == 0)


class Varuna(Fastest):
    """Varuna's way (EuroSys 2022): always the fastest plan; each change restarts from a checkpoint.

    What was trained since the last one is lost with every node in use that leaves; before a change
    without a loss one is written. It plays the process of ``Library.under("checkpoint")``.
    """

    name = "varuna"
    recovery = "checkpoint"


class Bamboo(Fastest):
    """Bamboo's way (NSDI 2023): stages compute their neighbor's work, too, and stand in for it.

    The pipeline is half as deep again as the model needs, and stays so; replicas follow the nodes.
    It plays the process of ``Library.under("redundant")``, in which a loss needs no restart unless
    two neighbors are lost, and everything is slower by ``REDUNDANCY``, which is a guess.
    """

    name = "bamboo"
    recovery = "redundant"

    def start(self, problem: Elastic) -> None:
        super().start(problem)
        depths = np.array([0, *(p.degrees.pipeline for p in problem.library.candidates)])
        known = np.unique(depths[1:])
        deep = known[np.searchsorted(known, min(DEEPER * known[0], known[-1]))]
        self.allowed = (depths == deep) & (problem.library.spares == 0) | (depths == 0)

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        return self.best_of(self.problem.fits(moment.nodes) & self.allowed, moment)


RULES: dict[str, Callable[[], Policy]] = {
    rule.name: rule for rule in (KeepDegrees, Fastest, Myopic, Hysteresis, LookAhead)
}
SYSTEMS: dict[str, Callable[[], Policy]] = {rule.name: rule for rule in (Parcae, Varuna, Bamboo)}
"""What published systems do, by their names."""
POLICIES = RULES | SYSTEMS


def play(problem: Elastic, course: Course, policy: Policy) -> Run:
    """Let a policy choose through a course, in the process of its system.

    The run is of the problem given, so that its share is measured by the same ideal. A policy that
    may choose checkpoints (``saves``) does so.
    """
    if getattr(policy, "saves", False):
        problem = replace(problem, checkpoints=True)
    library = problem.library.under(getattr(policy, "recovery", problem.library.recovery))
    if library is problem.library:
        return follow(problem, course, policy)
    run = follow(replace(problem, library=library), course, policy)
    return replace(run, problem=problem)


def transitions(library: Library, chain: Markov, phase: int) -> Array:
    """Return the probability of what happens to a plan with the next number of nodes.

    Returns:
        (N+1, K, EVENTS, N+1), by nodes, plan, event and next nodes; 0 where nodes are not enough.
    """
    max_nodes = chain.nodes
    result = np.zeros((max_nodes + 1, len(library), EVENTS, max_nodes + 1))
    for likely, leave in chain.modes(phase):
        for n in range(max_nodes + 1):
            come = binomial(max_nodes - n, chain.join[phase])
            done: dict[tuple[int, int, int], Array] = {}
            for k, size in enumerate(library.sizes):
                used, spares, _ = size
                if used + spares > n:
                    continue
                if size not in done:
                    chances = plan_chances(*size, leave)
                    # Next nodes: those of the plan that stay, and others that stay or come.
                    others = np.convolve(binomial(n - used - spares, 1.0 - leave), come)
                    rows = done[size] = np.zeros((EVENTS, max_nodes + 1))
                    for event in np.flatnonzero(chances.any(axis=1)):
                        rows[event] = np.convolve(chances[event, ::-1], others)
                result[n, k] += likely * done[size]
    return result


@dataclass
class Optimal:
    """The optimal policy of a problem on a Markov chain.

    Attributes:
        change: (S, EVENTS, N+1, K) int8, the best plan to change to, or to repair.
        stays: (S, N+1, K, C) bool, whether to keep a plan to which nothing happened.
        writes: (S, N+1, K, C) bool, whether to have a checkpoint written then.
        nodes: (S, N+1) probability of each number of nodes in each interval.
    """

    problem: Elastic
    samples: float
    change: Array
    stays: Array
    writes: Array
    nodes: Array
    name: str = field(default="optimal", init=False)

    @property
    def ideal(self) -> float:
        """Samples that are expected if the fastest plan always ran and changes were free."""
        return float((self.nodes @ self.problem.best).sum()) or 1.0

    @property
    def value(self) -> float:
        """Samples that are expected, over ``ideal``."""
        return self.samples / self.ideal

    def start(self, problem: Elastic) -> None:
        """See ``Policy``.

        Raises:
            ParenvsError: the problem is another one.
        """
        if problem.name != self.problem.name:
            raise ParenvsError(
                f"the optimal policy of {self.problem.name} is none of {problem.name}"
            )

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        t, nodes, plan, event, since = moment
        if event == 0 and self.stays[t, nodes, plan, since]:
            return CHECKPOINT if self.writes[t, nodes, plan, since] else plan
        return int(self.change[t, event, nodes, plan])


def optimal(problem: Elastic) -> Optimal:
    """Return the optimal policy on a Markov chain, by going back from the last interval.

    Raises:
        ParenvsError: the nodes of the problem come from a trace.
    """
    chain = problem.source
    if not isinstance(chain, Markov):
        raise ParenvsError(
            f"{problem.name}: a trace has no optimal policy; take the hindsight optimum"
        )
    library, count = problem.library, problem.intervals
    max_nodes, plans, every = chain.nodes, len(library), library.costs.every
    chances = [transitions(library, chain, phase) for phase in range(len(chain.leave))]
    fits = np.array([problem.fits(n) for n in range(max_nodes + 1)])
    backup = Backup(problem)
    change = np.zeros((count, EVENTS, max_nodes + 1, plans), np.int8)
    stays, writes = np.zeros((2, count, max_nodes + 1, plans, every), bool)
    # Value iteration: V_t(nodes, plan, since) is the best expected number of samples to come.
    after = np.zeros((max_nodes + 1, plans, every))  # expected samples to come, by what is chosen
    for t in range(count - 1, -1, -1):
        keep, writes[t] = backup.kept(after)
        keep[~fits] = -np.inf
        value = np.empty((EVENTS, max_nodes + 1, plans))
        for n in range(max_nodes + 1):
            options = backup.change + np.where(fits[n], after[n, :, 0], -np.inf)
            best = options.argmax(axis=2)
            change[t, :, n] = best
            value[:, n] = np.take_along_axis(options, best[:, :, None], axis=2)[:, :, 0]
        # Ties go to keeping.
        stays[t] = keep >= value[0][:, :, None]
        stays[t, :, 0] = False
        calm = np.where(stays[t], keep, value[0][:, :, None])
        if t == 0:
            break
        chance = chances[chain.phase_of(t)]
        after = np.matmul(chance[:, :, 0], calm, axes=[(0, 2)] * 3)
        # The plan lost nodes: the next choice repairs or changes it.
        broken = np.einsum("nkem,emk->nk", chance[:, :, 1:], value[1:], optimize=True)
        # A loss of state costs the samples since safety, in proportion to the intervals.
        gone = chance[:, :, GONE].sum(axis=2) * problem.lost_samples
        after = after + broken[:, :, None] - gone[:, :, None] * np.arange(every)
    nodes = np.zeros((count, max_nodes + 1))
    nodes[0, chain.start] = 1.0
    for t in range(1, count):
        # To waiting nothing ever happens, so what follows it are nodes alone.
        nodes[t] = nodes[t - 1] @ chances[chain.phase_of(t)][:, 0, 0]
    return Optimal(problem, float(calm[chain.start, 0, 0]), change, stays, writes, nodes)
