"""Policies, and what they earn on a course: the simulation of a job."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from parenvs.core.plan import Bounded, Price, Report
from parenvs.files import write_text
from parenvs.tasks.elastic.course import Course
from parenvs.tasks.elastic.library import CHECKPOINT, GONE, READY
from parenvs.tasks.elastic.plan import WAIT, ElasticPlan
from parenvs.tasks.elastic.problem import Elastic, Moment


class Policy(Protocol):
    """Chooses a plan in every interval."""

    name: str

    def start(self, problem: Elastic) -> None:
        """Begin an episode."""

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """Return the number of the plan for an interval, or ``CHECKPOINT``.

        Args:
            moment: the state.
            joined: nodes that came since the interval before.
            left: nodes that left.
        """
        ...


def price(report: Run) -> Price:
    """Return that a run of many plans has no price; a hook of the task."""
    many = "a run is of many plans; a step of each takes what the hybrid model says"
    return Price(notes=(many,))


@dataclass(frozen=True)
class Run(Report):
    """What a job earned on a course, interval by interval; the judge's report on a plan.

    Attributes:
        problem: the problem.
        course: the course.
        plans: (T,) plans in force, T of at most S intervals.
        events: (T,) what had happened to the plan before.
        samples: (T,) of each interval.
        seconds: (T,) of the change in it.
        saved: (T,) bool, intervals at whose end the policy had a checkpoint written.
        policy: who chose.
        plan: the plan that was judged; None if a policy chose.
        reasons: a sentence for every rule that the plan breaks; empty if it is legal.
    """

    task: ClassVar[str] = "elastic"
    bound_words: ClassVar[tuple[str, str]] = ("lower", " of the ideal lost")
    problem: Elastic
    course: Course
    plans: np.ndarray
    events: np.ndarray
    samples: np.ndarray
    seconds: np.ndarray
    saved: np.ndarray
    policy: str = ""
    plan: ElasticPlan | None = None
    reasons: tuple[str, ...] = ()

    @property
    def chosen(self) -> np.ndarray:
        """(T,) what was chosen: plans, and ``CHECKPOINT``."""
        return np.where(self.saved, CHECKPOINT, self.plans)

    @property
    def cost(self) -> float:
        """Share of the ideal samples that is lost, the number that the task minimises."""
        return 1.0 - self.share

    def gap(self, answer: Bounded) -> float | None:
        """Return the share of a bound's samples that the run falls short of; None without one."""
        if answer.bound is None or answer.bound >= 1.0 or not self.legal:
            return None
        return 1.0 - self.share / (1.0 - answer.bound)

    @property
    def total(self) -> float:
        """Samples of all intervals."""
        return float(self.samples.sum())

    @property
    def share(self) -> float:
        """Share of what the fastest plan with free changes earns on the same nodes."""
        best = self.problem.best[self.course.nodes[: len(self.plans)]].sum()
        return self.total / float(best) if best else 0.0

    @property
    def value(self) -> float:
        """The return of the environment: samples over those of ``Elastic.ideal``."""
        return self.total / self.problem.ideal

    @cached_property
    def changed(self) -> np.ndarray:
        """(T,) bool, intervals in which another plan came into force, or a lost node was replaced.

        The start is none.
        """
        before = np.concatenate([[0], self.plans[:-1]])
        return np.asarray(((self.plans != before) | (self.events > 0)) & (before > 0))

    @cached_property
    def stopped(self) -> np.ndarray:
        """(T,) bool, intervals before which nodes in use left and no spares were ready."""
        return np.asarray((self.events > 0) & ((self.events <= READY) | (self.events == GONE)))

    @property
    def gone(self) -> np.ndarray:
        """(T,) bool, intervals before which a part of the state was lost."""
        return np.asarray(self.events == GONE)

    def to_json(self) -> dict[str, Any]:
        """Return the totals as an object of JSON types."""
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the totals as JSON, and of each interval the degrees T, P, D and spares chosen.

        An interval that waits has none.
        """
        plans = (None, *self.problem.library.candidates)
        taken = [plans[number] for number in self.plans.tolist()]
        chosen = [None if plan is None else [*plan.degrees, plan.spares] for plan in taken]
        write_text(Path(path), json.dumps({**self.to_json(), "chosen": chosen}) + "\n")


@dataclass(frozen=True)
class PolicyReport:
    """What a policy earned on the courses of a problem.

    Attributes:
        runs: a run for each course.
    """

    runs: tuple[Run, ...]

    legal = True
    """Whether the plans fit the nodes; runs are of such plans alone."""

    @property
    def share(self) -> float:
        """Samples of all courses over those of the fastest plan with free changes."""
        best = [float(run.problem.best[run.course.nodes].sum()) for run in self.runs]
        return sum(run.total for run in self.runs) / sum(best)


def follow(problem: Elastic, course: Course, policy: Policy) -> Run:
    """Let a policy choose through a course.

    Raises:
        ValueError: it chooses a plan that the nodes are not enough for.
    """
    policy.start(problem)
    return _played(problem, course, problem.intervals, policy.choose, policy.name)


def replay(problem: Elastic, course: Course, plans: Any, policy: str = "") -> Run:
    """Return what given plans earn in the first intervals of a course; arguments as of ``Run``."""
    plans = np.asarray(plans, dtype=np.int64)
    chosen = iter(plans.tolist())
    return _played(problem, course, len(plans), lambda *_: next(chosen), policy)


def judged(problem: Elastic, plan: ElasticPlan) -> Run:
    """Judge a plan: replay it on the course of its seed.

    The run ends before the first interval whose choice breaks a rule. A plan that has checkpoints
    written is judged as one of a problem that allows it.
    """
    if plan.saved and not problem.checkpoints:
        problem = replace(problem, checkpoints=True)
    course, library, reasons = problem.drawn(plan.seed), problem.library, []
    if plan.fingerprint != problem.fingerprint:
        reasons.append(
            f"fingerprint: the plan is for {plan.fingerprint[:19]}..., but {problem.instance} is "
            f"{problem.fingerprint[:19]}...; make the plan anew"
        )
    if len(plan.chosen) != problem.intervals:
        reasons.append(f"chosen: has {len(plan.chosen)} intervals, not {problem.intervals}")
    candidates = enumerate(library.candidates, 1)
    number: dict[Any, int] = {(*plan.degrees, plan.spares): k for k, plan in candidates}
    number[WAIT] = 0
    good: list[int] = []
    saved = set(plan.saved)
    for t, choice in enumerate(plan.chosen[: problem.intervals]):
        words = f"chosen: interval {t}: {choice and list(choice)}"
        if choice not in number:
            reasons.append(f"{words} is no candidate of {library.name}")
            break
        needed, nodes = int(library.needed[number[choice]]), int(course.nodes[t])
        if needed > nodes:
            reasons.append(f"{words} takes {needed} nodes, there are {nodes}")
            break
        good.append(number[choice])
    last = max(saved, default=-1)
    if last >= problem.intervals:
        reasons.append(f"saved: there is no interval {last}")
    events = replay(problem, course, good).events
    for t in sorted(saved & set(range(len(good)))):
        if t == 0 or not good[t] == good[t - 1] != 0 or events[t]:
            reasons.append(f"saved: interval {t} keeps no plan, so it writes no checkpoint")
            good = good[:t]
            break
    good = [CHECKPOINT if t in saved else plan for t, plan in enumerate(good)]
    run = replay(problem, course, good, plan.policy)
    return replace(run, plan=plan, reasons=tuple(reasons))


def _played(problem: Elastic, course: Course, count: int, choose: Any, name: str) -> Run:
    """Simulate ``count`` intervals."""
    seconds, _ = problem.library.tables
    plans, events = np.zeros((2, count), dtype=np.int64)
    samples, spent = np.zeros((2, count))
    saved = np.zeros(count, dtype=np.bool_)
    moment = Moment(0, int(course.nodes[0]))
    for t in range(count):
        plan = int(choose(moment, int(course.joined[t]), int(course.left[t])))
        refused = problem.refused(moment, plan)
        if refused is not None:
            raise ValueError(f"interval {t}: {refused}")
        samples[t] = problem.samples(moment, plan)
        saved[t] = plan == CHECKPOINT
        kept = moment.plan if saved[t] else plan
        plans[t], events[t] = kept, moment.event
        stays = kept == moment.plan and moment.event == 0
        spent[t] = 0.0 if stays or kept == 0 else seconds[moment.event, moment.plan, kept]
        if t + 1 < problem.intervals:
            moment = problem.after(moment, plan, course)
    return Run(problem, course, plans, events, samples, spent, saved, name)
