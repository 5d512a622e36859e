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
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parenvs.core.registry import TASKS
from parenvs.errors import InfeasibleError, ParenvsError, shown
from parenvs.tasks.elastic.course import MAX_INTERVALS, Course, Source
from parenvs.tasks.elastic.library import CHECKPOINT, GONE, Library, happened
from parenvs.tasks.elastic.plan import WAIT, ElasticPlan

SECONDS = 60.0
"""Length of an interval by default."""
INTERVALS = 240
"""Intervals of an episode on a Markov chain by default."""


class Moment(NamedTuple):
    """The state of the decision process.

    Attributes:
        interval: number of the interval.
        nodes: nodes that are there.
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
        library: its candidate plans.
        source: the trace, the chain, or the recorded course that says which nodes there are.
        seconds: length of an interval.
        intervals: S, of an episode; of a trace, all that it has (0).
        name: of the problem.
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
        seconds, source = self.seconds, self.source
        if not (isinstance(seconds, (int, float)) and 1.0 <= seconds <= 86400.0):
            raise ParenvsError(f"interval must be from 1 to 86,400 s, not {shown(seconds)}")
        whole = source.intervals(seconds)
        count = self.intervals or whole
        max_intervals = MAX_INTERVALS if source.is_chain else whole
        if type(count) is not int or not 1 <= count <= max_intervals:
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
    def earned(self) -> np.ndarray:
        """(EVENTS, K, K) samples of an interval, by event, plan in force and plan chosen.

        Those that are lost with the state are not taken off, see ``lost_samples``.
        """
        seconds, _ = self.library.tables
        return (self.seconds - seconds) * self.library.rate

    @cached_property
    def lost_samples(self) -> np.ndarray:
        """(K,) samples of an interval of each plan, which are lost for each one since safety."""
        return self.seconds * self.library.rate

    @cached_property
    def saved(self) -> np.ndarray:
        """(K,) samples that are not trained in the interval in which a checkpoint is written."""
        return self.library.costs.save * self.library.rate

    @cached_property
    def best(self) -> np.ndarray:
        """(N+1,) samples of an interval of the fastest plan, by the number of nodes."""
        fits = self.library.needed <= np.arange(self.nodes + 1)[:, None]
        return (fits * self.library.rate).max(axis=1) * self.seconds

    @cached_property
    def ideal(self) -> float:
        """Samples of an episode if the fastest plan always ran and changes were free.

        Of a Markov chain it is the expected number, so that rewards depend on the state alone.
        """
        return self.source.expected(self.best, self.seconds, self.intervals) or 1.0

    def samples(self, moment: Moment, plan: int) -> float:
        """Return the samples of an interval for which a plan, or ``CHECKPOINT``, is chosen."""
        _, _, old, event, since = moment
        if plan == CHECKPOINT:
            return float(self.earned[0, old, old] - self.saved[old])
        if plan == old and event == 0:
            save = self.saves(since)
            return float(self.earned[0, old, old] - save * self.saved[old])
        lost = since * self.lost_samples[old] if event == GONE else 0.0
        return float(self.earned[event, old, plan] - lost)

    def saves(self, since: int) -> bool:
        """Return whether a checkpoint is written at the end of an interval without a change."""
        return since + 1 == self.library.costs.every

    def fits(self, nodes: int) -> np.ndarray:
        """(K,) bool, plans that so many nodes are enough for."""
        return np.asarray(self.library.needed <= nodes)

    def may_save(self, moment: Moment) -> bool:
        """Return whether ``CHECKPOINT`` can be chosen: a plan is whole, and its nodes are there."""
        return (
            self.checkpoints
            and moment.plan > 0
            and moment.event == 0
            and int(self.library.needed[moment.plan]) <= moment.nodes
        )

    def refused(self, moment: Moment, plan: Any) -> str | None:
        """Return in words why a plan, or ``CHECKPOINT``, cannot be chosen; None if it can be."""
        if plan == CHECKPOINT:
            may = self.may_save(moment)
            return None if may else "there is no whole plan to write a checkpoint of"
        known = isinstance(plan, int | np.integer) and 0 <= plan < len(self.library)
        if not known:
            return f"plan {shown(plan)} is none of {self.library.name}"
        if self.library.needed[plan] > moment.nodes:
            return f"plan {plan} takes {self.library.needed[plan]} nodes, not {moment.nodes}"
        return None

    def events(self, lost: np.ndarray) -> np.ndarray:
        """Return what happens to each plan, (K,) int64.

        Args:
            lost: (N+1,) of the course.
        """
        library = self.library
        fits = np.flatnonzero(library.needed < len(lost))
        result = np.zeros(len(library), dtype=np.int64)
        if not lost[-1]:
            return result
        columns = (library.used, library.needed, library.borders)
        each = np.broadcast_to(lost, (len(fits), len(lost)))
        result[fits] = happened(each, *(column[fits] for column in columns))
        return result

    def after(self, moment: Moment, plan: int, course: Course) -> Moment:
        """Return the moment after a choice, ``CHECKPOINT`` among them."""
        stays = plan == moment.plan != 0 and moment.event == 0
        plan = moment.plan if plan == CHECKPOINT else plan
        since = (moment.since + 1) % self.library.costs.every if stays else 0
        t = moment.interval + 1
        return Moment(t, int(course.nodes[t]), plan, int(self.events(course.lost[t])[plan]), since)

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:...`` of the candidate plans, and of what chance decides."""
        course = self.drawn(0)
        chain = asdict(self.source) if self.source.is_chain else None  # type: ignore[call-overload]
        library = self.library
        figures = [library.rate.tolist(), library.needed.tolist(), self.intervals, chain]
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
        degrees = [WAIT, *((*plan.degrees, plan.spares) for plan in self.library.candidates)]
        kept: list[Any] = []
        saved = []
        for interval, number in enumerate(np.asarray(chosen).tolist()):
            if number == CHECKPOINT:
                saved.append(interval)
            kept.append(kept[-1] if number == CHECKPOINT else degrees[number])
        return ElasticPlan(self.instance, self.fingerprint, tuple(kept), seed, policy, tuple(saved))

    def report(self, plan: ElasticPlan) -> Any:
        """Judge a plan on the course of its seed, and return a ``Run``."""
        return TASKS[self.task].judge(plan, self)

    def draw(self, rng: np.random.Generator) -> np.ndarray | None:
        """Draw the numbers that decide a course, or None if nothing is random."""
        return self.source.draw(rng, self.seconds, self.intervals)

    def course(self, drawn: np.ndarray | None = None) -> Course:
        """Return the course that drawn numbers decide."""
        return Course(*(x[: self.intervals] for x in self.source.course(self.seconds, drawn)))

    def drawn(self, seed: int) -> Course:
        """Return the course of a seed."""
        return self.course(self.draw(np.random.default_rng(seed)))
