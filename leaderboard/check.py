"""Judges entries, gives every reason for refusing one, and ranks them.

An entry's plans are judged anew on every check. The score of an entry is the geometric mean of its
scores over all problems of its task that everybody can judge.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from parenvs.errors import ParenvsError, shown
from parenvs.leaderboard.entry import Entry, load_entry
from parenvs.leaderboard.kinds import KINDS
from parenvs.leaderboard.problem import BOUND, OPTIMAL, TOLERANCE, Reference, TaskProblem
from parenvs.leaderboard.reading import cleaned
from parenvs.leaderboard.tasks import Task, tasks
from parenvs.plan import Plan

DIGITS = 6
"""Decimals to which scores are compared: scores that are equal to these tie."""
_REASONS = 5
"""Reasons that are given for one plan; the others are counted."""


class PlanState(str, Enum):
    """State of an entry's plan of a problem."""

    LEGAL = "legal"
    MISSING = "missing"
    ILLEGAL = "illegal"
    UNJUDGED = "not judged"  # the problem's file is not here

    __str__ = str.__str__  # so that pages and messages show the word


@dataclass(frozen=True)
class Verdict:
    """Verdict on an entry's plan of one problem.

    Attributes:
        problem: the problem.
        state: whether the plan is legal, missing, illegal or not judged.
        cost: cost of the plan if it is legal, else that of the trivial plan.
        reasons: why the plan is illegal; each reason names the field.
        report: the judge's report, None if the judge was not asked.
        improves: whether the plan is better than a reference that is not proven.
        note: why the plan is not judged, and the remedy; no reason for refusing the entry.
    """

    problem: TaskProblem
    state: PlanState
    cost: float
    reasons: tuple[str, ...] = ()
    report: Any = None
    improves: bool = False
    note: str = ""

    @property
    def counts(self) -> bool:
        """Whether the problem counts in the score of the task."""
        return not self.problem.added

    @property
    def score(self) -> float:
        """Score of the plan: above 1 only if it is better than a reference without proof."""
        return self.problem.score(self.cost)

    @property
    def reaches(self) -> bool:
        """Whether the plan is legal and costs no more than the reference."""
        reference = self.problem.reference.cost
        return self.state == PlanState.LEGAL and self.cost <= reference * (1 + TOLERANCE)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as an object of JSON types, without the judge's report."""
        return {
            "problem": self.problem.name,
            "state": self.state.value,
            "cost": self.cost,
            "score": self.score,
            "reasons": list(self.reasons),
            "improves": self.improves,
            **({"note": self.note} if self.note else {}),
        }


