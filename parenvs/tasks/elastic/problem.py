"""The decision process: a job on nodes that come and go, and what every choice of a plan earns.

Time goes in intervals. At the beginning of each one the nodes are known, a plan is chosen, and the
interval's samples follow: its seconds without those of the change, times the samples a second of
the plan; if a part of the state was lost, less the samples since the last checkpoint. A change that
takes longer than the interval is charged to it in full, so an interval can earn less than nothing.
Then nodes leave and come. Every change leaves the state safe (it lies outside of the job
meanwhile), and so does the checkpoint at the end of each ``every``-th interval without one. Where
``checkpoints`` is set, a policy may have one written at the end of any interval, too.

Everything that a choice earns depends on the plan in force, what happened to it, the intervals
since its state was safe, and the plan chosen: these, the number of nodes and the time are the
state. Which nodes are used follows from their age alone, see ``Course``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from parenvs.core.plan import Plan, Report
from parenvs.errors import InfeasibleError, ParenvsError, shown
from parenvs.fields import Index, Text, settle, words
from parenvs.tasks.elastic.library import CHECKPOINT, GONE, READY, Array, Library, happened

MAX_NODES = 64
"""Most nodes at a time."""
MAX_INTERVALS = 20_000
"""Most intervals of a course."""


class Course(NamedTuple):
    """The nodes of a cluster over time, whatever the plans are.

    Nodes are ranked by age: the oldest is number 0. A plan runs on the oldest nodes, and its spares
    are the next ones, so which nodes a plan loses follows from ``lost`` alone. An event counts from
    the next interval on: a node that gets notice finishes its interval.

    Attributes:
        nodes: (S,) int16, nodes that are there in each interval.
        joined: (S,) int16, nodes that came since the interval before.
        left: (S,) int16, nodes of the interval before that left.
        lost: (S, N+1) int8, how many of the m oldest nodes of the interval before left, by m.
    """

    nodes: Array
    joined: Array
    left: Array
    lost: Array

    def __len__(self) -> int:
        """Return S, the number of intervals."""
        return len(self.nodes)

    def of(self, row: int) -> Course:
        """Return one of several courses, whose arrays have an axis more in front."""
        return Course(*(part[row] for part in self))

    def window(self, first: int, count: int) -> Course:
        """Return some of its intervals, in the first of which all nodes come."""
        nodes, joined, left, lost = (part[first : first + count].copy() for part in self)
        joined[0], left[0], lost[0] = nodes[0], 0, 0
        return Course(nodes, joined, left, lost)

    @classmethod
    def of_bits(cls, start: Any, joined: Array, gone: Array, nodes: int) -> Course:
        """Return the course of ``bits``, or several, whose arrays have more axes in front.

        Args:
            start: (...) nodes in the first interval.
            joined: (..., S) nodes that come before each interval; of the first it means nothing.
            gone: (..., S) of ``bits``.
            nodes: N.
        """
        leaves = gone[..., None] >> np.arange(nodes, dtype=np.uint64) & np.uint64(1)
        # Running counts by age, so that the losses of any plan are a look-up.
        lost = np.zeros((*gone.shape, nodes + 1), np.int8)
        leaves.cumsum(axis=-1, dtype=np.int8, out=lost[..., 1:])
        left, come = lost[..., -1].astype(np.int16), joined.astype(np.int16)
        come[..., 0] = start
        return cls((come - left).cumsum(axis=-1, dtype=np.int16), come, left, lost)

    def bits(self) -> Array:
        """Return which nodes of the interval before left, (S,) uint64, bit i for the i-th oldest.

        There are at most 64 nodes.
        """
        gone = np.diff(self.lost, axis=1).astype(np.uint64)
        shifts = np.arange(gone.shape[1], dtype=np.uint64)
        return (gone << shifts).sum(axis=1, dtype=np.uint64)


class Source:
    """Where the nodes of a job come from: a trace, a Markov chain, or a recorded course.

    Attributes:
        is_named: whether it is known which nodes leave, so that nothing is random.
    """

    name: Any
    most: Any
    is_named: Any = True
    is_chain: ClassVar[bool] = False

    def intervals(self, seconds: float) -> int:
        """Return the number of intervals of a length; of a chain, the default.

        Raises:
            ParenvsError: there are too many.
        """
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, seconds: float, intervals: int) -> Array | None:
        """Draw the numbers that decide a course, None if nothing is random."""
        if self.is_named:
            return None
        return rng.random((self.intervals(seconds), self.most), dtype=np.float32)

    def course(self, seconds: float, uniform: Array | None = None) -> Course:
        """Return the course in intervals of a length, decided by numbers of ``draw``."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Recorded(Source):
    """A course that is the same in every episode, as the source of a problem's nodes."""

    name: str
    events: Course

    @property
    def most(self) -> int:
        """N, nodes at most."""
        return self.events.lost.shape[1] - 1

    def intervals(self, seconds: float) -> int:
        """Return the number of intervals, whatever their length."""
        return len(self.events)

    def course(self, seconds: float, uniform: Array | None = None) -> Course:
        """Return the course, whatever the length of its intervals."""
        return self.events


