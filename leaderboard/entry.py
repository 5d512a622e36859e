"""``Entry``: authors, method, and a plan for each problem of a task, in one JSON file."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parenvs.core.leaderboard import PolicyError, kind_of, kinds
from parenvs.errors import did_you_mean, shown
from parenvs.files import write_text
from parenvs.graph.checks import UNREADABLE, read_arrays
from parenvs.leaderboard.names import author_fault, entry_fault, is_seen
from parenvs.leaderboard.reading import MAX_BYTES, EntryError, cleaned, read_json
from parenvs.leaderboard.tasks import Task, TaskList, tasks
from parenvs.machine import NOT_RECORDED

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1
"""Version of the entry files."""
TRAINED_ON = {
    "generated": "problems drawn by parenvs.datasets.pipeline.problems, none of a shipped set",
    "plan-validation": "the shipped validation set",
    "shipped graphs": "shipped graphs of the families that splits.json gives for training",
    "the problem itself": "each plan's own problem: a search that learns",
}
"""Words that ``trained_on`` may hold -> their meaning; any others start with ``"other: "``."""
_LINK = re.compile(r"https?://[A-Za-z0-9./?#&=%_~:@+,;!*-]{1,300}")
_MAX_SEED = 2**63 - 1
_MAX_SECONDS = 1e9


@dataclass(frozen=True)
class Entry:
    """A submission with valid fields; its plans have yet to be judged.

    Attributes:
        task: name of the task.
        entry: name of the entry, unique in the task; also the name of its file.
        authors: names of the authors.
        link: address of a description, or an empty text.
        method: what the planner does, in a sentence or two.
        learned: whether any part of the planner was trained.
        trained_on: what it was trained on, keys of ``TRAINED_ON`` or ``"other: ..."``; empty if it
            did not learn.
        seeds: seeds of all random numbers.
        search_budget: time or steps that were spent on each problem, in words.
        hardware: machine that the planner ran on.
        plans: name of a problem -> content of its plan file; a problem may be missing. Empty in
            entries of policies and methods.
        seconds: name of a problem -> wall seconds that its plan took; shown, never ranked.
        tasks: version of the list of tasks that the entry is for.
        policy: of a task that takes policies, see ``Policies``.
        script: of a task whose problems are drawn, the text of the method.
        commit: of the code of this package that made it; ``"not recorded"`` of older entries.
        settings: name -> number or text, what it was made with; empty of older entries.
    """

    task: str
    entry: str
    authors: tuple[str, ...]
    method: str
    plans: Mapping[str, Any] = field(default_factory=dict)
    learned: bool = False
    trained_on: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    search_budget: str = "none"
    hardware: str = "unknown"
    link: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    tasks: int = field(default_factory=lambda: tasks().version)
    policy: Mapping[str, Any] | None = None
    script: str = ""
    commit: str = NOT_RECORDED
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """What the entry holds: ``"plans"``, ``"policy"`` or ``"script"``."""
        return holds(self.task)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as an object of JSON types, schema version first."""
        content = {
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
            "commit": self.commit,
            "settings": dict(self.settings),
        }
        if self.content == "script":
            return {**content, "script": f"{self.entry}.py"}
        if self.content == "policy":
            return {**content, "policy": self.policy}
        return {**content, "seconds": dict(self.seconds), "plans": dict(self.plans)}

    @classmethod
    def from_json(cls, content: Any, where: str = "entry", known: TaskList | None = None) -> Self:
        """Check an object of JSON types and make an entry of it; ``check`` judges the plans.

        Args:
            content: the object, which may be anything.
            where: name of the file, for error messages.
            known: the list of tasks (default: that of the entry's version).

        Raises:
            EntryError: the object is no entry; the error has every reason.
        """
        if not isinstance(content, dict):
            raise EntryError(where, ["expected one JSON object"])
        checks = _FieldChecks(content)
        task = checks.head(_list_of(content.get("tasks")) if known is None else known)
        fields = checks.fields()
        if isinstance(task, Task):
            checks.problems(task)
        if checks.reasons:
            raise EntryError(where, checks.reasons)
        return cls(**fields)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the entry as a JSON file with one plan on each line, so that diffs can be read.

        Raises:
            EntryError: a field is not valid; nothing is written.
        """
        content = self.to_json()
        self.from_json(content, cleaned(os.fspath(path)))
        if self.content == "script":
            write_text(Path(path).with_suffix(".py"), self.script)
            write_text(path, json.dumps(content, indent=1) + "\n")
            return
        key = self.content
        parts = content.pop(key)
        text = json.dumps(content, indent=1).removesuffix("\n}")
        lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(part)}" for k, part in parts.items())
        write_text(path, f'{text},\n "{key}": {{\n{lines}\n }}\n}}\n')


def _list_of(version: Any) -> TaskList:
    """Return the list of tasks that an entry names, or today's if there is none of that version."""
    return tasks(version if type(version) is int and version in tasks().seeds else None)


