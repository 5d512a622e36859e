"""Entries of the leaderboard: one JSON file with who, how, and one plan for each problem."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parenvs.errors import did_you_mean, shown
from parenvs.files import write_text
from parenvs.leaderboard.reading import EntryError, cleaned, read_json
from parenvs.leaderboard.tasks import Task, TaskList, tasks

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1
"""Version of the entry files."""
TRAINED_ON = {
    "generated": "problems drawn by parenvs.datasets.generators, none of a shipped set",
    "plan-validation": "the shipped validation set",
    "the problem itself": "each plan's own problem: a search that learns",
}
"""What ``trained_on`` may name; anything else is told after ``"other: "``."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
_LINK = re.compile(r"https?://[A-Za-z0-9./?#&=%_~:@+,;!*-]{1,300}")
_MOST_SEED = 2**63 - 1
_MOST_SECONDS = 1e9


@dataclass(frozen=True)
class Entry:
    """A submission whose fields are sound; its plans have yet to be judged.

    Attributes:
        task: name of the task.
        entry: name of the entry, unique in the task; the file is called so.
        authors: who made it.
        link: where it is described, or an empty text.
        method: what it does, in a sentence or two.
        learned: whether anything in it was trained.
        trained_on: on what, keys of ``TRAINED_ON`` or ``"other: ..."``; empty if not learned.
        seeds: seeds of everything random.
        search_budget: what was spent on a problem, in words.
        hardware: what it ran on.
        plans: name of a problem -> plan file's content; a problem may be missing.
        seconds: name of a problem -> wall seconds that its plan took; shown, never ranked.
        tasks: version of the list of tasks that it is for.
    """

    task: str
    entry: str
    authors: tuple[str, ...]
    method: str
    plans: Mapping[str, Any]
    learned: bool = False
    trained_on: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    search_budget: str = "none"
    hardware: str = "unknown"
    link: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    tasks: int = field(default_factory=lambda: tasks().version)

    def to_json(self) -> dict[str, Any]:
        """The entry as an object of JSON types, schema version first."""
        return {
            "schema": SCHEMA,
            "tasks": self.tasks,
            "task": self.task,
            "entry": self.entry,
            "authors": list(self.authors),
            "link": self.link,
            "method": self.method,
            "learned": self.learned,
            "trained_on": list(self.trained_on),
            "seeds": list(self.seeds),
            "search_budget": self.search_budget,
            "hardware": self.hardware,
            "seconds": dict(self.seconds),
            "plans": dict(self.plans),
        }

    @classmethod
    def from_json(cls, content: Any, where: str = "entry", known: TaskList | None = None) -> Self:
        """Check an object of JSON types and make an entry of it; plans are left to ``check``.

        Raises:
            EntryError: with every reason, each naming the field.
        """
        if not isinstance(content, dict):
            raise EntryError(where, ["expected one JSON object"])
        checks = _Checks(content)
        task = checks.head(tasks() if known is None else known)
        found = checks.fields()
        if task is not None:
            checks.problems(task)
        if checks.reasons:
            raise EntryError(where, checks.reasons)
        return cls(**found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the entry as a JSON file: a plan a line, so that changes can be read.

        Raises:
            EntryError: a field is not sound; nothing is written.
        """
        content = self.to_json()
        self.from_json(content, cleaned(os.fspath(path)))
        plans = content.pop("plans")
        text = json.dumps(content, indent=1).removesuffix("\n}")
        lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(plan)}" for k, plan in plans.items())
        write_text(path, f'{text},\n "plans": {{\n{lines}\n }}\n}}\n')


def load_entry(path: str | os.PathLike[str]) -> Entry:
    """Read an entry that nobody vouches for.

    Raises:
        EntryError: the file cannot be read, or fields are not sound; says so of each.
    """
    return Entry.from_json(read_json(path), cleaned(os.fspath(path)))


def entry_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The entries under a folder, ``<task>/<entry>.json``, sorted."""
    return sorted(Path(folder).glob("*/*.json"))


_KEYS = (
    "schema", "tasks", "task", "entry", "authors", "link", "method", "learned", "trained_on",
    "seeds", "search_budget", "hardware", "seconds", "plans",
)  # fmt: skip


class _Checks:
    """The checks of one submission, which go on after a reason is found."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.reasons: list[str] = []

    def refuse(self, key: str, words: str) -> None:
        self.reasons.append(f"field {key!r} {words}")

    def head(self, known: TaskList) -> Task | None:
        """Keys, versions and the task; None if it is not known."""
        content = self.content
        for key in _KEYS:
            if key not in content:
                self.refuse(key, "is missing")
        unknown = [key for key in content if key not in _KEYS]
        for key in unknown[:3]:
            near = did_you_mean(key[:80], _KEYS)
            self.reasons.append(f"unknown field {shown(key)}{near}")
        if len(unknown) > 3:
            self.reasons.append(f"and {len(unknown) - 3:,} more unknown fields")
        for key, version in (("schema", SCHEMA), ("tasks", known.version)):
            value = content.get(key)
            if key in content and (type(value) is not int or value != version):
                self.refuse(key, f"is {shown(value)}; this version of parenvs takes {version}")
        name = content.get("task")
        if isinstance(name, str) and name in known.tasks:
            return known.tasks[name]
        if "task" in content:
            self.refuse("task", f"is {shown(name)}; known: {', '.join(known.tasks)}")
        return None

    def fields(self) -> dict[str, Any]:
        """The fields as arguments of ``Entry``, as far as they are sound."""
        name = self.content.get("entry", "x")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self.refuse(
                "entry",
                "must be up to 40 lower-case letters, digits, dots and hyphens, a letter or digit "
                f"first, not {shown(name)}",
            )
        link = self.content.get("link", "")
        if link != "" and not (isinstance(link, str) and _LINK.fullmatch(link)):
            self.refuse("link", f"must be empty or a link with http(s)://, not {shown(link)}")
        learned = self.content.get("learned", False)
        if not isinstance(learned, bool):
            self.refuse("learned", f"must be true or false, not {shown(learned)}")
        sources = self._texts("trained_on", 10, 200)
        for source in sources:
            if source not in TRAINED_ON and not re.match("other: .", source):
                known = ", ".join(map(repr, TRAINED_ON))
                self.refuse("trained_on", f"holds {shown(source)}; known: {known}, 'other: ...'")
        if isinstance(learned, bool) and learned != bool(sources) and "trained_on" in self.content:
            wanted = "name something" if learned else "be empty"
            self.refuse("trained_on", f"must {wanted}, as 'learned' is {str(learned).lower()}")
        authors = self._texts("authors", 20, 100)
        if not authors and self.content.get("authors") == []:
            self.refuse("authors", "must name somebody")
        seeds = self.content.get("seeds", [])
        whole = isinstance(seeds, list) and all(
            type(seed) is int and 0 <= seed <= _MOST_SEED for seed in seeds
        )
        if not whole or len(seeds) > 1000:
            self.refuse("seeds", "must be a list of at most 1,000 whole numbers from 0")
        return {
            **{key: self.content.get(key) for key in ("task", "tasks", "entry", "link", "learned")},
            "authors": tuple(authors),
            "trained_on": tuple(sources),
            "seeds": tuple(seeds) if whole else (),
            "method": self._text("method", 1000),
            "search_budget": self._text("search_budget", 300),
            "hardware": self._text("hardware", 200),
            "seconds": self.content.get("seconds"),
            "plans": self.content.get("plans"),
        }

    def problems(self, task: Task) -> None:
        """Plans and seconds are of problems of the task; plans themselves are not looked at."""
        for key in ("plans", "seconds"):
            value = self.content.get(key)
            if not isinstance(value, dict):
                if key in self.content:
                    self.refuse(key, f"must be an object of problems, not {shown(value)}")
                continue
            unknown = [name for name in value if name not in task.problems]
            for name in unknown[:3]:
                near = did_you_mean(name[:80], task.problems)
                self.refuse(key, f"names {shown(name)}, no problem of {task.name}{near}")
            if len(unknown) > 3:
                self.refuse(key, f"names {len(unknown) - 3:,} more that are no problems")
        plans, seconds = self.content.get("plans"), self.content.get("seconds")
        if isinstance(plans, dict) and not plans:
            self.refuse("plans", "is empty; give a plan of one problem at least")
        if isinstance(seconds, dict):
            for name, value in seconds.items():
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if name in task.problems and not (number and 0 <= value <= _MOST_SECONDS):
                    self.refuse(f"seconds.{name}", f"must be seconds from 0, not {shown(value)}")

    def _text(self, key: str, most: int) -> str:
        value = self.content.get(key, "x")
        if _is_text(value, most):
            return str(value)
        what = shown(value) if not isinstance(value, str) else f"{len(value):,} characters"
        self.refuse(key, f"must be 1 to {most:,} printable characters on one line, not {what}")
        return ""

    def _texts(self, key: str, most: int, longest: int) -> list[str]:
        value = self.content.get(key, ["x"] if key == "authors" else [])
        if (
            isinstance(value, list)
            and len(value) <= most
            and all(_is_text(x, longest) for x in value)
        ):
            return value
        self.refuse(
            key,
            f"must be a list of at most {most} texts of 1 to {longest} printable characters, "
            f"not {shown(value)}",
        )
        return []


def _is_text(value: Any, most: int) -> bool:
    """Whether a value is a text that a page can show; control and bidi characters are not."""
    return (
        isinstance(value, str)
        and 0 < len(value.strip()) <= len(value) <= most
        and (value.isprintable())
    )
