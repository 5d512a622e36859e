"""Writes ``results.md``, ``summary.md`` and ``contest.md``: rankings in Markdown, nothing typed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from parenvs.core.leaderboard import Reference, kind_of, kinds
from parenvs.leaderboard.check import CheckedEntry, Standing, by_version, mean_score, ranking
from parenvs.leaderboard.comparing import Marks, compare, simulated, turned
from parenvs.leaderboard.tasks import Task, TaskList
from parenvs.leaderboard.verdicts import PlanState, Verdict
from parenvs.markdown import escaped, table

COMMAND = "parenvs leaderboard table --out leaderboard/results.md"
"""Command that writes ``results.md``."""
SHORT_COMMAND = "parenvs leaderboard table --summary --out leaderboard/summary.md"
"""Command that writes ``summary.md``."""
ADDED_COMMAND = "parenvs leaderboard table --added --out leaderboard/contest.md"
"""Command that writes ``contest.md``."""
METHODS_COMMAND = "parenvs leaderboard table --methods --out leaderboard/methods.md"
"""Command that writes ``methods.md``, with another seed than the list's followed by ``--seed``."""
_LEFT = {
    "authors", "commit", "entries and scores, best first", "entry", "hardware", "learned", "marked",
    "problem", "proof", "search", "task", "trained on",
}  # fmt: skip
"""Titles of the columns that are flush left."""


def page(entries: Sequence[CheckedEntry]) -> str:
    """Return all rankings as one page of Markdown; it is the same with and without added files.

    Tasks without an entry are named alone, so that one's own stand first. Entries for older lists
    of tasks follow, ranked among themselves.
    """
    (known, todays), *older = by_version(entries)
    parts = [
        "# Leaderboard",
        f"`{COMMAND}`",
        f"List of tasks: version {known.version}, revision {known.revision}. Score of a problem: "
        "cost of the reference / cost of the plan; of a task: the geometric mean over all its "
        "problems. A problem without a legal plan scores as the trivial plan and is marked, its "
        "score in brackets. Seconds are the entry's own, of all plans together, and do not rank. "
        "The rules are in [README.md](README.md).",
    ]
    parts += _sections(known, todays)
    for old, mine in older:
        words = f"# Entries of version {old.version}", "Judged by the list that they were made for."
        parts += [*words, *_sections(old, mine)]
    return "\n\n".join(parts) + "\n"


def _sections(known: TaskList, entries: Sequence[CheckedEntry]) -> list[str]:
    """Return the sections of the tasks that have entries, and the names of the others."""
    parts, without = [], []
    for task in known.tasks.values():
        standings = ranking(task, entries)
        if standings:
            parts += [*_section(task, standings), *_isolations(task, entries)]
        else:
            without.append(f"`{task.name}`")
    return [*parts, f"No entry yet: {', '.join(without)}."] if without else parts


def methods_page(entries: Sequence[CheckedEntry], seed: int | None = None) -> str:
    """Return the rankings of methods, on the problems that a seed of the checker draws.

    Args:
        entries: judged entries, of methods and others.
        seed: of the checker (default: that of the list of tasks).
    """
    (known, entries), *_ = by_version(entries)
    command = METHODS_COMMAND if seed is None else f"{METHODS_COMMAND} --seed {seed}"
    seed = known.seed if seed is None else seed
    parts = [
        "# Methods on drawn problems",
        f"`{command}`",
        f"Every method ran in the sandbox on problems that seed {seed} drew, each in a process of "
        "its own; the judge priced the plans outside of it. References were solved for this page, "
        "with a time limit. Other seeds give other problems. The rules are in "
        "[README.md](README.md).",
    ]
    for task in (task for name, task in known.tasks.items() if name in kinds(drawn=True)):
        parts += _section(task, ranking(task, entries))
        parts += _isolations(task, entries)
        faults = [
            f"* {escaped(checked.entry.entry)}: {escaped(checked.reasons[0])}"
            for checked in entries
            if checked.task.name == task.name and checked.reasons
        ]
        parts += ["\n".join(faults)] if faults else []
    return "\n\n".join(parts) + "\n"


def _isolations(task: Task, entries: Sequence[CheckedEntry]) -> list[str]:
    """Return what kept the strangers' code of a task's entries, entries alike in one sentence."""
    kept: dict[str, list[str]] = {}
    for checked in entries:
        if checked.task.name == task.name and checked.isolation is not None:
            kept.setdefault(checked.isolation.words, []).append(escaped(checked.entry.entry))
    return [f"Isolation of {', '.join(names)}: {words}." for words, names in kept.items()]


