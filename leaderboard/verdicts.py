"""``Verdict``: whether a plan of a problem is legal, what it costs, and every reason against it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from parenvs.core.leaderboard import TaskProblem, is_less
from parenvs.core.plan import Plan, current
from parenvs.errors import ParenvsError, shown
from parenvs.leaderboard.reading import cleaned
from parenvs.leaderboard.sandbox.isolation import Isolation

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
        isolation: what the stranger's code that planned was kept in; None if none ran.
    """

    problem: TaskProblem
    state: PlanState
    cost: float
    reasons: tuple[str, ...] = ()
    report: Any = None
    improves: bool = False
    note: str = ""
    isolation: Isolation | None = None

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
        return self.state == PlanState.LEGAL and not is_less(reference, self.cost)

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


def judged(problem: TaskProblem, content: Any) -> Verdict:
    """Judge the content of a plan file.

    Nothing in it is opened as a file: instance and cluster must be the problem's own.

    Args:
        problem: the problem that the plan must be for.
        content: the plan as JSON types, which may be anything.
    """
    where = f"field 'plans.{problem.name}'"
    content = current(content) if isinstance(content, Mapping) else content
    reasons = _reasons_of_head(problem, content)
    if reasons:
        return illegal(problem, where, reasons)
    try:
        plan: Plan = problem.plan_class.from_json(content, where)
    except ParenvsError as error:
        return illegal(problem, where, [str(error).removeprefix(f"{where}: ")])
    missing = problem.missing()
    if missing:
        note = cleaned(f"{where}: not judged: {missing}")
        return Verdict(problem, PlanState.UNJUDGED, problem.trivial, note=note)
    reasons = problem.faults(plan)
    if reasons:
        return illegal(problem, where, reasons)
    report = problem.judge(plan)
    if not report.legal:
        return illegal(problem, where, list(report.reasons), report)
    return priced(problem, where, report)


def priced(problem: TaskProblem, where: str, report: Any) -> Verdict:
    """Return the verdict on what is legal: its cost, which no proof may forbid.

    Args:
        problem: the problem.
        where: the field, for messages.
        report: the judge's report.
    """
    cost, reference = problem.cost(report), problem.reference
    if is_less(cost, reference.cost if reference.proven else reference.bound):
        what = "optimum" if reference.proven else "lower bound"
        proven = reference.cost if reference.proven else reference.bound
        words = (
            f"cost {cost!r} is better than the proven {what} {proven!r}: the proof or the "
            "judge is wrong; please open an issue with this file"
        )
        return illegal(problem, where, [words], report)
    improves = problem.improves(cost)
    return Verdict(problem, PlanState.LEGAL, cost, report=report, improves=improves)


def illegal(
    problem: TaskProblem,
    where: str,
    reasons: list[str],
    report: Any = None,
) -> Verdict:
    """Return the verdict on an illegal plan, with at most five reasons."""
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
