"""Rankings: the geometric mean of an entry's scores over all problems of its task.

JOINED: Checks entries: every plan is judged anew, and every reason for refusing one is given.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parenvs.errors import ParenvsError, shown
from parenvs.leaderboard.entry import Entry, load_entry
from parenvs.leaderboard.problem import KINDS, TOLERANCE, Problem, Reference
from parenvs.leaderboard.reading import cleaned
from parenvs.leaderboard.tasks import Task, tasks
from parenvs.partitioning.problem import PartitionReport
from parenvs.pipeline.problem import Report
from parenvs.plan import PartitionPlan, PipelinePlan, Plan

DIGITS = 6
"""Decimals to which scores are compared: what is equal to these is a tie."""


@dataclass(frozen=True)
class Standing:
    """An entry's place in its task.

    Attributes:
        rank: from 1; entries that tie have the same.
        checked: the entry with its verdicts.
        score: geometric mean of the scores of all problems, in (0, 1].
    """

    rank: int
    checked: Checked
    score: float

    @property
    def reached(self) -> int:
        """Problems on which the entry has the reference's cost."""
        return sum(verdict.reaches for verdict in self.checked.verdicts)

    @property
    def mark(self) -> str:
        """What is wrong with some of its problems, in words, or an empty text."""
        counts = ((self.checked.count(state), state) for state in (MISSING, ILLEGAL))
        return ", ".join(f"{count} {state}" for count, state in counts if count)

    @property
    def seconds(self) -> float | None:
        """Wall seconds of all plans together, as the entry says; None if it does not."""
        seconds = self.checked.entry.seconds
        return math.fsum(seconds.values()) if seconds else None

    def to_json(self) -> dict[str, Any]:
        """The standing as an object of JSON types: what a page shows, without the plans."""
        entry = self.checked.entry.to_json()
        del entry["plans"], entry["schema"]
        return {
            "rank": self.rank,
            "score": self.score,
            "reached": self.reached,
            **entry,
            "problems": [verdict.to_json() for verdict in self.checked.verdicts],
        }


def score(checked: Checked) -> float:
    """Geometric mean of the scores of all problems, in (0, 1]."""
    logarithms = [math.log(verdict.score) for verdict in checked.verdicts]
    return math.exp(math.fsum(logarithms) / len(logarithms))


def ranking(task: Task, entries: Iterable[Checked]) -> list[Standing]:
    """The entries of a task, best first; ties, equal to ``DIGITS`` decimals, by name."""
    mine = [(round(score(e), DIGITS), e) for e in entries if e.task.name == task.name]
    mine.sort(key=lambda pair: (-pair[0], pair[1].entry.entry))
    values = [value for value, _ in mine]
    return [Standing(values.index(value) + 1, e, value) for value, e in mine]


def improvements(entries: Sequence[Checked]) -> dict[str, dict[str, Reference]]:
    """Task -> problem -> reference, where a plan is better than what is known and not proven."""
    found: dict[str, dict[str, Reference]] = {}
    for checked in entries:
        for verdict in checked.verdicts:
            known = found.get(checked.task.name, {}).get(verdict.problem.name)
            if not verdict.improves or (known is not None and known.cost <= verdict.cost):
                continue
            better = _reference(verdict, checked.entry.entry)
            found.setdefault(checked.task.name, {})[verdict.problem.name] = better
    return found


def _reference(verdict: Verdict, method: str) -> Reference:
    """A plan's cost as the best one known; it is optimal if it is as low as the proven bound."""
    cost, bound = verdict.cost, verdict.problem.reference.bound
    if cost <= bound * (1 + TOLERANCE):
        return Reference(cost, cost, "optimal", method)
    return Reference(cost, bound, "bound", method)


LEGAL, MISSING, ILLEGAL = "legal", "missing", "illegal"
_REASONS = 5
"""Reasons that are given of one plan."""
_STRANGERS = 20
"""Unknown paths in a partition beyond which the judge does not look for similar ones."""
_OPTIONAL = {"rules": "shardy", "uneven": "pad"}
"""What a plan file may leave out, and what it then means."""


@dataclass(frozen=True)
class Verdict:
    """What is said of an entry's plan of one problem.

    Attributes:
        problem: the problem.
        state: ``"legal"``, ``"missing"`` or ``"illegal"``.
        cost: of the plan if it is legal, else of the trivial plan.
        reasons: why it is illegal, each naming the field.
        report: what the judge says, None if it was not asked.
        improves: whether the plan is better than a reference that is not proven.
    """

    problem: Problem
    state: str
    cost: float
    reasons: tuple[str, ...] = ()
    report: Report | PartitionReport | None = None
    improves: bool = False

    @property
    def score(self) -> float:
        """In (0, 1]."""
        return self.problem.score(self.cost)

    @property
    def reaches(self) -> bool:
        """Whether the cost is the reference's."""
        return self.state == LEGAL and self.cost <= self.problem.reference.cost * (1 + TOLERANCE)

    def to_json(self) -> dict[str, Any]:
        """The verdict as an object of JSON types, without the judge's report."""
        return {
            "problem": self.problem.name,
            "state": self.state,
            "cost": self.cost,
            "score": self.score,
            "reasons": list(self.reasons),
            "improves": self.improves,
        }


