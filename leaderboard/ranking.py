"""Ranks judged entries, compares them with each other, and writes rankings as Markdown.

L, the closed form, ranks pipelines, as references are proven of it. The simulation of the same step
differs from it by some percent, which is the model's error: entries that the simulation puts in
another order are neither better nor worse than each other as far as anybody knows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from parenvs.core.leaderboard import TOLERANCE, Reference, kind_of
from parenvs.leaderboard.check import CheckedEntry, PlanState, Verdict
from parenvs.leaderboard.tasks import Task, TaskList, tasks
from parenvs.markdown import escaped, table

DIGITS = 6
"""Decimals to which scores are compared: scores that are equal to these tie."""
_LEFT = {
    "authors", "commit", "entry", "learned", "marked",
    "search", "task", "trained on",
}  # fmt: skip
"""Titles of the columns that are flush left."""


@dataclass(frozen=True)
class Standing:
    """An entry's place in the ranking of its task.

    Attributes:
        rank: place, from 1; entries that tie have the same.
        score: its score, rounded to ``DIGITS`` decimals.
    """

    rank: int
    checked: CheckedEntry
    score: float

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self.checked.entry.entry

    @property
    def reached(self) -> int:
        """Number of problems on which the entry has the reference's cost."""
        return sum(verdict.reaches for verdict in self.checked.verdicts if verdict.counts)

    @property
    def mark(self) -> str:
        """Numbers of missing and of illegal plans, and whether a script's hash came late."""
        states = (PlanState.MISSING, PlanState.ILLEGAL)
        counts = ((self.checked.count(state), state) for state in states)
        words = [f"{count} {state}" for count, state in counts if count]
        words += [] if self.checked.is_lodged else ["script not lodged before the seed"]
        return ", ".join(words)

    @property
    def seconds(self) -> float | None:
        """Wall seconds of all plans together, by the author's word; None if there are none."""
        seconds = self.checked.entry.seconds
        return math.fsum(seconds.values()) if seconds else None

    @property
    def simulated(self) -> float | None:
        """Geometric mean of reference / simulated; without a plan, that of the trivial plan."""
        counted = [verdict for verdict in self.checked.verdicts if verdict.counts]
        if all(verdict.simulated is None for verdict in counted):
            return None
        return geometric_mean(
            verdict.problem.reference.cost / (verdict.simulated or verdict.cost)
            for verdict in counted
        )

    def to_json(self) -> dict[str, Any]:
        """Return the standing as an object of JSON types, without the plans."""
        entry = self.checked.entry.to_json()
        for key in ("plans", "policy", "schema"):
            entry.pop(key, None)
        return {
            "rank": self.rank,
            "score": self.score,
            "reached": self.reached,
            "mark": self.mark,
            **entry,
            "problems": [verdict.to_json() for verdict in self.checked.verdicts],
        }


@dataclass(frozen=True)
class Marks:
    """What an entry is beside the others of its task.

    Attributes:
        simulated: see ``Standing.simulated``.
        equal: entries of a better score that it is not slower than in the simulation.
        same: another entry that has the same plans of all problems, or an empty text.
    """

    simulated: float | None = None
    equal: tuple[str, ...] = ()
    same: str = ""

    @property
    def words(self) -> str:
        """The marks as text; empty if there are none."""
        parts = [f"same plans as {self.same}"] if self.same else []
        if self.equal:
            others = ", ".join(self.equal[:3]) + (", ..." if len(self.equal) > 3 else "")
            parts.append(f"equal to {others} within the model's error")
        return "; ".join(parts)


def by_version(entries: Iterable[CheckedEntry]) -> list[tuple[TaskList, list[CheckedEntry]]]:
    """Return today's list with its entries, then older lists with theirs, where there are some.

    Problems and courses are those of each version: scores of two lists are no ranking.
    """
    versions: dict[int, list[CheckedEntry]] = {tasks().version: []}
    for checked in entries:
        versions.setdefault(checked.entry.tasks, []).append(checked)
    newest_first = sorted(versions.items(), reverse=True)
    return [(tasks(version), group) for version, group in newest_first]