WAIT = None
"""What an interval that waits has in place of degrees."""

_Degrees = Annotated[
    tuple[Index, Index, Index, Index], words("null or [tensor, pipeline, data, spares]")
]


@dataclass(frozen=True)
class ElasticPlan(Plan):
    """Candidate plans that were chosen on the course of a seed. It names no cluster.

    Attributes:
        instance: name of a problem of a set, or ``TRACE/MODEL``.
        fingerprint: ``sha256:...`` of the candidates, and of what chance decides.
        chosen: of each interval, tensor, pipeline and data degree and the spares of its plan;
            ``WAIT`` for an interval that waits.
        seed: of the course; of a trace whose nodes are named it changes nothing.
        saved: intervals at whose end the policy had a checkpoint written.
    """

    instance: Text
    fingerprint: Text
    chosen: tuple[_Degrees | None, ...]
    seed: Index = 0
    policy: str = ""
    saved: tuple[Index, ...] = ()

    task: ClassVar[str] = "elastic"
    settings: ClassVar[tuple[str, ...]] = ("fingerprint", "seed")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""
        chosen = [WAIT if plan is None else list(plan) for plan in self.chosen]
        content = {**self._head(), "seed": self.seed, "policy": self.policy, "chosen": chosen}
        return {**content, "saved": list(self.saved)} if self.saved else content


SECONDS = 60.0
"""Length of an interval by default."""
INTERVALS = 240
"""Intervals of an episode on a Markov chain by default."""


class Moment(NamedTuple):
    """The state of the decision process.

    Attributes:
        plan: number of the plan in force; 0 waits.
        event: what happened to it, see ``parenvs.tasks.elastic.library.EVENTS``.
        since: intervals since the state was safe.
    """

    interval: int
    nodes: int
    plan: int = 0
    event: int = 0
    since: int = 0