def _section(task: Task, standings: Sequence[Standing]) -> list[str]:
    """Return title, description and tables of a task."""
    parts = [f"## {task.name}", f"{about(task)}{_beside(task)}"]
    if not standings:
        return [*parts, "No entry yet."]
    marks = compare(standings)
    own = [figure.title for figure in kind_of(task.name).figures if not figure.added]
    is_simulated = any(mark.simulated is not None for mark in marks.values())
    shown = [*own, "simulated"] if is_simulated else own
    rows = [_row(standing, shown, marks[standing.checked.entry.entry]) for standing in standings]
    parts.append(_table(rows))
    others = turned(standings)
    if is_simulated:
        parts.append(
            f"L ranks. `simulated`: the same score by the simulated length. On {len(others)} of "
            f"{len(task.problems)} problems a plan with a greater L than the reference is not "
            "slower in simulation (≈ below); the simulated length is up to "
            f"{_greatest_error(standings):.2f} times L. Entries whose order the simulation turns "
            "round are equal within the model's error."
        )
    by_tier = _by_tier(task, standings) if task.tiers else _by_problem(task, standings, others)
    return [*parts, by_tier]


def _greatest_error(standings: Sequence[Standing]) -> float:
    """Return the largest ratio of simulated length and L."""
    ratios = [
        seconds / verdict.cost
        for standing in standings
        for verdict in standing.checked.verdicts
        if (seconds := simulated(verdict)) is not None
    ]
    return max(ratios)


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table of rows, title -> cell, all of the same columns."""
    left = [column for column, title in enumerate(rows[0]) if title in _LEFT]
    return table([*rows[0]], [[*row.values()] for row in rows], left=left)


def summary(entries: Sequence[CheckedEntry]) -> str:
    """Return the rankings as one table with a line for each task that has entries."""
    rows = []
    (known, todays), *_ = by_version(entries)
    for task in (x for x in known.tasks.values() if ranking(x, todays)):
        scores = (f"{escaped(s.checked.entry.entry)} {s.score:.4f}" for s in ranking(task, todays))
        rows.append(
            {
                "task": task.name,
                "problems": str(len(task.counted)),
                "entries and scores, best first": ", ".join(scores),
            }
        )
    return "\n\n".join(["# Leaderboard", f"`{SHORT_COMMAND}`", _table(rows)]) + "\n"


def added_page(entries: Sequence[CheckedEntry]) -> str:
    """Return the problems whose files users add, with every entry that has plans of them.

    They do not count in scores, as not everybody can judge them.
    """
    parts = [
        "# Problems whose files are not ours to ship",
        f"`{ADDED_COMMAND}`",
        "These problems do not count in scores. Judged where their files had been added "
        "(`parenvs iopddl add FILE.json.gz`). Seconds and hardware are the entry's own.",
    ]
    (known, todays), *_ = by_version(entries)
    for task in known.tasks.values():
        if len(task.counted) == len(task.problems):
            continue
        parts.append(f"## {task.name}")
        standings = ranking(task, todays)
        figures = [figure for figure in kind_of(task.name).figures if figure.added]
        parts += [f"{figure.title}: {figure.words}." for figure in figures]
        rows = [row for x in standings if (row := _added_figures(x, [y.title for y in figures]))]
        parts.append(_table(rows) if rows else "No entry yet.")
        rows = [row for x in standings for y in x.checked.verdicts if (row := _added_row(x, y))]
        parts += [_table(rows)] if rows else []
    return "\n\n".join(parts) + "\n"


def _added_figures(standing: Standing, titles: Sequence[str]) -> dict[str, str]:
    """Return the row of an entry with figures of added problems, empty if it has none."""
    entry, figures = standing.checked.entry, standing.checked.figures
    if not any(figures[title] for title in titles):
        return {}
    added = [name for name, problem in standing.checked.task.problems.items() if problem.added]
    seconds = sum(entry.seconds.get(name) or 0.0 for name in added)
    return {
        "entry": escaped(entry.entry),
        **{title: figures[title] for title in titles},
        "search": escaped(entry.search_budget),
        "seconds": f"{seconds:,.0f}",
        "hardware": escaped(entry.hardware),
    }


def _added_row(standing: Standing, verdict: Verdict) -> dict[str, str]:
    """Return the row of a plan of an added problem, empty if there is none."""
    entry, problem = standing.checked.entry, verdict.problem
    if verdict.counts or verdict.state == PlanState.MISSING:
        return {}
    seconds = entry.seconds.get(problem.name)
    is_legal = verdict.state == PlanState.LEGAL
    return {
        "entry": escaped(entry.entry),
        "problem": problem.name,
        "cost": problem.words(verdict.cost) if is_legal else verdict.state.value,
        "best known before": problem.words(problem.reference.cost),
        "proof": _proof(problem.reference),
        "score": f"{verdict.score:.4f}" if is_legal else "",
        "seconds": "" if seconds is None else f"{seconds:,.3g}",
    }


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


def _beside(task: Task) -> str:
    """Return what stands beside the score, in sentences."""
    words = "".join(f" `{x.title}`: {x.words}." for x in kind_of(task.name).figures if not x.added)
    has_added = len(task.counted) < len(task.problems)
    return words + " Problems that do not count: [contest.md](contest.md)." * has_added


def _row(standing: Standing, shown: Sequence[str], marks: Marks) -> dict[str, str]:
    """Return the row of an entry in the ranking, with the figures that are ``shown``."""
    entry, seconds = standing.checked.entry, standing.seconds
    total = len(standing.checked.task.counted)
    name = escaped(entry.entry)
    figures = {**standing.checked.figures, "simulated": ""}
    if marks.simulated is not None:
        figures["simulated"] = f"{marks.simulated:.4f}"
    return {
        "rank": str(standing.rank),
        "entry": f"[{name}]({entry.link})" if entry.link else name,
        "score": f"{standing.score:.4f}",
        "at the reference": f"{standing.reached} of {total}",
        **{title: figures[title] for title in shown},
        "marked": "; ".join(filter(None, (standing.mark, escaped(marks.words)))),
        "learned": "yes" if entry.learned else "no",
        "trained on": escaped(", ".join(entry.trained_on)),
        "search": escaped(entry.search_budget),
        "seconds": ""
        if seconds is None
        else f"{seconds:,.3g}"
        if seconds < 1000
        else f"{seconds:,.0f}",
        "authors": escaped(", ".join(entry.authors)),
        "commit": escaped(entry.commit),
    }


def _by_problem(
    task: Task, standings: Sequence[Standing], others: Mapping[str, Collection[str]]
) -> str:
    """Return a table of the scores by problem; scores without a legal plan are in brackets.

    Args:
        task: the task.
        standings: its ranking.
        others: of ``turned``: their scores have a mark.
    """
    columns = [s.checked for s in standings]
    verdicts = [{v.problem.name: v for v in checked.verdicts} for checked in columns]
    rows = []
    for name, problem in task.problems.items():
        reference = problem.reference
        marked = others.get(name, ())
        cells = [
            _cell(by_name[name]) + " ≈" * (checked.entry.entry in marked)
            for checked, by_name in zip(columns, verdicts, strict=True)
        ]
        rows.append([name, f"{reference.cost:.6g}", _proof(reference), *cells])
    header = ["problem", "reference", "proof", *(escaped(c.entry.entry) for c in columns)]
    return table(header, rows, left=(0, 2))


def _by_tier(task: Task, standings: Sequence[Standing]) -> str:
    """Return a table of the scores by tier; with a plan missing in the tier, in brackets."""
    columns = [s.checked for s in standings]
    rows = []
    for tier, problems in task.tiers.items():
        names = {problem.name for problem in problems}
        proven = sum(problem.reference.proven for problem in problems)
        gaps = [p.reference.cost / p.reference.bound - 1 for p in problems]
        cells = []
        for checked in columns:
            own = [v for v in checked.verdicts if v.problem.name in names]
            score = f"{mean_score(own, kind_of(task.name).mean):.4f}"
            whole = all(v.state == PlanState.LEGAL for v in own)
            cells.append(score if whole else f"({score})")
        count = str(len(problems))
        within = f"{100 * sum(gaps) / len(gaps):.1f} %, {100 * max(gaps):.1f} %"
        rows.append([tier, count, str(proven), within, *cells])
    header = (
        "tier", "problems", "proven", "reference over bound: mean, most",
        *(escaped(checked.entry.entry) for checked in columns),
    )  # fmt: skip
    return table(header, rows)


def _proof(reference: Reference) -> str:
    """Return in words what is proven of a reference; a gap is never so small that it reads 0."""
    gap = 100 * (reference.cost / reference.bound - 1)
    return "optimal" if reference.proven else f"within {gap:{'.1f' if gap >= 0.05 else '.1g'}} %"


def _cell(verdict: Verdict) -> str:
    """Return a score, in brackets without a legal plan."""
    score = f"{verdict.score:.4f}"
    if verdict.state == PlanState.LEGAL:
        return score
    return f"({score})" if verdict.state == PlanState.MISSING else f"(illegal: {score})"