def ranking(task: Task, entries: Iterable[CheckedEntry]) -> list[Standing]:
    """Rank the entries of a task, best first; ties, equal to ``DIGITS`` decimals, by name."""
    # Rounded before ranking, or sums in another order would break ties.
    scored = [(round(e.score, DIGITS), e) for e in entries if e.task.name == task.name]
    scored.sort(key=lambda pair: (-pair[0], pair[1].entry.entry))
    scores = [score for score, _ in scored]
    return [Standing(scores.index(score) + 1, entry, score) for score, entry in scored]


def standings_json(entries: Sequence[CheckedEntry]) -> dict[str, Any]:
    """Return the list of tasks with the standings of each; older lists are in ``older``."""
    first, *older = [
        {
            "version": task_list.version,
            "revision": task_list.revision,
            "tasks": [
                {**task.to_json(), "standings": [s.to_json() for s in ranking(task, group)]}
                for task in task_list.tasks.values()
            ],
        }
        for task_list, group in by_version(entries)
    ]
    return {**first, "older": older}


def compare(standings: Sequence[Standing]) -> dict[str, Marks]:
    """Return the marks of all entries of a task, by name.

    An entry of a worse score that is as fast in simulation is marked as equal to the better ones.

    Args:
        standings: of ``ranking``.
    """
    speeds = {standing.name: standing.simulated for standing in standings}
    twins = _same_plans(standings)
    marks = {}
    for standing in standings:
        speed = speeds[standing.name]
        equal = tuple(
            better.name
            for better in standings
            if better.score > standing.score
            and (better_speed := speeds[better.name]) is not None
            and speed is not None
            and round(speed, DIGITS) >= round(better_speed, DIGITS)
        )
        marks[standing.name] = Marks(speed, equal, twins.get(standing.name, ""))
    return marks


def unconfirmed(standings: Sequence[Standing]) -> dict[str, set[str]]:
    """Return the problems on which the simulation does not confirm the best plan.

    Returns:
        Name of a problem -> entries whose plan has a greater L than the reference, and is not
        slower in simulation than any plan that has the reference's L.
    """
    costs: dict[str, list[tuple[bool, float, str]]] = {}
    for standing in standings:
        for verdict in standing.checked.verdicts:
            if verdict.simulated is not None:
                row = (verdict.reaches, verdict.simulated, standing.name)
                costs.setdefault(verdict.problem.name, []).append(row)
    pairs = {}
    for problem, rows in costs.items():
        # No plan reaches the reference: 0, which no other plan can be as fast as.
        best = min((seconds for reaches, seconds, _ in rows if reaches), default=0.0)
        limit = best * (1 + TOLERANCE)
        others = {name for reaches, seconds, name in rows if not reaches and seconds <= limit}
        if others:
            pairs[problem] = others
    return pairs


def _same_plans(standings: Sequence[Standing]) -> dict[str, str]:
    """Return the entries whose plans are all those of another one -> that one.

    Among entries of the same plans the project's own is named, or else the first by name.
    """
    groups: dict[str, list[Standing]] = {}
    for standing in standings:
        plans = {
            verdict.problem.name: verdict.problem.decided(verdict.report)
            for verdict in standing.checked.verdicts
            if verdict.state == PlanState.LEGAL
        }
        if plans:
            # Entries with equal decisions on all problems share a key.
            groups.setdefault(json.dumps(plans, sort_keys=True), []).append(standing)
    twins: dict[str, str] = {}
    for group in groups.values():
        first = min(group, key=lambda x: (x.checked.entry.authors != ("parenvs",), x.name))
        twins |= {standing.name: first.name for standing in group if standing is not first}
    return twins


def about(task: Task) -> str:
    """Return what a task is and how its scores come about, in sentences."""
    problems, scoring = task.counted.values(), kind_of(task.name).scoring
    proven = sum(problem.reference.proven for problem in problems)
    if not scoring and proven < len(problems):
        scoring = "A plan better than a reference without proof scores above 1."
    words = (
        f"{task.title} Cost: {task.cost}. Trivial plan: {task.trivial}. {len(problems)} "
        f"problems, {proven} with a proven optimum."
    )
    more = len(task.problems) - len(problems)
    added = f"{more} more problems, whose files users add, do not count." if more else ""
    return " ".join(filter(None, (words, scoring, added)))


