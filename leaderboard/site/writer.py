"""Writes the site: all of its files or none, and never over anything but a site."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from parenvs.errors import ParenvsError
from parenvs.files import locked, remove_leftovers, replacing_folder
from parenvs.leaderboard.check import CheckedEntry, Standing, by_version, ranking
from parenvs.leaderboard.site.pages import GENERATOR, entry_page, index_page, plan_path, task_page
from parenvs.leaderboard.tasks import TaskList
from parenvs.leaderboard.verdicts import PlanState

ASSETS = ("style.css", "table.js", "theme.js")
"""Files of the folder ``assets`` beside this module, which are copied."""
TOPS = re.compile(r"assets|entries|index\.html|plans|tasks|version-\d+")
"""Names at the root of a site; the site of an older list is in a folder of its version."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*(/[A-Za-z0-9][A-Za-z0-9.+-]*)*")


def write_site(
    folder: str | os.PathLike[str], entries: Sequence[CheckedEntry], docs: str = ""
) -> dict[str, str]:
    """Write the site to a folder, all of it or nothing; see ``site_files`` and ``write_folder``.

    Entries for older lists of tasks get a site of their own within it, for each version.

    Returns:
        The files of the site, path -> content.
    """
    (known, todays), *older = by_version(entries)
    files = site_files(known, todays, docs, [old.version for old, _ in older])
    for old, mine in older:
        pages = site_files(old, mine)
        files |= {f"version-{old.version}/{path}": text for path, text in pages.items()}
    write_folder(folder, files)
    return files


def site_files(
    known: TaskList, entries: Sequence[CheckedEntry], docs: str = "", older: Sequence[int] = ()
) -> dict[str, str]:
    """Return all files of the site, path -> content; equal entries give equal files.

    Args:
        known: the list of tasks.
        entries: judged entries, at most one of each name in a task.
        docs: address of the documentation, seen from the site; empty: no page links there.
        older: versions of older lists that have a site within it.

    Raises:
        ParenvsError: two entries would have the same page.
    """
    rankings = {name: ranking(task, entries) for name, task in known.tasks.items()}
    files = {"index.html": index_page(known, rankings, docs, older)}
    for name, task in known.tasks.items():
        files[f"tasks/{name}.html"] = task_page(task, rankings[name], docs)
    for name, standings in rankings.items():
        for standing in standings:
            path = f"entries/{name}/{standing.checked.entry.entry}.html"
            if path in files:
                raise ParenvsError(f"two entries would be {path}")
            files[path] = entry_page(standing, len(standings))
            files |= _plan_files(standing)
    folder = Path(__file__).parent / "assets"
    for asset in ASSETS:
        files[f"assets/{asset}"] = (folder / asset).read_text(encoding="utf-8")
    return files


def _plan_files(standing: Standing) -> dict[str, str]:
    """Return what an entry handed in: a file for each legal plan, or the entry as a whole."""
    checked, entry = standing.checked, standing.checked.entry
    if entry.content != "plans":
        return {plan_path(entry): json.dumps(entry.to_json(), indent=1) + "\n"}
    return {
        plan_path(entry, verdict.problem.name): json.dumps(entry.plans[verdict.problem.name]) + "\n"
        for verdict in checked.verdicts
        if verdict.state == PlanState.LEGAL
    }


def write_folder(folder: str | os.PathLike[str], files: Mapping[str, str]) -> None:
    """Write files to a folder of their own, and replace what the folder held as a whole.

    The files are written beside the folder first, so that an interruption leaves the old one.

    Args:
        folder: the folder; missing parents are made.
        files: path within the folder -> content.

    Raises:
        ParenvsError: the folder holds anything but a site, another process is writing it, or a
            path leads out of it.
    """
    target = Path(folder).resolve()
    for name in files:
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
