"""Rankings: the geometric mean of an entry's scores over all problems of its task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from parenvs.leaderboard.check import ILLEGAL, MISSING, Checked, Verdict
from parenvs.leaderboard.problem import TOLERANCE, Reference
from parenvs.leaderboard.tasks import Task

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