def load_entry(path: str | os.PathLike[str]) -> Entry:
    """Read an entry from a file that cannot be trusted.

    Raises:
        EntryError: the file cannot be read, or fields are not valid; the error has every reason.
    """
    content, where, folder = read_json(path), cleaned(os.fspath(path)), Path(path).parent
    if isinstance(content, dict) and "policy" in content:
        try:
            content["policy"] = _with_arrays(content, folder)
        except PolicyError as error:
            raise EntryError(where, [f"field 'policy': {error}"]) from None
    entry = Entry.from_json(content, where)
    if entry.content != "script":
        return entry
    return replace(entry, script=_script(folder / f"{entry.entry}.py", where))


def _with_arrays(content: dict[str, Any], folder: Path) -> Any:
    """Return the policy of an entry, with the arrays of the ``.npz`` that it may name.

    The file lies beside the entry, and ``sha256`` says which it is. No array is unpickled, and
    sizes are compared before anything is unpacked.

    Raises:
        PolicyError: the file or the fields are wrong.
    """
    policy, task = content["policy"], content.get("task")
    rules = kind_of(task).policies if isinstance(task, str) and task in kinds() else None
    if not isinstance(policy, dict) or "file" not in policy or rules is None:
        return policy
    name, stated = policy["file"], policy.get("sha256")
    is_name = isinstance(name, str) and name.endswith(".npz") and not entry_fault(name[:-4])
    if not is_name:
        raise PolicyError(f"field 'file' must be NAME.npz beside the entry, not {shown(name)}")
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise PolicyError(f"field 'file': {name} is no file beside the entry")
    if path.stat().st_size > MAX_BYTES:
        raise PolicyError(f"field 'file': {name} has more than {MAX_BYTES:,} bytes")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if stated != digest:
        raise PolicyError(f"field 'sha256' is {shown(stated)}; that of {name} is {digest}")
    try:
        with path.open("rb") as stream:
            arrays = read_arrays(stream, MAX_BYTES)
    except UNREADABLE as error:
        raise PolicyError(f"field 'file': {name}: {cleaned(str(error), 200)}") from None
    fields = {key: value for key, value in policy.items() if key not in ("file", "sha256")}
    return rules.with_arrays(fields, arrays)


def _script(path: Path, where: str) -> str:
    """Read the text of a method; nothing in it runs.

    Raises:
        EntryError: it is missing, no regular file, too large, or not UTF-8.
    """
    name = f"field 'script': {path.name}"
    try:
        if path.is_symlink() or not path.is_file():
            raise EntryError(where, [f"{name} is no file beside the entry"])
        if path.stat().st_size > MAX_SCRIPT:
            raise EntryError(where, [f"{name} has more than {MAX_SCRIPT:,} bytes"])
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise EntryError(where, [f"{name} is not UTF-8"]) from None
    except OSError as error:
        raise EntryError(where, [f"{name}: {error.strerror}"]) from None


def holds(task: str) -> str:
    """Return what entries of a task hold: ``"plans"``, ``"policy"`` or ``"script"``."""
    if task in kinds(drawn=True):
        return "script"
    return "policy" if task in kinds() and kind_of(task).policies is not None else "plans"