@dataclass(frozen=True)
class Elastic:
    """A job on nodes that come and go.

    Attributes:
        source: the trace, the chain, or the recorded course that says which nodes there are.
        intervals: S, of an episode; of a trace, all that it has (0).
        checkpoints: whether a policy may choose ``CHECKPOINT``: to keep the plan in force, and have
            a checkpoint written at the end of the interval.

    Raises:
        ParenvsError: the interval or their number is impossible.
        InfeasibleError: no plan ever fits the nodes.
    """

    task: ClassVar[str] = "elastic"
    library: Library
    source: Source
    seconds: float = SECONDS
    intervals: int = 0
    name: str = ""
    checkpoints: bool = False

    def __post_init__(self) -> None:
        """Fill in defaults and raise errors for what cannot be."""
        settle(self)
        seconds, source = self.seconds, self.source
        if not 1.0 <= seconds <= 86400.0:
            raise ParenvsError(f"interval must be from 1 to 86,400 s, not {shown(seconds)}")
        whole = source.intervals(seconds)
        count = self.intervals or whole
        # A chain has no end of its own; a trace or a recorded course does.
        max_intervals = MAX_INTERVALS if source.is_chain else whole
        if not 1 <= count <= max_intervals:
            raise ParenvsError(
                f"intervals must be a whole number from 1 to {max_intervals:,}, not {shown(count)}"
            )
        object.__setattr__(self, "intervals", count)
        if not self.name:
            object.__setattr__(self, "name", f"{self.library.name}/{source.name}")
        if int(self.library.needed[1:].min()) > self.nodes:
            raise InfeasibleError(
                f"{self.name}: the smallest plan takes {self.library.needed[1:].min()} nodes, and "
                f"there are never more than {self.nodes}"
            )

    @property
    def degrees(self) -> list[tuple[int, ...] | None]:
        """Of each plan, tensor, pipeline and data degree and spares; ``WAIT`` for number 0."""
        return [WAIT, *((*plan.degrees, plan.spares) for plan in self.library.candidates)]

    @property
    def instance(self) -> str:
        """Name of the problem, as infos have it."""
        return self.name

    @property
    def nodes(self) -> int:
        """N, nodes at most."""
        return int(self.source.most)

    @property
    def is_random(self) -> bool:
        """Whether episodes differ by what is drawn."""
        return not self.source.is_named

    @cached_property
    def earned(self) -> Array:
        """(EVENTS, K, K) samples of an interval, by event, plan in force and plan chosen.

        Those that are lost with the state are not taken off, see ``lost_samples``.
        """
        seconds, _ = self.library.tables
        return (self.seconds - seconds) * self.library.rate

    @cached_property
    def lost_samples(self) -> Array:
        """(K,) samples of an interval of each plan, which are lost for each one since safety."""
        return self.seconds * self.library.rate

    @cached_property
    def saved(self) -> Array:
        """(K,) samples that are not trained in the interval in which a checkpoint is written."""
        return self.library.costs.save * self.library.rate

    @cached_property
    def best(self) -> Array:
        """(N+1,) samples of an interval of the fastest plan, by the number of nodes."""
        fits = self.library.needed <= np.arange(self.nodes + 1)[:, None]
        return (fits * self.library.rate).max(axis=1) * self.seconds

    def samples(self, moment: Moment, plan: int) -> float:
        """Return the samples of an interval for which a plan, or ``CHECKPOINT``, is chosen."""
        _, _, old, event, since = moment
        if plan == CHECKPOINT or (plan == old and event == 0):
            save = plan == CHECKPOINT or self.saves(since)
            return float(self.earned[0, old, old] - save * self.saved[old])
        # The plan loses all samples since its state was safe, whatever is chosen next.
        lost = since * self.lost_samples[old] if event == GONE else 0.0
        return float(self.earned[event, old, plan] - lost)

    def saves(self, since: int) -> bool:
        """Return whether a checkpoint is written at the end of an interval without a change."""
        return since + 1 == self.library.costs.every

    def fits(self, nodes: int) -> Array:
        """(K,) bool, plans that so many nodes are enough for."""
        return self.library.needed <= nodes

    def refused(self, moment: Moment, plan: Any) -> str | None:
        """Return in words why a plan, or ``CHECKPOINT``, cannot be chosen; None if it can be."""
        needed = self.library.needed
        if plan == CHECKPOINT:
            is_whole = moment.plan > 0 and moment.event == 0
            is_legal = self.checkpoints and is_whole and needed[moment.plan] <= moment.nodes
            return None if is_legal else "there is no whole plan to write a checkpoint of"
        if not isinstance(plan, int | np.integer) or not 0 <= plan < len(needed):
            return f"plan {shown(plan)} is none of {self.library.name}"
        is_short = needed[plan] > moment.nodes
        return f"plan {plan} takes {needed[plan]} nodes, not {moment.nodes}" if is_short else None

    def events(self, lost: Array) -> Array:
        """Return what happens to each plan, (K,) int64.

        Args:
            lost: (N+1,) of the course.
        """
        library = self.library
        result = np.zeros(len(library), np.int64)
        if lost[-1]:
            fits = np.flatnonzero(library.needed < len(lost))
            columns = (library.used, library.needed, library.borders)
            rows = np.broadcast_to(lost, (len(fits), len(lost)))
            result[fits] = happened(rows, *(column[fits] for column in columns))
        return result

    def after(self, moment: Moment, plan: int, course: Course) -> Moment:
        """Return the moment after a choice, ``CHECKPOINT`` among them."""
        # Only an unchanged, whole plan leaves the state unsafe for longer: changes make it safe.
        stays = plan == moment.plan != 0 and moment.event == 0
        plan = moment.plan if plan == CHECKPOINT else plan
        since = (moment.since + 1) % self.library.costs.every if stays else 0
        t = moment.interval + 1
        return Moment(t, int(course.nodes[t]), plan, int(self.events(course.lost[t])[plan]), since)

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:...`` of the candidate plans, and of what chance decides."""
        course = self.drawn(0)
        chain = vars(self.source) if self.source.is_chain else None
        library = self.library
        figures = [library.rate.tolist(), library.needed.tolist(), self.intervals, chain]
        # Candidates, lengths and the course of seed 0 identify a problem, wherever it came from.
        digest = hashlib.sha256(json.dumps(figures).encode())
        for part in (course.nodes, course.lost):
            digest.update(np.ascontiguousarray(part, dtype=np.int16).tobytes())
        return f"sha256:{digest.hexdigest()}"

    def plan(self, chosen: Any, seed: int = 0, policy: str = "") -> ElasticPlan:
        """Make the plan of candidates chosen on the course of a seed.

        Args:
            chosen: (S,) numbers of the plans, 0 to wait; ``CHECKPOINT`` keeps the one before.
            seed: of the course.
            policy: who chose.
        """
        numbers, degrees = np.asarray(chosen), self.degrees
        saved = tuple(np.flatnonzero(numbers == CHECKPOINT).tolist())
        plans: list[Any] = []
        for number in numbers.tolist():
            plans.append(plans[-1] if number == CHECKPOINT else degrees[number])
        return ElasticPlan(self.instance, self.fingerprint, tuple(plans), seed, policy, saved)

    def report(self, plan: ElasticPlan) -> Run:
        """Replay a plan on the course of its seed.

        The run ends before the first interval whose choice breaks a rule. A plan that has
        checkpoints written is judged as one of a problem that allows it.
        """
        saves = plan.saved and not self.checkpoints
        problem = replace(self, checkpoints=True) if saves else self
        course = self.drawn(plan.seed)
        reasons = plan.mismatches(self.instance, self.fingerprint, {})
        if len(plan.chosen) != self.intervals:
            reasons.append(f"chosen: has {len(plan.chosen)} intervals, not {self.intervals}")
        legal, reason = _legal_choices(self, plan, course)
        reasons += [reason] if reason else []
        last = max(plan.saved, default=-1)
        if last >= self.intervals:
            reasons.append(f"saved: there is no interval {last}")
        events = replay(problem, course, legal).events
        for t in sorted({t for t in plan.saved if t < len(legal)}):
            # Nothing before t changes by writing checkpoints, so the events hold.
            if t == 0 or not plan.chosen[t] == plan.chosen[t - 1] != WAIT or events[t]:
                reasons.append(f"saved: interval {t} keeps no plan, so it writes no checkpoint")
                legal = legal[:t]
                break
            legal[t] = CHECKPOINT
        run = replay(problem, course, legal, plan.policy)
        return replace(run, plan=plan, reasons=tuple(reasons))

    def course(self, drawn: Array | None = None) -> Course:
        """Return the course that drawn numbers decide."""
        return Course(*(x[: self.intervals] for x in self.source.course(self.seconds, drawn)))

    def drawn(self, seed: int) -> Course:
        """Return the course of a seed."""
        rng = np.random.default_rng(seed)
        return self.course(self.source.draw(rng, self.seconds, self.intervals))


class Policy(Protocol):
    """Chooses a plan in every interval."""

    name: str

    def start(self, problem: Elastic) -> None:
        """Begin an episode."""

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """Return the number of the plan for an interval, or ``CHECKPOINT``.

        ``joined`` and ``left`` count the nodes that came and left since the interval before.
        """
        ...


@dataclass(frozen=True)
class Run(Report):
    """The samples of a job on a course, interval by interval; the report on a plan.

    Attributes:
        plans: (T,) plans in force, T of at most S intervals.
        events: (T,) what had happened to the plan before.
        samples: (T,) of each interval.
        seconds: (T,) of the change in it.
        saved: (T,) bool, intervals at whose end the policy had a checkpoint written.
        plan: the plan that was judged; None if a policy chose.
        reasons: a sentence for every constraint that the plan breaks; empty if it is legal.
    """

    task: ClassVar[str] = "elastic"
    bound_words: ClassVar[tuple[str, str]] = ("lower", " s a sample")
    problem: Elastic
    course: Course
    plans: Array
    events: Array
    samples: Array
    seconds: Array
    saved: Array
    policy: str = ""
    plan: ElasticPlan | None = None
    reasons: tuple[str, ...] = ()

    @property
    def chosen(self) -> Array:
        """(T,) what was chosen: plans, and ``CHECKPOINT``."""
        return np.where(self.saved, CHECKPOINT, self.plans)

    @property
    def cost(self) -> float:
        """Seconds per sample, see ``cost_of``; the number that the task minimizes."""
        return float(cost_of(self.problem.seconds * len(self.plans), self.total))

    @property
    def total(self) -> float:
        """Samples of all intervals."""
        return float(self.samples.sum())

    @property
    def share(self) -> float:
        """Share of what the fastest plan with free changes earns on the same nodes."""
        best = self.problem.best[self.course.nodes[: len(self.plans)]].sum()
        return self.total / float(best) if best else 0.0

    @cached_property
    def changed(self) -> Array:
        """(T,) bool, intervals in which another plan came into force, or a lost node was replaced.

        The start is none.
        """
        before = np.concatenate([[0], self.plans[:-1]])
        return ((self.plans != before) | (self.events > 0)) & (before > 0)

    @cached_property
    def stopped(self) -> Array:
        """(T,) bool, intervals before which nodes in use left and no spares were ready."""
        return (self.events > 0) & ((self.events <= READY) | (self.events == GONE))

    @property
    def gone(self) -> Array:
        """(T,) bool, intervals before which a part of the state was lost."""
        return self.events == GONE

    def to_json(self) -> dict[str, Any]:
        return {
            "instance": self.problem.name,
            "policy": self.policy,
            "intervals": len(self.plans),
            "samples": self.total,
            "share_of_ideal": self.share,
            "changes": int(self.changed.sum()),
            "stops": int(self.stopped.sum()),
            "state_lost": int(self.gone.sum()),
            "change_seconds": float(self.seconds.sum()),
            **({} if self.plan is None else {"legal": self.legal, "reasons": list(self.reasons)}),
        }


@dataclass(frozen=True)
class PolicyReport:
    """The runs of a policy on the courses of a problem."""

    runs: tuple[Run, ...]

    legal = True
    """Whether the plans fit the nodes; runs are of such plans alone."""

    @property
    def share(self) -> float:
        """Samples of all courses over those of the fastest plan with free changes."""
        best = [float(run.problem.best[run.course.nodes].sum()) for run in self.runs]
        return sum(run.total for run in self.runs) / sum(best)


def cost_of(seconds: Any, samples: Any) -> Array:
    """Return the seconds per sample of a course; inf without samples."""
    with np.errstate(divide="ignore"):
        return np.asarray(seconds / np.maximum(samples, 0.0))


def follow(problem: Elastic, course: Course, policy: Policy) -> Run:
    """Let a policy choose through a course.

    Raises:
        ValueError: it chooses a plan that the nodes are not enough for.
    """
    policy.start(problem)
    return _run(problem, course, problem.intervals, policy.choose, policy.name)


def replay(problem: Elastic, course: Course, plans: Any, policy: str = "") -> Run:
    """Return what given plans earn in the first intervals of a course; arguments as of ``Run``."""
    plans = np.asarray(plans, np.int64)
    chosen = iter(plans.tolist())
    return _run(problem, course, len(plans), lambda *_: next(chosen), policy)


def _legal_choices(problem: Elastic, plan: ElasticPlan, course: Course) -> tuple[list[int], str]:
    """Return candidates up to the first choice that breaks a rule, and the reason against it."""
    library = problem.library
    number_of = {degrees: k for k, degrees in enumerate(problem.degrees)}
    legal: list[int] = []
    for t, choice in enumerate(plan.chosen[: problem.intervals]):
        words = f"chosen: interval {t}: {choice and list(choice)}"
        if choice not in number_of:
            return legal, f"{words} is no candidate of {library.name}"
        needed = library.needed[number_of[choice]]
        if needed > course.nodes[t]:
            return legal, f"{words} takes {needed} nodes, there are {course.nodes[t]}"
        legal.append(number_of[choice])
    return legal, ""


def _run(problem: Elastic, course: Course, count: int, choose: Any, name: str) -> Run:
    seconds, _ = problem.library.tables
    plans, events, saved = np.zeros((3, count), np.int64)
    samples, spent = np.zeros((2, count))
    moment = Moment(0, int(course.nodes[0]))
    for t in range(count):
        choice = int(choose(moment, int(course.joined[t]), int(course.left[t])))
        refused = problem.refused(moment, choice)
        if refused is not None:
            raise ValueError(f"interval {t}: {refused}")
        samples[t] = problem.samples(moment, choice)
        saved[t] = choice == CHECKPOINT
        plan = moment.plan if saved[t] else choice
        plans[t], events[t] = plan, moment.event
        # Keeping a plan takes 0 s, and so does waiting.
        spent[t] = seconds[moment.event, moment.plan, plan]
        if t + 1 < problem.intervals:
            moment = problem.after(moment, choice, course)
    return Run(problem, course, plans, events, samples, spent, saved > 0, name)


class Fastest:
    """The fastest plan that fits, whatever the change costs; among equals that with most spares."""

    name = "fastest"

    def start(self, problem: Elastic) -> None:
        self.problem = problem
        library = problem.library
        self.rank = library.rate * (1.0 + 1e-9 * library.spares)

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        return self.best_of(self.problem.fits(moment.nodes), moment)

    def best_of(self, allowed: Array, moment: Moment) -> int:
        """Return the best of some plans, the one in force among equals."""
        best = int(np.where(allowed, self.rank, -1.0).argmax())
        old = moment.plan
        return old if allowed[old] and self.rank[old] >= self.rank[best] else best


class Backup:
    """The samples of an interval, laid out for dynamic programming.

    Attributes:
        change: (EVENTS, K, K) samples of changes and repairs; those that are none cannot be chosen.
        keep: (K, C) samples of keeping a plan, by the intervals since its state was safe.
        write: (K,) the same with a checkpoint that the policy has written; minus infinity where
            it cannot.
    """

    def __init__(self, problem: Elastic) -> None:
        self.change = problem.earned.copy()
        plans = np.arange(1, len(problem.library))
        # Keeping is priced in ``keep``, where a due checkpoint is paid for.
        self.change[0, plans, plans] = -np.inf
        unchanged = np.diagonal(problem.earned[0])[:, None]
        self.keep = unchanged.repeat(problem.library.costs.every, axis=1)
        self.keep[:, -1] -= problem.saved
        self.write = unchanged[:, 0] - (problem.saved if problem.checkpoints else np.inf)

    def kept(self, after: Array) -> tuple[Array, Array]:
        """Return what keeping a plan earns, and whether to have a checkpoint written for that.

        Args:
            after: (..., K, C) samples to come, by the intervals since the state is safe then.

        Returns:
            (..., K, C) float64 and bool.
        """
        # After an interval at s intervals since safety, s + 1 follows; after the last, 0.
        keep = self.keep + np.roll(after, -1, axis=-1)
        write = (self.write + after[..., 0])[..., None]
        return np.maximum(keep, write), write > keep


class Foresight:
    """Values of all choices on a course that is known beforehand; as a policy, hindsight.

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
        # Bellman's equation: V_t(plan, since) = max over choices of samples + V_{t+1}.
        for t in range(problem.intervals - 1, -1, -1):
            after = self.after[t + 1]
            fits, event = problem.fits(int(course.nodes[t])), problem.events(course.lost[t])
            # A change makes the state safe, so what follows starts at 0 intervals since.
            options = self.backup.change[event, rows] + np.where(fits, after[:, 0], -np.inf)
            # Samples since safety are lost before the choice, so they lower all options alike.
            lost = (event == GONE) * problem.lost_samples
            moved = options.max(axis=1)[:, None] - lost[:, None] * since
            keep, _ = self.backup.kept(after)
            keep[~fits | (event > 0) | (rows == 0)] = -np.inf
            self.after[t] = np.maximum(keep, moved)

    def worth(self, moment: Moment) -> Array:
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


class KnownSamples(NamedTuple):
    """Samples on the course of a problem.

    Attributes:
        best: samples of hindsight, which no policy exceeds; more than 0.
        start: samples of ``Fastest``.
    """

    best: float
    start: float


def known_samples(problem: Elastic, course: Course) -> KnownSamples:
    """Return what is earned on a course.

    Raises:
        InfeasibleError: no plan earns anything on it.
    """
    # Returns are logarithms of shares of it, so it has to be positive.
    best = hindsight(problem, course).total
    if best <= 0.0:
        raise InfeasibleError(f"{problem.name}: no plan earns anything on this course")
    return KnownSamples(best, follow(problem, course, Fastest()).total)
