"""The leaderboard's web pages: a static site of judged entries, in one folder, without network.

``templates`` has all HTML. Every plan is shown as text; a few of each task's best entry also as
pictures, as drawing all of them would take an hour and 200 MB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from parenvs import view
from parenvs.core.leaderboard import kind_of
from parenvs.core.registry import TASKS
from parenvs.errors import ParenvsError
from parenvs.files import StrPath, locked, remove_leftovers, replacing_folder
from parenvs.leaderboard.check import CheckedEntry, PlanState
from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.ranking import Standing, about, by_version, compare, ranking, unconfirmed
from parenvs.leaderboard.tasks import Task as Board
from parenvs.leaderboard.tasks import TaskList

GENERATOR = "parenvs leaderboard site"
"""Command, and mark by which ``write_folder`` knows a folder that it may replace."""
TOPS = re.compile(r"assets|entries|index\.html|plans|tasks|version-\d+")
"""Names at the root of a site; the site of an older list is in a folder of its version."""
PICTURES = 3
"""Plans of each task's best entry that are drawn."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*(/[A-Za-z0-9][A-Za-z0-9.+-]*)*")
_HERE = Path(__file__).parent
_TEMPLATES = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.tests["web"] = re.compile(r"https?://[^\s\"'<>\\]+").fullmatch


def plan_path(entry: Entry, problem: str = "", suffix: str = "json") -> str:
    """Return where the site has the file of an entry's plan of a problem, or of all it holds."""
    return f"plans/{entry.task}/{entry.entry}/{problem or 'entry'}.{suffix}"


_TEMPLATES.globals |= {"generator": GENERATOR, "plan_path": plan_path}


def write_site(folder: StrPath, entries: Sequence[CheckedEntry], docs: str = "") -> dict[str, str]:
    """Write the site to a folder, all of it or nothing; see ``site_files`` and ``write_folder``.

    Entries for older lists of tasks get a site of their own within it, for each version.
    """
    (newest, current), *older = by_version(entries)
    files = site_files(newest, current, docs, [old.version for old, _ in older])
    for old, group in older:
        pages = site_files(old, group)
        files |= {f"version-{old.version}/{path}": text for path, text in pages.items()}
    write_folder(folder, files)
    return files


def site_files(
    task_list: TaskList, entries: Sequence[CheckedEntry], docs: str = "", older: Sequence[int] = ()
) -> dict[str, str]:
    """Return all files of the site, path -> content; equal entries give equal files.

    Args:
        task_list: the list of tasks.
        entries: judged entries, at most one of each name in a task.
        docs: address of the documentation, seen from the site; empty: no page links there.
        older: versions of older lists that have a site within it.

    Raises:
        ParenvsError: two entries would have the same page.
    """
    rankings = {name: ranking(task, entries) for name, task in task_list.tasks.items()}
    files = {"index.html": _index(task_list, rankings, docs, older)}
    for name, task in task_list.tasks.items():
        standings = rankings[name]
        section, others = _section(task, standings), unconfirmed(standings)
        files[f"tasks/{name}.html"] = _page("task.html", "../", section=section, turned=others)
        for rank, standing in enumerate(standings):
            path = f"entries/{name}/{standing.name}.html"
            if path in files:
                raise ParenvsError(f"two entries would be {path}")
            pictures = {} if rank else _pictures(standing)
            plans = []
            for verdict in standing.checked.verdicts:
                problem, report = verdict.problem, verdict.report
                texts = [] if report is None else list(map(view.text, problem.views(report)))
                drawn = [x for x in pictures if x.endswith(f"/{problem.name}.svg")]
                plans.append((verdict, texts, drawn))
            files[path] = _page(
                "entry.html", "../../", standing=standing, entrants=len(standings), plans=plans
            )
            files |= {**_plan_files(standing), **pictures}
    for asset in sorted((_HERE / "assets").iterdir()):
        files[f"assets/{asset.name}"] = asset.read_text(encoding="utf-8")
    return files


def _index(
    task_list: TaskList, rankings: Mapping[str, Sequence[Standing]], docs: str, older: Sequence[int]
) -> str:
    by_entry: dict[str, dict[str, Standing]] = {}
    for name, standings in rankings.items():
        for standing in standings:
            by_entry.setdefault(standing.name, {})[name] = standing
    return _page(
        "index.html",
        "",
        known=task_list,
        docs=docs,
        older=older,
        # Those of many tasks first: they can be compared across the table.
        by_entry=dict(sorted(by_entry.items(), key=lambda pair: (-len(pair[1]), pair[0]))),
        problems=sum(len(task.counted) for task in task_list.tasks.values()),
        entries=sum(map(len, rankings.values())),
        sections=[_section(task, rankings[name]) for name, task in task_list.tasks.items()],
    )


def _page(template: str, root: str, **data: Any) -> str:
    return _TEMPLATES.get_template(template).render(root=root, **data)


def _section(task: Board, standings: Sequence[Standing]) -> dict[str, Any]:
    return {
        "task": task,
        "about": about(task),
        "figures": kind_of(task.name).figures,
        "docs": kind_of(task.name).docs,
        "standings": standings,
        "marks": compare(standings),
    }


def _pictures(standing: Standing) -> dict[str, str]:
    drawn = [
        verdict
        for verdict in standing.checked.verdicts
        if verdict.state == PlanState.LEGAL and TASKS[verdict.problem.kind].views().figure
    ]
    return {
        plan_path(standing.checked.entry, verdict.problem.name, "svg"): view.svg(
            verdict.problem.views(verdict.report)[0]
        )
        for verdict in drawn[:PICTURES]
    }


def _plan_files(standing: Standing) -> dict[str, str]:
    checked, entry = standing.checked, standing.checked.entry
    if entry.policy is not None:
        return {plan_path(entry): json.dumps(entry.to_json(), indent=1) + "\n"}
    return {
        plan_path(entry, verdict.problem.name): json.dumps(entry.plans[verdict.problem.name]) + "\n"
        for verdict in checked.verdicts
        if verdict.state == PlanState.LEGAL
    }


def write_folder(folder: StrPath, files: Mapping[str, str]) -> None:
    """Write files to a folder of their own, and replace what the folder held as a whole.

    The files are written beside the folder first, so that an interruption leaves the old one.

    Raises:
        ParenvsError: the folder holds anything but a site, another process is writing it, or a
            path leads out of it.
    """
    target = Path(folder).resolve()
    for name in files:
        # Names come from entries of strangers and become paths.
        if not _NAME.fullmatch(name) or len(name) > 200:
            raise ParenvsError(f"{name[:80]!r} is no name for a page")
    with locked(target, beside=True):
        # A kill may have left the site under another name; what is checked is what is replaced.
        if target.parent.is_dir():
            remove_leftovers(target.parent)
        _check_replaceable(target)
        with replacing_folder(target) as new:
            for name, text in files.items():
                path = new / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode("utf-8"))


def _check_replaceable(target: Path) -> None:
    """Raise ``ParenvsError`` if ``target`` exists and is not a folder with a site, or empty."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ParenvsError(f"{target}: is a file; give a folder")
    names = sorted(path.name for path in target.iterdir())
    foreign = [name for name in names if not TOPS.fullmatch(name)]
    if foreign:
        raise ParenvsError(
            f"{target}: holds {foreign[0]!r}, which is no part of a site, and would be lost; "
            "give a folder of its own"
        )
    index = target / "index.html"
    if names and not (index.is_file() and GENERATOR in index.read_text("utf-8", "replace")[:2000]):
        raise ParenvsError(f"{target}: is not a site that {GENERATOR} wrote; give another folder")
