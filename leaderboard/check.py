"""Judges entries, and gives every reason for refusing one.

An entry's plans are judged anew on every check. The score of an entry is the mean of its scores
over all problems of its task that everybody can judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from parenvs.core.leaderboard import Reference, TaskProblem, is_less, kind_of, reference_of
from parenvs.core.plan import Plan, current
from parenvs.errors import ParenvsError, shown
from parenvs.files import StrPath
from parenvs.leaderboard.entry import Entry, cleaned, load_entry
from parenvs.leaderboard.methods import rerun
from parenvs.leaderboard.tasks import Task, tasks

_REASONS = 5  # that are given for one plan; the others are counted


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
        return self.state == PlanState.LEGAL and not is_less(reference, self.cost)

    @property
    def simulated(self) -> float | None:
        """Simulated seconds of the plan; None if there is no plan or no simulation."""
        return self.problem.simulated(self.report) if self.state == PlanState.LEGAL else None

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
    """An entry with a verdict on each problem of its task."""

    entry: Entry
    task: Task
    verdicts: tuple[Verdict, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons for refusing the entry, none if it is accepted; a missing plan is no reason."""
        return tuple(reason for verdict in self.verdicts for reason in verdict.reasons)

    @property
    def is_lodged(self) -> bool:
        """Whether a method's hash was in the list before the seed; true for other entries."""
        entry = self.entry
        return not entry.script or entry.script in tasks().lodged.get(entry.tasks, ())

    @property
    def score(self) -> float:
        """Mean of the scores of all problems that count, of the task's kind."""
        scores = [verdict.score for verdict in self.verdicts if verdict.counts]
        mean = fmean if kind_of(self.task.name).mean == "arithmetic" else geometric_mean
        return mean(scores)

    def count(self, state: PlanState) -> int:
        """Return the number of problems that count whose plan has this state."""
        return sum(verdict.state == state for verdict in self.verdicts if verdict.counts)

    @property
    def figures(self) -> dict[str, str]:
        """Title -> figure beside the score, as text; empty where there is none."""
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


def check_file(path: StrPath, seed: int | None = None, runner: str = "") -> CheckedEntry:
    """Read an entry and judge it; arguments as of ``check``, whose script is beside the entry.

    Raises:
        EntryError: the file is no entry; the error has every reason.
    """
    return check(load_entry(path), seed, runner, Path(path).with_suffix(".py"))


def check(
    entry: Entry, seed: int | None = None, runner: str = "", script: Path | None = None
) -> CheckedEntry:
    """Judge the plans of an entry, or play its policy, by the list of tasks that it is for.

    Nothing that a stranger wrote is run, unless there is a runner. Where a problem's file is one
    that users add and is not here, the plan is not judged, and nothing else is lost.

    Args:
        entry: the entry.
        seed: of a policy's courses and a method's problems (default: that of the entry's list).
        runner: command that runs a method's script, see ``rerun``; empty: its plans are judged.
        script: the method's script.

    Raises:
        ParenvsError: a method is to be judged on another seed, and there is no runner; or its
            script is not the one that the entry names.
    """
    task_list = tasks(entry.tasks)
    task, kind = task_list.task(entry.task), kind_of(entry.task)
    seed = task_list.seed if seed is None else seed
    if kind.policies is not None:
        return CheckedEntry(entry, task, tuple(_policy_verdicts(entry, task, seed)))
    # On its list's own seed the entry has plans; on any other its script must run.
    if kind.draw is not None and (runner or seed != task_list.seed):
        entry, task = rerun(entry, seed, runner, script)
    verdicts = (
        judged(problem, entry.plans[problem.name])
        if problem.name in entry.plans
        else Verdict(problem, PlanState.MISSING, problem.trivial)
        for problem in task.problems.values()
    )
    return CheckedEntry(entry, task, tuple(verdicts))


