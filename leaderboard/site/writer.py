"""Writes the site: all of its files or none, and never over anything but a site."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from parenvs.errors import ParenvsError
from parenvs.files import locked, remove_leftovers, replacing_folder
from parenvs.leaderboard.check import CheckedEntry, ranking
from parenvs.leaderboard.site.pages import GENERATOR, entry_page, index_page, task_page
from parenvs.leaderboard.tasks import TaskList

ASSETS = ("style.css", "table.js", "theme.js")
"""Files of the folder ``assets`` beside this module, which are copied."""
TOPS = ("assets", "entries", "index.html", "tasks")
"""Names at the root of a site."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*(/[a-z0-9][a-z0-9.+-]*)*")


def write_site(
    folder: str | os.PathLike[str], known: TaskList, entries: Sequence[CheckedEntry]
) -> dict[str, str]:
    """Write the site to a folder, all of it or nothing; see ``site_files`` and ``write_folder``.

    Returns:
        The files of the site, path -> content.
    """
    files = site_files(known, entries)
    write_folder(folder, files)
    return files


def site_files(known: TaskList, entries: Sequence[CheckedEntry]) -> dict[str, str]:
    """Return all files of the site, path -> content; equal entries give equal files.

    Args:
        known: the list of tasks.
        entries: judged entries, at most one of each name in a task.

    Raises:
        ParenvsError: two entries would have the same page.
    """
    rankings = {name: ranking(task, entries) for name, task in known.tasks.items()}
    files = {"index.html": index_page(known, rankings)}
    for name, task in known.tasks.items():
        files[f"tasks/{name}.html"] = task_page(task, rankings[name])
    for name, standings in rankings.items():
        for standing in standings:
            path = f"entries/{name}/{standing.checked.entry.entry}.html"
            if path in files:
                raise ParenvsError(f"two entries would be {path}")
            files[path] = entry_page(standing, len(standings))
    folder = Path(__file__).parent / "assets"
    for asset in ASSETS:
        files[f"assets/{asset}"] = (folder / asset).read_text(encoding="utf-8")
    return files


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
    foreign = [name for name in names if name not in TOPS]
    if foreign:
        raise ParenvsError(
            f"{target}: holds {foreign[0]!r}, which is no part of a site, and would be lost; "
            "give a folder of its own"
        )
    index = target / "index.html"
    if names and not (index.is_file() and GENERATOR in index.read_text("utf-8", "replace")[:2000]):
        raise ParenvsError(f"{target}: is not a site that {GENERATOR} wrote; give another folder")
