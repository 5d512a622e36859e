"""The pages of the site: data for the folder ``templates``, which has all of their HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from parenvs.core.leaderboard import kind_of
from parenvs.core.task import late
from parenvs.leaderboard.check import Standing
from parenvs.leaderboard.comparing import compare, turned
from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.results import about
from parenvs.leaderboard.tasks import Task, TaskList
from parenvs.leaderboard.verdicts import Verdict
from parenvs.view.web import PlanPage

GENERATOR = "parenvs leaderboard site"
"""Command, and mark by which ``write_folder`` knows a folder that it may replace."""
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.tests["web"] = re.compile(r"https?://[^\s\"'<>\\]+").fullmatch
_TEMPLATES.globals["generator"] = GENERATOR


def plan_path(entry: Entry, problem: str = "") -> str:
    """Return where the site has the file of an entry's plan of a problem, or of all it holds."""
    return f"plans/{entry.task}/{entry.entry}/{problem or 'entry'}.json"


_TEMPLATES.globals["plan_path"] = plan_path


def index_page(
    known: TaskList,
    rankings: Mapping[str, Sequence[Standing]],
    docs: str = "",
    older: Sequence[int] = (),
) -> str:
    """Make the front page: a table of entries by tasks, how to enter, all rankings with filters.

    Args:
        known: the list of tasks.
        rankings: name of a task -> its standings.
        docs: address of the documentation; empty: the page does not link there.
        older: versions of older lists that have a site within this one.
    """
    by_entry: dict[str, dict[str, Standing]] = {}
    for name, standings in rankings.items():
        for standing in standings:
            by_entry.setdefault(standing.checked.entry.entry, {})[name] = standing
    return _page(
        "index.html",
        "",
        known=known,
        docs=docs,
        older=older,
        # Those of many tasks first: they can be compared across the table.
        by_entry=dict(sorted(by_entry.items(), key=lambda pair: (-len(pair[1]), pair[0]))),
        problems=sum(len(task.counted) for task in known.tasks.values()),
        entries=sum(map(len, rankings.values())),
        sections=[_section(task, rankings[name]) for name, task in known.tasks.items()],
    )


def task_page(task: Task, standings: Sequence[Standing], docs: str = "") -> str:
    """Make the page of a task: ranking, scores by problem, problems with their references."""
    section = _section(task, standings)
    return _page("task.html", "../", section=section, turned=turned(standings), docs=docs)


def entry_page(standing: Standing, entrants: int) -> str:
    """Make the page of an entry: its authors and method, the verdicts on its plans, the plans.

    Args:
        standing: the entry's place in its task.
        entrants: number of entries in the task.
    """
    plans = [(verdict, _plan(verdict)) for verdict in standing.checked.verdicts]
    return _page("entry.html", "../../", standing=standing, entrants=entrants, plans=plans)


def _page(template: str, root: str, **data: Any) -> str:
    """Write a page; ``root`` leads from its folder to that of the site."""
    return _TEMPLATES.get_template(template).render(root=root, **data)


def _section(task: Task, standings: Sequence[Standing]) -> dict[str, Any]:
    """Return what is shown of a task."""
    return {
        "task": task,
        "about": about(task),
        "figures": kind_of(task.name).figures,
        "docs": kind_of(task.name).docs,
        "standings": standings,
        "marks": compare(standings),
    }


def _plan(verdict: Verdict) -> PlanPage | None:
    """Return what is shown of a plan that was judged; see ``TaskProblem.page``."""
    problem = verdict.problem
    if problem.page is None or verdict.report is None:
        return None
    shown: PlanPage = late(problem.page)(problem.name, verdict.report)
    return shown