@dataclass(frozen=True)
class Checked:
    """An entry with a verdict on each problem of its task.

    Attributes:
        entry: the entry.
        task: its task.
        verdicts: one a problem, in the order of the task.
    """

    entry: Entry
    task: Task
    verdicts: tuple[Verdict, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is refused; empty if it is accepted. A missing plan is no reason."""
        return tuple(reason for verdict in self.verdicts for reason in verdict.reasons)

    def count(self, state: str) -> int:
        """Problems with a verdict of that state."""
        return sum(verdict.state == state for verdict in self.verdicts)


def check_file(path: str | os.PathLike[str]) -> Checked:
    """Read an entry and judge its plans.

    Raises:
        EntryError: it is no entry; has every reason.
    """
    return check(load_entry(path))


def check(entry: Entry) -> Checked:
    """Judge the plans of an entry."""
    task = tasks().task(entry.task)
    verdicts = (
        judged(problem, entry.plans[problem.name])
        if problem.name in entry.plans
        else Verdict(problem, MISSING, problem.trivial)
        for problem in task.problems.values()
    )
    return Checked(entry, task, tuple(verdicts))


def judged(problem: Problem, content: Any) -> Verdict:
    """The verdict on the content of a plan file, of JSON types.

    Nothing in it is opened as a file: instance and cluster must be the problem's own.
    """
    where = f"field 'plans.{problem.name}'"
    reasons = _strange(problem, content)
    if reasons:
        return _illegal(problem, where, reasons)
    try:
        plan: Plan = KINDS[problem.kind].from_json(content, where)
    except ParenvsError as error:
        return _illegal(problem, where, [str(error).removeprefix(f"{where}: ")])
    reasons = _oversized(problem, plan)
    if reasons:
        return _illegal(problem, where, reasons)
    report = problem.judge(plan)
    if not report.legal:
        return _illegal(problem, where, list(report.reasons), report)
    cost, reference = problem.cost(report), problem.reference
    impossible = cost < reference.bound * (1 - TOLERANCE)
    if impossible or (reference.status == "optimal" and cost < reference.cost * (1 - TOLERANCE)):
        what = "optimum" if reference.status == "optimal" else "lower bound"
        proven = reference.cost if reference.status == "optimal" else reference.bound
        words = (
            f"cost {cost!r} is better than the proven {what} {proven!r}: the proof or the "
            "judge is wrong; please open an issue with this file"
        )
        return _illegal(problem, where, [words], report)
    improves = cost < reference.cost * (1 - TOLERANCE)
    return Verdict(problem, LEGAL, cost, report=report, improves=improves)


def _illegal(
    problem: Problem,
    where: str,
    reasons: list[str],
    report: Report | PartitionReport | None = None,
) -> Verdict:
    more = len(reasons) - _REASONS
    if more > 0:
        reasons = [*reasons[:_REASONS], f"and {more:,} more reasons"]
    words = tuple(cleaned(f"{where}: {reason}") for reason in reasons)
    return Verdict(problem, ILLEGAL, problem.trivial, words, report)


def _strange(problem: Problem, content: Any) -> list[str]:
    """Reasons for which the content is no plan of the problem, whatever it decides."""
    if not isinstance(content, Mapping):
        return [f"must be a plan, an object, not {shown(content)}"]
    reasons = []
    for key, wanted in problem.head.items():
        if key in content:
            value = content[key]
        elif key in _OPTIONAL:
            value = _OPTIONAL[key]
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
    """Whether two values of JSON types are equal, types included: true is not 1, 1.0 is."""
    if isinstance(wanted, dict):
        return (
            isinstance(value, dict)
            and set(value) == set(wanted)
            and all(_same(value[key], wanted[key]) for key in wanted)
        )
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _oversized(problem: Problem, plan: Plan) -> list[str]:
    """Reasons for which the judge need not be asked: what it would explain at length."""
    if isinstance(plan, PipelinePlan):
        asked = problem.stages - 1
        return [
            f"field {key!r} has {len(values):,} numbers; {problem.stages} stages have {asked}"
            for key, values in (("cuts", plan.cuts), ("device_cuts", plan.device_cuts))
            if len(values) != asked
        ]
    assert isinstance(plan, PartitionPlan)
    strangers = [path for path in plan.partition if path not in problem.partitioning.tensor]
    if len(strangers) <= _STRANGERS:
        return []
    return [
        f"field 'partition' names {len(strangers):,} paths that the graph does not have, like "
        f"{shown(strangers[0])}"
    ]


def _short(wanted: Any) -> str:
    return cleaned(json.dumps(wanted), 120)
