"""Writes ``results.md`` and ``summary.md``: rankings in Markdown, no number typed by hand."""

from __future__ import annotations

from collections.abc import Sequence

from parenvs.leaderboard.check import CheckedEntry, PlanState, Standing, Verdict, ranking
from parenvs.leaderboard.tasks import Task, TaskList
from parenvs.markdown import escaped, table

COMMAND = "parenvs leaderboard table --out leaderboard/results.md"
"""Command that writes ``results.md``."""
SHORT_COMMAND = "parenvs leaderboard table --summary --out leaderboard/summary.md"
"""Command that writes ``summary.md``."""
_HEADER = (
    "rank", "entry", "score", "at the reference", "marked", "learned", "trained on", "search",
    "seconds", "authors",
)  # fmt: skip


def page(known: TaskList, entries: Sequence[CheckedEntry]) -> str:
    """Return all rankings as one page of Markdown."""
    parts = [
        "# Leaderboard",
        f"`{COMMAND}`",
        f"List of tasks: version {known.version}, revision {known.revision}. Score of a problem: "
        "cost of the reference / cost of the plan; of a task: the geometric mean over all its "
        "problems. A problem without a legal plan scores as the trivial plan and is marked, its "
        "score in brackets. Seconds are the entry's own, of all plans together, and do not rank. "
        "The rules are in [README.md](README.md).",
    ]
    for task in known.tasks.values():
        standings = ranking(task, entries)
        parts += [f"## {task.name}", _about(task)]
        if not standings:
            parts.append("No entry yet.")
            continue
        parts += [
            table(_HEADER, [_row(s) for s in standings], left=(1, 4, 5, 6, 7, 9)),
            _by_problem(task, standings),
        ]
    return "\n\n".join(parts) + "\n"


def summary(known: TaskList, entries: Sequence[CheckedEntry]) -> str:
    """Return the rankings as one table with a line for each task."""
    rows = []
    for task in known.tasks.values():
        places = (f"{escaped(s.checked.entry.entry)} {s.score:.4f}" for s in ranking(task, entries))
        rows.append([task.name, str(len(task.problems)), ", ".join(places)])
    header = ("task", "problems", "entries and scores, best first")
    parts = ["# Leaderboard", f"`{SHORT_COMMAND}`", table(header, rows, left=(0, 2))]
    return "\n\n".join(parts) + "\n"


def _about(task: Task) -> str:
    """Return a paragraph about a task."""
    proven = sum(p.reference.status == "optimal" for p in task.problems.values())
    return (
        f"{task.title} Cost: {task.cost}. Trivial plan: {task.trivial}. {len(task.problems)} "
        f"problems, {proven} with a proven optimum."
    )


def _row(standing: Standing) -> list[str]:
    """Return the row of an entry in the ranking; see ``_HEADER``."""
    entry = standing.checked.entry
    name = escaped(entry.entry)
    total = len(standing.checked.verdicts)
    seconds = standing.seconds
    return [
        str(standing.rank),
        f"[{name}]({entry.link})" if entry.link else name,
        f"{standing.score:.4f}",
        f"{standing.reached} of {total}",
        standing.mark,
        "yes" if entry.learned else "no",
        escaped(", ".join(entry.trained_on)),
        escaped(entry.search_budget),
        "" if seconds is None else f"{seconds:,.3g}" if seconds < 1000 else f"{seconds:,.0f}",
        escaped(", ".join(entry.authors)),
    ]


def _by_problem(task: Task, standings: Sequence[Standing]) -> str:
    """Return a table of the scores by problem; scores without a legal plan are in brackets."""
    columns = [s.checked for s in standings]
    verdicts = [{v.problem.name: v for v in checked.verdicts} for checked in columns]
    rows = []
    for name, problem in task.problems.items():
        reference = problem.reference
        if reference.status == "optimal":
            proof = "optimal"
        else:
            proof = f"within {100 * (reference.cost / reference.bound - 1):.1f} %"
        cells = [_cell(by_name[name]) for by_name in verdicts]
        rows.append([name, f"{reference.cost:.6g}", proof, *cells])
    header = ["problem", "reference", "proof", *(escaped(c.entry.entry) for c in columns)]
    return table(header, rows, left=(0, 2))


def _cell(verdict: Verdict) -> str:
    """Return a score, in brackets without a legal plan."""
    score = f"{verdict.score:.4f}"
    if verdict.state == PlanState.LEGAL:
        return score
    return f"({score})" if verdict.state == PlanState.MISSING else f"(illegal: {score})"