def page(entries: Sequence[CheckedEntry]) -> str:
    """Return all rankings as one page of Markdown.

    Tasks without an entry are named alone, so that one's own come first. Entries for older lists
    of tasks follow, ranked among themselves.
    """
    (task_list, current), *older = by_version(entries)
    parts = [
        "# Leaderboard",
        f"List of tasks: version {task_list.version}, revision {task_list.revision}. "
        "Score of a problem: cost of the reference / cost of the plan; of a task: the geometric "
        "mean over all its problems. A problem without a legal plan scores as the trivial plan and "
        "is marked, its score in brackets. Seconds are by the author's word and do not rank.",
        *_lines_of_tasks(task_list, current),
    ]
    for old, group in older:
        words = f"# Entries of version {old.version}", "Judged by the list that they were made for."
        parts += [*words, *_lines_of_tasks(old, group)]
    return "\n\n".join(parts) + "\n"


def _lines_of_tasks(task_list: TaskList, entries: Sequence[CheckedEntry]) -> list[str]:
    parts, without = [], []
    for task in task_list.tasks.values():
        standings = ranking(task, entries)
        if standings:
            parts += _task_lines(task, standings)
        else:
            without.append(f"`{task.name}`")
    return [*parts, f"No entry yet: {', '.join(without)}."] if without else parts


def _task_lines(task: Task, standings: Sequence[Standing]) -> list[str]:
    figures = kind_of(task.name).figures
    words = "".join(f" `{figure.title}`: {figure.words}." for figure in figures)
    parts = [f"## {task.name}", f"{about(task)}{words}"]
    marks, others = compare(standings), unconfirmed(standings)
    ratios = [
        verdict.simulated / verdict.cost
        for standing in standings
        for verdict in standing.checked.verdicts
        if verdict.simulated is not None
    ]
    rows = [_standing_cells(standing, marks[standing.name], bool(ratios)) for standing in standings]
    left = [column for column, title in enumerate(rows[0]) if title in _LEFT]
    parts.append(table([*rows[0]], [[*row.values()] for row in rows], left=left))
    if ratios:
        parts.append(
            f"L ranks. `simulated`: the same score by the simulated length. On {len(others)} of "
            f"{len(task.problems)} problems a plan with a greater L than the reference is not "
            "slower in simulation (≈ below); the simulated length is up to "
            f"{max(ratios):.2f} times L. Entries whose order the simulation turns "
            "round are equal within the model's error."
        )
    header = ["problem", "reference", "proof", *(escaped(x.name) for x in standings)]
    verdicts = [{v.problem.name: v for v in x.checked.verdicts} for x in standings]
    scores = []
    for name, problem in task.problems.items():
        cells = [
            _score_cell(by_name[name]) + " ≈" * (standing.name in others.get(name, ()))
            for standing, by_name in zip(standings, verdicts, strict=True)
        ]
        reference = problem.reference
        scores.append([name, f"{reference.cost:.6g}", _proof(reference), *cells])
    return [*parts, table(header, scores, left=(0, 2))]


def _standing_cells(standing: Standing, marks: Marks, is_simulated: bool) -> dict[str, str]:
    entry, seconds = standing.checked.entry, standing.seconds
    name = escaped(entry.entry)
    figures = dict(standing.checked.figures)
    if is_simulated:
        figures["simulated"] = "" if marks.simulated is None else f"{marks.simulated:.4f}"
    return {
        "rank": str(standing.rank),
        "entry": f"[{name}]({entry.link})" if entry.link else name,
        "score": f"{standing.score:.4f}",
        "at the reference": f"{standing.reached} of {len(standing.checked.task.counted)}",
        **figures,
        "marked": "; ".join(filter(None, (standing.mark, escaped(marks.words)))),
        "learned": "yes" if entry.learned else "no",
        "trained on": escaped(", ".join(entry.trained_on)),
        "search": escaped(entry.search_budget),
        "seconds": "" if seconds is None else f"{seconds:,.{0 if seconds >= 1000 else 2}f}",
        "authors": escaped(", ".join(entry.authors)),
        "commit": escaped(entry.commit),
    }


def _proof(reference: Reference) -> str:
    # One significant digit for tiny gaps: 0.0 % would claim a proof.
    gap = 100 * (reference.cost / reference.bound - 1)
    return "optimal" if reference.proven else f"within {gap:{'.1f' if gap >= 0.05 else '.1g'}} %"


def _score_cell(verdict: Verdict) -> str:
    score = f"{verdict.score:.4f}"
    if verdict.state == PlanState.LEGAL:
        return score
    return f"({score})" if verdict.state == PlanState.MISSING else f"({verdict.state}: {score})"
