"""Judges entries, gives every reason for refusing one, and ranks them.

An entry's plans are judged anew on every check. The score of an entry is the geometric mean of its
scores over all problems of its task that everybody can judge.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from parenvs.core.leaderboard import Reference, kind_of, kinds, reference_of
from parenvs.leaderboard.entry import Entry, load_entry
from parenvs.leaderboard.methods import drawn_task, method_verdicts
from parenvs.leaderboard.policies import policy_verdicts
from parenvs.leaderboard.sandbox.isolation import Isolation
from parenvs.leaderboard.sandbox.runner import require_isolation
from parenvs.leaderboard.tasks import Task, TaskList, tasks
from parenvs.leaderboard.verdicts import PlanState, Verdict, judged

DIGITS = 6
"""Decimals to which scores are compared: scores that are equal to these tie."""


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
    def isolation(self) -> Isolation | None:
        """What the stranger's code was kept in, at worst; None if none ran."""
        found = [verdict.isolation for verdict in self.verdicts if verdict.isolation is not None]
        return max(found, key=lambda x: len(x.missing), default=None)

    @property
    def score(self) -> float:
        """Mean of the scores of all problems that count, of the task's kind."""
        counted = (verdict for verdict in self.verdicts if verdict.counts)
        return mean_score(counted, kind_of(self.task.name).mean)

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
        values = {figure: figure.of(pairs) for figure in kind_of(self.task.name).figures}
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
        for key in ("plans", "policy", "schema"):
            entry.pop(key, None)
        isolation = self.checked.isolation
        return {
            "rank": self.rank,
            "score": self.score,
            "reached": self.reached,
            **entry,
            "isolation": None if isolation is None else asdict(isolation),
            "problems": [verdict.to_json() for verdict in self.checked.verdicts],
        }


def with_drawn(known: TaskList, entries: Iterable[CheckedEntry]) -> TaskList:
    """Return the list of tasks, and after them the drawn tasks that entries of methods are of."""
    drawn = {e.task.name: e.task for e in entries if e.entry.content == "script"}
    ordered = {name: drawn[name] for name in kinds(drawn=True) if name in drawn}
    return replace(known, tasks={**known.tasks, **ordered})


def by_version(entries: Iterable[CheckedEntry]) -> list[tuple[TaskList, list[CheckedEntry]]]:
    """Return today's list with its entries, then older lists with theirs, where there are some.

    Problems and drawn courses are those of each version: scores of two lists are no ranking.
    """
    found: dict[int, list[CheckedEntry]] = {tasks().version: []}
    for checked in entries:
        found.setdefault(checked.entry.tasks, []).append(checked)
    newest_first = sorted(found.items(), reverse=True)
    return [(with_drawn(tasks(version), mine), mine) for version, mine in newest_first]


def mean_score(verdicts: Iterable[Verdict], kind: str = "geometric") -> float:
    """Return the mean of scores, ``"geometric"`` or ``"arithmetic"``."""
    scores = [verdict.score for verdict in verdicts]
    if kind == "arithmetic":
        return math.fsum(scores) / len(scores)
    return math.exp(math.fsum(map(math.log, scores)) / len(scores))


def check_file(
    path: str | os.PathLike[str], seed: int | None = None, unsafe: bool = False
) -> CheckedEntry:
    """Read an entry and judge what it holds; arguments as of ``check``.

    Raises:
        EntryError: the file is no entry; the error has every reason.
    """
    return check(load_entry(path), seed, unsafe)


def check(entry: Entry, seed: int | None = None, unsafe: bool = False) -> CheckedEntry:
    """Judge the plans of an entry, play its policy, or run its method.

    An entry is judged by the list of tasks that it was made for, and by the seed of that list.

    Where a problem's file is one that users add and is not here, the plan is not judged, and
    nothing else is lost. What strangers wrote runs in ``parenvs.leaderboard.sandbox``.

    Args:
        entry: the entry.
        seed: of what the checker draws: courses for policies, problems for methods (default: that
            of the entry's version of the list).
        unsafe: whether what strangers wrote runs where this system cannot isolate it, too.

    Raises:
        IsolationError: it cannot, and nothing was run.
    """
    known = tasks(entry.tasks)
    seed = known.seed if seed is None else seed
    if entry.content == "script":
        if not unsafe:
            require_isolation()
        drawn = drawn_task(entry.task, seed)
        return CheckedEntry(entry, drawn, method_verdicts(entry, drawn, unsafe=unsafe))
    task = known.task(entry.task)
    if entry.content == "policy":
        return CheckedEntry(entry, task, policy_verdicts(entry, task, seed, unsafe=unsafe))
    verdicts = (
        judged(problem, entry.plans[problem.name])
        if problem.name in entry.plans
        else Verdict(problem, PlanState.MISSING, problem.trivial)
        for problem in task.problems.values()
    )
    return CheckedEntry(entry, task, tuple(verdicts))


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
    version = tasks().version
    listed = (x for x in entries if x.entry.content != "script" and x.entry.tasks == version)
    for checked in listed:
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
    return reference_of(cost, old.bound, method, "", bounded_by, old.source)
