"""Make every page and entry that is cheap and has no chance in it again, and report differences.

    python benchmarks/renew.py                       # all; the exit status is 1 where one differs
    python benchmarks/renew.py pages tables          # some kinds
    python benchmarks/renew.py entries --write       # put what is made in the place of the old

* ``pages``: README's tables and docs/results, from ``benchmarks/results``.
* ``entries``: of the leaderboard by agents that neither learn nor look at a clock.
* ``tables``: rankings of the leaderboard, every entry evaluated anew.

``make renew`` and the nightly workflow run it: nobody may write in such files.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import pages as results
from benchmarks.framework import ROOT
from parenvs.agents.learning.options import LEARNED, TRAINED
from parenvs.core.leaderboard import kind_of
from parenvs.core.plan import current
from parenvs.leaderboard.check import CheckedEntry, check_file
from parenvs.leaderboard.entry import Entry, entry_files, load_entry
from parenvs.leaderboard.ranking import by_version, ranking
from parenvs.leaderboard.submit import agent_submission
from parenvs.markdown import escaped, table

Made = Iterator[tuple[str, str]]
"""Paths below the root of the checkout, and their texts made again."""
ENTRIES = "leaderboard/submissions"
SECONDS = 60.0
"""Entries that took longer are not made again."""
STEPS = 60_000
"""Environment steps of entries that do not record them."""
OWN = ("seconds", "hardware", "commit", "settings")
"""Fields of an entry that may differ each time."""


def pages() -> Made:
    """Yield README and the pages of results."""
    for path, text in results.pages():
        yield path.relative_to(ROOT).as_posix(), text


def cheap(entry: Entry) -> bool:
    """Return whether an entry can be made again in no time, and is the same on any machine."""
    known = kind_of(entry.task).agents
    if entry.entry not in known or entry.entry in (*TRAINED, LEARNED):
        return False
    is_timed = re.search(r"\bs a problem|seconds", known[entry.entry].search_budget)
    return not is_timed and sum(entry.seconds.values()) <= SECONDS


def entries() -> Made:
    """Yield entries by agents of the suite."""
    for path in sorted((ROOT / ENTRIES).glob("*/*.json")):
        entry = load_entry(path)
        if not cheap(entry):
            continue
        settings = {"agent": entry.entry, "seed": 0, "steps": STEPS, **entry.settings}
        submission = agent_submission(entry.task, **settings, authors=entry.authors)
        with tempfile.TemporaryDirectory() as folder:
            submission.save(Path(folder) / path.name)
            text = (Path(folder) / path.name).read_text(encoding="utf-8")
        yield path.relative_to(ROOT).as_posix(), text


def summary(judged: Sequence[CheckedEntry]) -> str:
    """Return the rankings as one table with a line for each task that has entries."""
    (task_list, entries), *_ = by_version(judged)
    rows = []
    for task in task_list.tasks.values():
        scores = [f"{escaped(s.name)} {s.score:.4f}" for s in ranking(task, entries)]
        if scores:
            rows.append([task.name, len(task.counted), ", ".join(scores)])
    return table(["task", "problems", "entries and scores, best first"], rows, left=(0, 2)) + "\n"


def tables() -> Made:
    """Yield the leaderboard's README with the newest ranking, every entry judged anew."""
    path = ROOT / "leaderboard/README.md"
    judged = [check_file(entry) for entry in entry_files(ROOT / ENTRIES)]
    text = path.read_text(encoding="utf-8")
    begin, end = "<!-- begin ranking -->\n", "<!-- end ranking -->"
    head, _, rest = text.partition(begin)
    yield "leaderboard/README.md", head + begin + summary(judged) + end + rest.partition(end)[2]


PARTS: dict[str, Callable[[], Made]] = {"entries": entries, "tables": tables, "pages": pages}
"""What is made again, in this order: a later part shows what an earlier one made."""


def figures(name: str, text: str) -> list[str]:
    """Return the lines of a file that must not differ."""
    if name.startswith(ENTRIES):
        content = json.loads(text)
        key = "policy" if "policy" in content else "plans"
        parts = content.pop(key)
        parts = {name: current(part) for name, part in parts.items()} if key == "plans" else parts
        rest = [f"{field} {value}" for field, value in content.items() if field not in OWN]
        return [*rest, *(f"{key} {place}: {part}" for place, part in parts.items())]
    return [line for line in text.splitlines() if not line.startswith("Isolation of ")]


def differing(name: str, old: str, new: str) -> str:
    """Return how a file that was made again differs from the committed one; empty if equal."""
    was, now = figures(name, old), figures(name, new)
    rows = [line for line, other in zip(was, now, strict=False) if line != other]
    if len(was) == len(now) and not rows:
        return ""
    return f"{name}: {rows[0][:300] if rows else 'another number of lines'}"


def main() -> int:
    """Print what differs; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--write", action="store_true", help="write what is made")
    given = parser.parse_args()
    wrong = 0
    for part in given.parts or PARTS:
        for name, text in PARTS[part]():
            words = differing(name, (ROOT / name).read_text(encoding="utf-8"), text)
            if words:
                print(words, flush=True)
                wrong += 1
                if given.write:
                    (ROOT / name).write_text(text, encoding="utf-8")
    print(f"{wrong} files {'written' if given.write else 'differ'}")
    return int(bool(wrong) and not given.write)


if __name__ == "__main__":
    sys.exit(main())