def entry_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files ``<task>/<entry>.json`` under a folder, sorted."""
    return sorted(Path(folder).glob("*/*.json"))


def home(entry: Entry) -> Path:
    """Return the path ``<task>/<entry>.json`` of an entry within a folder of entries."""
    return Path(entry.task) / f"{entry.entry}.json"


def displaced(entries: Mapping[Path, Entry]) -> dict[Path, Path]:
    """Find files that claim an entry which another file has.

    The file with the entry's name has it, in a folder with the task's name before others; among
    equals the first.

    Args:
        entries: file -> its entry.

    Returns:
        File that claims -> file that has the entry.
    """
    owners: dict[Path, Path] = {}
    strangeness = {path: _strangeness(path, entry) for path, entry in entries.items()}
    for path in sorted(entries, key=strangeness.__getitem__):
        owners.setdefault(home(entries[path]), path)
    owner = {path: owners[home(entry)] for path, entry in entries.items()}
    return {path: other for path, other in owner.items() if other != path}


def _strangeness(path: Path, entry: Entry) -> tuple[bool, bool]:
    """Return whether a file has another name than its entry, and its folder than the task."""
    home_folder = home(entry)
    return path.name != home_folder.name, path.parent.name != home_folder.parent.name


_COMMON = (
    "schema", "tasks", "task", "entry", "authors", "link", "method", "learned", "trained_on",
    "seeds", "search_budget", "hardware",
)  # fmt: skip
_LATER = ("commit", "settings")
"""Fields that entries of before have not."""
_OWN = {"plans": ("seconds", "plans"), "policy": ("policy",), "script": ("script",)}
"""What entries hold -> the fields that they have beside ``_COMMON``."""
MAX_SCRIPT = 2**18
"""Bytes of the largest method."""


class _FieldChecks:
    """Checks all fields of one submission and collects the reasons for refusing it."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.reasons: list[str] = []

    def refuse(self, key: str, words: str) -> None:
        """Add a reason: the field ``key`` with ``words``."""
        self.reasons.append(f"field {key!r} {words}")

    def head(self, known: TaskList) -> Task | str | None:
        """Check keys and versions, and return the task, None if there is no such task.

        Of a task whose problems are drawn it returns the name.
        """
        content = self.content
        name = content.get("task")
        keys = (*_COMMON, *_OWN[holds(name) if isinstance(name, str) else "plans"])
        for key in keys:
            if key not in content:
                self.refuse(key, "is missing")
        unknown = [key for key in content if key not in (*keys, *_LATER)]
        for key in unknown[:3]:
            near = did_you_mean(key[:80], (*keys, *_LATER))
            self.reasons.append(f"unknown field {shown(key)}{near}")
        if len(unknown) > 3:
            self.reasons.append(f"and {len(unknown) - 3:,} more unknown fields")
        for key, version in (("schema", SCHEMA), ("tasks", known.version)):
            value = content.get(key)
            if key in content and (type(value) is not int or value != version):
                self.refuse(key, f"is {shown(value)}; this version of parenvs takes {version}")
        if isinstance(name, str) and name in known.tasks:
            return known.tasks[name]
        drawn = kinds(drawn=True)
        if isinstance(name, str) and name in drawn:
            return name
        if "task" in content:
            self.refuse("task", f"is {shown(name)}; known: {', '.join((*known.tasks, *drawn))}")
        return None

    def fields(self) -> dict[str, Any]:
        """Check the fields, and return them as arguments of ``Entry``, as far as they are valid."""
        fault = entry_fault(self.content.get("entry", "x"))
        if fault:
            self.refuse("entry", fault)
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
            remedy = "name something" if learned else "be empty"
            self.refuse("trained_on", f"must {remedy}, as 'learned' is {str(learned).lower()}")
        authors = self._texts("authors", 20, 100)
        if not authors and self.content.get("authors") == []:
            self.refuse("authors", "must name somebody")
        for name in authors:
            fault = author_fault(name)
            if fault:
                self.refuse("authors", f"names {shown(name)}; {fault}")
        seeds = self.content.get("seeds", [])
        are_seeds = isinstance(seeds, list) and all(
            type(seed) is int and 0 <= seed <= _MAX_SEED for seed in seeds
        )
        if not are_seeds or len(seeds) > 1000:
            self.refuse("seeds", "must be a list of at most 1,000 whole numbers from 0")
        return {
            **{key: self.content.get(key) for key in ("task", "tasks", "entry", "link", "learned")},
            "authors": tuple(authors),
            "trained_on": tuple(sources),
            "seeds": tuple(seeds) if are_seeds else (),
            "method": self._text("method", 1000),
            "search_budget": self._text("search_budget", 300),
            "hardware": self._text("hardware", 200),
            "commit": self._text("commit", 80) if "commit" in self.content else NOT_RECORDED,
            "settings": self._settings(),
            **self._own(),
        }

    def _settings(self) -> dict[str, Any]:
        """Check what the entry was made with, and return it; empty if it is not valid."""
        value = self.content.get("settings", {})
        if isinstance(value, dict) and len(value) <= 40:
            texts = [x for pair in value.items() for x in pair if not isinstance(x, (int, float))]
            if all(x is None or _is_text(x, 200) for x in texts):
                return value
        self.refuse("settings", f"must be an object of numbers and short texts, not {shown(value)}")
        return {}

    def _own(self) -> dict[str, Any]:
        """Check what the entry holds but its plans, and return it as arguments of ``Entry``."""
        content, name = self.content, self.content.get("task")
        kind = holds(name) if isinstance(name, str) else "plans"
        if kind == "policy" and "policy" in content:
            try:
                policies = kind_of(str(name)).policies
                assert policies is not None
                policies.read(content["policy"], content.get("entry"))
            except PolicyError as error:
                self.refuse("policy", str(error))
            return {"policy": content["policy"]}
        if kind == "script" and "script" in content:
            wanted = f"{content.get('entry')}.py"
            if content["script"] != wanted:
                self.refuse("script", f"must be {shown(wanted)}, not {shown(content['script'])}")
        if kind != "plans":
            return {}
        return {"seconds": content.get("seconds"), "plans": content.get("plans")}

    def problems(self, task: Task) -> None:
        """Check that plans and seconds are of problems of the task, whatever the plans are."""
        policy = self.content.get("policy")
        if isinstance(policy, dict) and isinstance(policy.get("plans"), dict):
            for name in [name for name in policy["plans"] if name not in task.problems][:3]:
                self.refuse("policy", f"names {shown(name)}, no problem of {task.name}")
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
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if name in task.problems and not (is_number and 0 <= value <= _MAX_SECONDS):
                    self.refuse(f"seconds.{name}", f"must be seconds from 0, not {shown(value)}")

    def _text(self, key: str, max_length: int) -> str:
        """Check a text, and return it, or an empty text if it is not valid."""
        value = self.content.get(key, "x")
        if _is_text(value, max_length):
            return str(value)
        what = shown(value) if not isinstance(value, str) else f"{len(value):,} characters"
        self.refuse(
            key, f"must be 1 to {max_length:,} printable characters on one line, not {what}"
        )
        return ""

    def _texts(self, key: str, max_count: int, max_length: int) -> list[str]:
        """Check a list of texts, and return it, or an empty list if it is not valid."""
        value = self.content.get(key, ["x"] if key == "authors" else [])
        if (
            isinstance(value, list)
            and len(value) <= max_count
            and all(_is_text(x, max_length) for x in value)
        ):
            return value
        self.refuse(
            key,
            f"must be a list of at most {max_count} texts of 1 to {max_length} printable "
            f"characters, not {shown(value)}",
        )
        return []


def _is_text(value: Any, max_length: int) -> bool:
    """Return whether a page can show a value as text: no control and no bidi characters."""
    return (
        isinstance(value, str)
        and len(value) <= max_length
        and value.isprintable()
        and is_seen(value)
    )
