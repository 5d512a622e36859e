"""The leaderboard as a static site: one folder, no network, made of judged entries alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from parenvs.errors import ParenvsError
from parenvs.leaderboard.check import Checked
from parenvs.leaderboard.score import ranking
from parenvs.leaderboard.site_entry import entry_page
from parenvs.leaderboard.site_folder import write_folder
from parenvs.leaderboard.site_index import index_page, task_page
from parenvs.leaderboard.tasks import TaskList

ASSETS = ("style.css", "table.js", "theme.js")


def site(known: TaskList, entries: Sequence[Checked]) -> dict[str, str]:
    """All files of the site, path -> content; equal entries give equal files.

    Args:
        known: the list of tasks.
        entries: judged entries; at most one of a name in a task.

    Raises:
        ParenvsError: two entries have one page.
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


def write_site(
    folder: str | os.PathLike[str], known: TaskList, entries: Sequence[Checked]
) -> dict[str, str]:
    """Write the site, all of it or nothing; see ``write_folder``.

    Returns:
        Its files, path -> content.
    """
    files = site(known, entries)
    write_folder(folder, files)
    return files
