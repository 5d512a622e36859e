"""Make every page and entry that is cheap and has no chance in it again, and tell what differs.

    python benchmarks/renew.py                       # all; the exit status is 1 where one differs
    python benchmarks/renew.py pages copies          # some kinds
    python benchmarks/renew.py entries --write       # put what is made in the place of the old

* ``pages``: of ``benchmarks/results``, of the rows beside them.
* ``copies``: README and pages of the documentation that show such tables.
* ``entries``: of the leaderboard by our agents that neither learn nor look at a clock.
* ``data``: Croissant metadata and datasheet of the data that ships.
* ``tables``: rankings of the leaderboard, every entry judged anew.

``make renew`` and the nightly workflow run it: nobody may write in such files.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.framework import MADE, RESULTS, ROOT, pages, progress, remade
from benchmarks.readme import filled
from benchmarks.readme import pages as shown
from parenvs.agents.names import GENERAL, TRAINED
from parenvs.bench.hybrid.page import hybrid
from parenvs.core.plan import current
from parenvs.datasets import croissant
from parenvs.leaderboard.baselines import agents
from parenvs.leaderboard.entry import Entry, holds, load_entry
from parenvs.leaderboard.submit import agent_submission
from parenvs.leaderboard.tasks import tasks

Made = Iterator[tuple[str, str]]
"""Paths below the root of the checkout, and their texts made again."""
EARLIER = ("mutants", "same")
"""Pages about sources that have changed since."""
OTHERS = ("transformers",)
"""Packages that scripts need and the suite does not: their pages are left out where one lacks."""
ENTRIES = "leaderboard/submissions"
SECONDS = 60.0
"""Entries that took longer are not made again."""
STEPS = 60_000
"""Environment steps of entries that do not record them."""
OWN = ("seconds", "hardware", "commit", "settings")
"""Fields of an entry in which it may be another one each time."""


def results() -> Made:
    """Pages of ``benchmarks/results``: of its scripts, and of ``parenvs bench hybrid``."""
    for name in (name for name in pages() if name not in EARLIER):
        try:
            yield f"benchmarks/results/{name}.md", remade(name)
        except ModuleNotFoundError as error:
            if error.name not in OTHERS:
                raise
            progress(f"{name}.md: left out, {error}")
    lines = (RESULTS / "hybrid.md").read_text(encoding="utf-8").splitlines()
    data = hybrid.run(RESULTS, {}, render=True)
    made = hybrid.shown(data, RESULTS, {}, lines[2].strip("`"), lines[MADE])
    yield "benchmarks/results/hybrid.md", made["hybrid"]


def copies() -> Made:
    """Pages that show tables of others."""
    for page in shown():
        yield page.relative_to(ROOT).as_posix(), filled(page)


def cheap(entry: Entry) -> bool:
    """Whether an entry can be made again in no time, and is then the same on any machine."""
    known = agents(tasks().task(entry.task))
    if entry.entry not in known or entry.entry in (*TRAINED, *GENERAL):
        return False
    is_timed = re.search(r"\bs a problem|seconds", known[entry.entry].search_budget)
    return not is_timed and sum(entry.seconds.values()) <= SECONDS


def entries(only: str = "*/*.json") -> Made:
    """Entries by agents of ours."""
    for path in sorted((ROOT / ENTRIES).glob(only)):
        entry = load_entry(path)
        if not cheap(entry):
            continue
        settings = {"agent": entry.entry, "seed": 0, "steps": STEPS, **entry.settings}
        made = agent_submission(entry.task, **settings, authors=entry.authors)
        with tempfile.TemporaryDirectory() as folder:
            made.save(Path(folder) / path.name)
            text = (Path(folder) / path.name).read_text(encoding="utf-8")
        yield path.relative_to(ROOT).as_posix(), text


def tables() -> Made:
    """Rankings of the leaderboard."""
    from parenvs.cli.leaderboard import accepted
    from parenvs.leaderboard.entry import entry_files
    from parenvs.leaderboard.results import page, summary

    judged, _ = accepted(entry_files(ROOT / ENTRIES), unsafe=True)
    for name, make in (("results", page), ("summary", summary)):
        yield f"leaderboard/{name}.md", make(judged)


def data() -> Made:
    """Metadata and datasheet of the data."""
    for path, text in croissant.made().items():
        yield path.relative_to(ROOT).as_posix(), text


PARTS: dict[str, Callable[[], Made]] = {
    "pages": results,
    "copies": copies,
    "entries": entries,
    "data": data,
    "tables": tables,
}
"""What is made again, in this order: a later part shows what an earlier one made."""


def figures(name: str, text: str) -> list[str]:
    """The lines of a file in which nothing may be another one."""
    if name.startswith(ENTRIES):
        content = json.loads(text)
        key = holds(content["task"])
        parts = content.pop(key)
        parts = {name: current(part) for name, part in parts.items()} if key == "plans" else parts
        rest = [f"{field} {value}" for field, value in content.items() if field not in OWN]
        return [*rest, *(f"{key} {place}: {part}" for place, part in parts.items())]
    lines = [line for line in text.splitlines() if not line.startswith("Isolation of ")]
    is_result = name.startswith("benchmarks/results/")
    return [line for k, line in enumerate(lines) if not (is_result and k == MADE)]


def differing(name: str, old: str, new: str) -> str:
    """Say how a file that was made again differs from the committed one; empty if it does not."""
    was, now = figures(name, old), figures(name, new)
    rows = [line for line, other in zip(was, now, strict=False) if line != other]
    if len(was) == len(now) and not rows:
        return ""
    return f"{name}: {rows[0][:300] if rows else 'another number of lines'}"


def told(made: Made, root: Path = ROOT, write: bool = False) -> Iterator[str]:
    """Yield what is said of each file that was made again and differs from that below ``root``.

    Args:
        made: the files.
        root: of the checkout.
        write: whether to put what differs in the place of the old.
    """
    for name, text in made:
        words = differing(name, (root / name).read_text(encoding="utf-8"), text)
        if write and words:
            (root / name).write_text(text, encoding="utf-8")
        if words:
            yield words


def main() -> int:
    """Print what differs; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--write", action="store_true", help="write what is made")
    given = parser.parse_args()
    for part in given.parts:
        if part not in PARTS:
            parser.error(f"unknown part {part!r}; known: {', '.join(PARTS)}")
    wrong = 0
    for part in given.parts or PARTS:
        for words in told(PARTS[part](), write=given.write):
            print(words, flush=True)
            wrong += 1
    print(f"{wrong} files {'written' if given.write else 'differ'}")
    return int(bool(wrong) and not given.write)


if __name__ == "__main__":
    sys.exit(main())