def _policy_verdicts(entry: Entry, task: Task, seed: int) -> Iterable[Verdict]:
    """Yield a verdict on each problem: a policy, which is data, chooses, and that is replayed."""
    rules = kind_of(task.name).policies
    assert rules is not None
    problems: list[Any] = list(task.problems.values())
    chosen = rules.choose(rules.read(entry.policy, entry.entry), problems, seed)
    for problem in problems:
        drawn = problem.redrawn(seed)
        if isinstance(chosen, str):
            note = f"field 'policy': not judged: {chosen}"
            yield Verdict(drawn, PlanState.UNJUDGED, drawn.trivial, note=note)
        elif chosen.get(problem.name) is None:
            yield Verdict(drawn, PlanState.MISSING, drawn.trivial)
        else:
            where = f"field 'policy': problem {problem.name!r}"
            try:
                report = drawn.replayed(chosen[problem.name], entry.entry)
            except (ValueError, TypeError, OverflowError) as error:
                yield _illegal(drawn, where, [str(error)])
            else:
                yield _legal(drawn, where, report)


def judged(problem: TaskProblem, content: Any) -> Verdict:
    """Judge the content of a plan file.

    Nothing in it is opened as a file: instance and cluster must be the problem's own.
    """
    where = f"field 'plans.{problem.name}'"
    content = current(content) if isinstance(content, Mapping) else content
    reasons = _head_faults(problem, content)
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
    return _legal(problem, where, report)


def _legal(problem: TaskProblem, where: str, report: Any) -> Verdict:
    cost, reference = problem.cost(report), problem.reference
    limit_name, limit = "lower bound", reference.bound
    if reference.proven:
        limit_name, limit = "optimum", reference.cost
    # A reference without proof has a bound below its cost; a plan may be between them.
    if is_less(cost, limit):
        reason = (
            f"cost {cost!r} is better than the proven {limit_name} {limit!r}: the proof or the "
            "judge is wrong; please open an issue with this file"
        )
        return _illegal(problem, where, [reason], report)
    improves = problem.improves(cost)
    return Verdict(problem, PlanState.LEGAL, cost, report=report, improves=improves)


def _illegal(problem: TaskProblem, where: str, reasons: list[str], report: Any = None) -> Verdict:
    hidden = len(reasons) - _REASONS
    if hidden > 0:
        reasons = [*reasons[:_REASONS], f"and {hidden:,} more reasons"]
    texts = tuple(cleaned(f"{where}: {reason}") for reason in reasons)
    return Verdict(problem, PlanState.ILLEGAL, problem.trivial, texts, report)


def _head_faults(problem: TaskProblem, content: Any) -> list[str]:
    """Why a plan's fields that say what it is for are not the problem's."""
    if not isinstance(content, Mapping):
        return [f"must be a plan, an object, not {shown(content)}"]
    reasons = []
    # Compared before the plan is read, so that no path of a stranger is ever opened.
    for key, expected_value in problem.head.items():
        if key not in content and key not in problem.optional:
            reasons.append(f"field {key!r} is missing")
            continue
        value = content.get(key, problem.optional.get(key))
        if not _is_same(value, expected_value):
            remedy = "; make the plan anew" if key == "fingerprint" else ""
            expected = cleaned(json.dumps(expected_value), 120)
            reasons.append(f"field {key!r} must be {expected}, not {shown(value)}{remedy}")
    if "cluster" in content and "cluster" not in problem.head:
        reasons.append("field 'cluster' must be left out: 'devices' says it")
    return reasons


def _is_same(value: Any, expected: Any) -> bool:
    if isinstance(expected, dict) and isinstance(value, dict):
        same = value.keys() == expected.keys()
        return same and all(_is_same(value[key], expected[key]) for key in expected)
    return isinstance(value, bool) == isinstance(expected, bool) and bool(value == expected)


def improvements(entries: Sequence[CheckedEntry]) -> dict[str, dict[str, Reference]]:
    """Find the plans that are better than a reference which is not proven.

    Returns:
        Task -> problem -> the reference that the best of these plans makes.
    """
    references: dict[str, dict[str, Reference]] = {}
    for checked in (x for x in entries if x.entry.tasks == tasks().version):
        for verdict in checked.verdicts:
            best = references.get(checked.task.name, {}).get(verdict.problem.name)
            if not verdict.improves or (best is not None and best.cost <= verdict.cost):
                continue
            old = verdict.problem.reference
            # Whoever proved the bound stays named when another plan becomes the reference.
            bounded_by = old.bounded_by or (old.method if old.source else "")
            references.setdefault(checked.task.name, {})[verdict.problem.name] = reference_of(
                verdict.cost, old.bound, checked.entry.entry, "", bounded_by, old.source
            )
    return references