@dataclass(frozen=True)
class CheckedEntry:
    """An entry with a verdict on each problem of its task.

    Attributes:
        entry: the entry.
        task: its task.
        verdicts: one for each problem, in the order of the task.
    """

    entry: Entry
    task: Task
    verdicts: tuple[Verdict, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons for refusing the entry, none if it is accepted; a missing plan is no reason."""
        return tuple(reason for verdict in self.verdicts for reason in verdict.reasons)

    @property
    def score(self) -> float:
        """Geometric mean of the scores of all problems that count."""
        return mean_score(verdict for verdict in self.verdicts if verdict.counts)

    def count(self, state: PlanState) -> int:
        """Return the number of problems that count whose plan has this state."""
        return sum(verdict.state == state for verdict in self.verdicts if verdict.counts)

    @property
    def figures(self) -> dict[str, str]:
        """Title -> figure beside the score, in words; empty where there is none."""
        pairs = [
            (verdict.problem, verdict.cost if verdict.state == PlanState.LEGAL else None)
            for verdict in self.verdicts
            if verdict.state != PlanState.UNJUDGED
        ]
        values = {figure: figure.of(pairs) for figure in KINDS[self.task.name].figures}
        return {
            figure.title: "" if value is None else figure.show(value)
            for figure, value in values.items()
        }


@dataclass(frozen=True)
class Standing:
    """An entry's place in the ranking of its task.

    Attributes:
        rank: place, from 1; entries that tie have the same.
        checked: the entry with its verdicts.
        score: its score, rounded to ``DIGITS`` decimals.
    """

    rank: int
    checked: CheckedEntry
    score: float

    @property
    def reached(self) -> int:
        """Number of problems on which the entry has the reference's cost."""
        return sum(verdict.reaches for verdict in self.checked.verdicts if verdict.counts)

    @property
    def mark(self) -> str:
        """Numbers of missing and of illegal plans in words, or an empty text."""
        states = (PlanState.MISSING, PlanState.ILLEGAL)
        counts = ((self.checked.count(state), state) for state in states)
        return ", ".join(f"{count} {state}" for count, state in counts if count)

    @property
    def seconds(self) -> float | None:
        """Wall seconds of all plans together, as the entry tells them; None if it does not."""
        seconds = self.checked.entry.seconds
        return math.fsum(seconds.values()) if seconds else None

    def to_json(self) -> dict[str, Any]:
        """Return the standing as an object of JSON types, without the plans."""
        entry = self.checked.entry.to_json()
        del entry["plans"], entry["schema"]
        return {
            "rank": self.rank,
            "score": self.score,
            "reached": self.reached,
            **entry,
            "problems": [verdict.to_json() for verdict in self.checked.verdicts],
        }


def mean_score(verdicts: Iterable[Verdict]) -> float:
    """Return the geometric mean of scores."""
    logarithms = [math.log(verdict.score) for verdict in verdicts]
    return math.exp(math.fsum(logarithms) / len(logarithms))


def check_file(path: str | os.PathLike[str]) -> CheckedEntry:
    """Read an entry and judge its plans.

    Raises:
        EntryError: the file is no entry; the error has every reason.
    """
    return check(load_entry(path))


def check(entry: Entry) -> CheckedEntry:
    """Judge the plans of an entry.

    Where a problem's file is one that users add and is not here, the plan is not judged, and
    nothing else is lost.
    """
    task = tasks().task(entry.task)
    verdicts = (
        judged(problem, entry.plans[problem.name])
        if problem.name in entry.plans
        else Verdict(problem, PlanState.MISSING, problem.trivial)
        for problem in task.problems.values()
    )
    return CheckedEntry(entry, task, tuple(verdicts))


def judged(problem: TaskProblem, content: Any) -> Verdict:
    """Judge the content of a plan file.

    Nothing in it is opened as a file: instance and cluster must be the problem's own.

    Args:
        problem: the problem that the plan must be for.
        content: the plan as JSON types, which may be anything.
    """
    where = f"field 'plans.{problem.name}'"
    reasons = _reasons_of_head(problem, content)
    if reasons:
        return _illegal(problem, where, reasons)
    try:
        plan: Plan = problem.plan_class.from_json(content, where)
    except ParenvsError as error:
        return _illegal(problem, where, [str(error).removeprefix(f"{where}: ")])
    missing = problem.missing()
    if missing:
        note = cleaned(f"{where}: not judged: {missing}")
        return Verdict(problem, PlanState.UNJUDGED, problem.trivial, note=note)
    reasons = problem.faults(plan)
    if reasons:
        return _illegal(problem, where, reasons)
    report = problem.judge(plan)
    if not report.legal:
        return _illegal(problem, where, list(report.reasons), report)
    cost, reference = problem.cost(report), problem.reference
    impossible = cost < reference.bound * (1 - TOLERANCE)
    if impossible or (reference.proven and cost < reference.cost * (1 - TOLERANCE)):
        what = "optimum" if reference.proven else "lower bound"
        proven = reference.cost if reference.proven else reference.bound
        words = (
            f"cost {cost!r} is better than the proven {what} {proven!r}: the proof or the "
            "judge is wrong; please open an issue with this file"
        )
        return _illegal(problem, where, [words], report)
    improves = problem.improves(cost)
    return Verdict(problem, PlanState.LEGAL, cost, report=report, improves=improves)


def ranking(task: Task, entries: Iterable[CheckedEntry]) -> list[Standing]:
    """Rank the entries of a task, best first; ties, equal to ``DIGITS`` decimals, by name.

    Args:
        task: the task.
        entries: entries of any tasks.
    """
    scored = [(round(e.score, DIGITS), e) for e in entries if e.task.name == task.name]
    scored.sort(key=lambda pair: (-pair[0], pair[1].entry.entry))
    scores = [score for score, _ in scored]
    return [Standing(scores.index(score) + 1, entry, score) for score, entry in scored]


def improvements(entries: Sequence[CheckedEntry]) -> dict[str, dict[str, Reference]]:
    """Find the plans that are better than a reference which is not proven.

    Returns:
        Task -> problem -> the reference that the best of these plans makes.
    """
    references: dict[str, dict[str, Reference]] = {}
    for checked in entries:
        for verdict in checked.verdicts:
            known = references.get(checked.task.name, {}).get(verdict.problem.name)
            if not verdict.improves or (known is not None and known.cost <= verdict.cost):
                continue
            better = _reference(verdict, checked.entry.entry)
            references.setdefault(checked.task.name, {})[verdict.problem.name] = better
    return references


def _reference(verdict: Verdict, method: str) -> Reference:
    """Return the reference of a plan; it is optimal if its cost is as low as the proven bound."""
    cost, old = verdict.cost, verdict.problem.reference
    bounded_by = old.bounded_by or (old.method if old.source else "")
    if cost <= old.bound * (1 + TOLERANCE):
        return Reference(cost, cost, OPTIMAL, method, "", bounded_by, old.source)
    return Reference(cost, old.bound, BOUND, method, "", bounded_by, old.source)


def _illegal(
    problem: TaskProblem,
    where: str,
    reasons: list[str],
    report: Any = None,
) -> Verdict:
    """Return the verdict on an illegal plan, with at most ``_REASONS`` reasons."""
    more = len(reasons) - _REASONS
    if more > 0:
        reasons = [*reasons[:_REASONS], f"and {more:,} more reasons"]
    words = tuple(cleaned(f"{where}: {reason}") for reason in reasons)
    return Verdict(problem, PlanState.ILLEGAL, problem.trivial, words, report)


def _reasons_of_head(problem: TaskProblem, content: Any) -> list[str]:
    """Return the reasons why the content is no plan of the problem, whatever it decides."""
    if not isinstance(content, Mapping):
        return [f"must be a plan, an object, not {shown(content)}"]
    reasons = []
    for key, wanted in problem.head.items():
        if key in content:
            value = content[key]
        elif key in problem.optional:
            value = problem.optional[key]
        else:
            reasons.append(f"field {key!r} is missing")
            continue
        if not _same(value, wanted):
            remedy = "; make the plan anew" if key == "fingerprint" else ""
            reasons.append(f"field {key!r} must be {_short(wanted)}, not {shown(value)}{remedy}")
    if "cluster" in content and "cluster" not in problem.head:
        reasons.append("field 'cluster' must be left out: 'devices' says it")
    return reasons


def _same(value: Any, wanted: Any) -> bool:
    """Return whether two values of JSON types are equal; true is not 1, but 1.0 is."""
    if isinstance(wanted, dict):
        return (
            isinstance(value, dict)
            and set(value) == set(wanted)
            and all(_same(value[key], wanted[key]) for key in wanted)
        )
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _short(wanted: Any) -> str:
    """Return a value as JSON of at most 120 characters."""
    return cleaned(json.dumps(wanted), 120)
