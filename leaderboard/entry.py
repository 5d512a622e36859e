"""``Entry``: authors, method, and a plan for each problem of a task, in one JSON file.

Files come from strangers: size, depth and numbers are limited, and nothing in them runs.
"""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parenvs.core.leaderboard import PolicyError, kinds
from parenvs.core.registry import removed
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.files import DuplicateFieldError, StrPath, no_duplicates, write_text
from parenvs.leaderboard.tasks import TaskList, tasks
from parenvs.machine import NOT_RECORDED

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1
"""Version of the entry files."""
TRAINED_ON = {
    "generated": "problems drawn by parenvs.datasets.pipeline.generators, none of a shipped set",
    "plan-validation": "the shipped validation set",
    "shipped graphs": "shipped graphs of the families that splits.json gives for training",
    "the problem itself": "each plan's own problem: a search that learns",
}
"""Words that ``trained_on`` may hold -> their meaning; any others start with ``"other: "``."""
MAX_BYTES = 4 * 2**20
"""Size of the largest file that is read."""
MAX_DEPTH = 8
"""Deepest nesting of lists and objects; the cluster of a plan needs five."""
_MAX_SECONDS = 1e9
_MOST_NAMED = 3  # unknown names that a message lists
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_LINK = re.compile(r"https?://[A-Za-z0-9./?#&=%_~:@+,;!*-]{1,300}")
_HASH = re.compile(r"[0-9a-f]{64}")
# Characters that leave no mark, or stack on others: two such names look alike on a page.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_ACCENTS = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]")


class EntryError(ParenvsError):
    """A file that is no entry; its message is one line of all reasons.

    Attributes:
        reasons: why it is no entry; each reason names the field.
    """

    def __init__(self, where: str, reasons: list[str]) -> None:
        """Shorten the reasons, which may quote the file, and make them printable."""
        self.where, self.reasons = where, tuple(cleaned(reason) for reason in reasons)
        super().__init__(f"{where}: {'; '.join(self.reasons)}")


@dataclass(frozen=True)
class Entry:
    """A submission with valid fields; its plans have yet to be judged.

    Attributes:
        entry: name of the entry, unique in the task; also the name of its file.
        plans: name of a problem -> content of its plan file; a problem may be missing.
        learned: whether any part of the planner was trained.
        trained_on: what it was trained on, keys of ``TRAINED_ON`` or ``"other: ..."``; empty if it
            did not learn.
        search_budget: time or steps that were spent on each problem.
        seconds: name of a problem -> wall seconds that its plan took, by its author's word.
        tasks: version of the list of tasks that the entry is for.
        policy: the policy, where a task takes policies in place of plans.
        script: SHA-256 of the method's script, where problems are generated from a seed.
        commit: of the code of this package that made it.
        settings: name -> number or text, what it was made with.
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
    def file(self) -> Path:
        """Path ``TASK/ENTRY.json`` within a folder of entries."""
        return Path(self.task) / f"{self.entry}.json"

    def to_json(self) -> dict[str, Any]:
        """Return the entry as an object of JSON types, schema version first."""
        content: dict[str, Any] = {"schema": SCHEMA}
        for key in (*_HEAD[1:], *_FIELDS):
            value = getattr(self, key)
            content[key] = list(value) if isinstance(value, tuple) else value
        if self.policy is not None:
            return {**content, "policy": self.policy}
        script = {"script": self.script} if self.script else {}
        return {**content, **script, "seconds": dict(self.seconds), "plans": dict(self.plans)}

    @classmethod
    def from_json(cls, content: Any, where: str = "entry") -> Self:
        """Check an object of JSON types and make an entry of it; ``check`` judges the plans.

        Raises:
            EntryError: the object is no entry; the error has every reason.
        """
        if not isinstance(content, dict):
            raise EntryError(where, ["expected one JSON object"])
        version = content.get("tasks")
        task_list = tasks(version if type(version) is int and version in tasks().seeds else None)
        checks = _Checks(content, task_list)
        fields = checks.fields()
        if checks.reasons:
            raise EntryError(where, checks.reasons)
        return cls(**fields)

    def save(self, path: StrPath) -> None:
        """Write the entry as a JSON file with one plan on each line, so that diffs can be read.

        Raises:
            EntryError: a field is not valid; nothing is written.
        """
        content = self.to_json()
        self.from_json(content, cleaned(os.fspath(path)))
        key = "plans" if self.policy is None else "policy"
        parts = content.pop(key)
        text = json.dumps(content, indent=1).removesuffix("\n}")
        lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(part)}" for k, part in parts.items())
        write_text(path, f'{text},\n "{key}": {{\n{lines}\n }}\n}}\n')


def entry_files(folder: StrPath) -> list[Path]:
    """Return the files ``TASK/ENTRY.json`` under a folder, sorted."""
    return sorted(Path(folder).glob("*/*.json"))


def load_entry(path: StrPath) -> Entry:
    """Read an entry from a file that cannot be trusted.

    Raises:
        EntryError: the file cannot be read, or fields are not valid; the error has every reason.
    """
    return Entry.from_json(read_json(path), cleaned(os.fspath(path)))


def read_json(path: StrPath) -> Any:
    """Read a JSON file that cannot be trusted.

    Raises:
        EntryError: the file is missing, not regular, too large, not UTF-8, no JSON or nested too
            deeply; a key occurs twice in an object; or a number is NaN, infinite or too long.
    """
    where = cleaned(os.fspath(path))
    try:
        # Pipes and devices are not opened, as reading one may never end.
        if not Path(path).is_file():
            raise EntryError(where, ["no such file, or not a regular one"])
        with Path(path).open("rb") as stream:
            # One byte beyond the limit is enough to know that the file is too large.
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise EntryError(where, [f"file: {reason}"]) from None
    return parse_json(data, where)


def parse_json(data: bytes, where: str) -> Any:
    """Parse bytes of JSON that cannot be trusted; see ``read_json``."""
    if len(data) > MAX_BYTES:
        raise EntryError(where, [f"file: more than {MAX_BYTES:,} bytes"])
    too_deep = EntryError(where, [f"file: nested deeper than {MAX_DEPTH} levels"])
    try:
        content = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=no_duplicates,
            parse_constant=_finite,
            parse_float=_finite,
        )
    except RecursionError:
        raise too_deep from None
    except DuplicateFieldError as error:
        raise EntryError(where, [f"{error} in one object"]) from None
    except ValueError as error:
        raise EntryError(where, [f"file: no JSON in UTF-8 ({error})"]) from None
    # Level by level instead of by recursion, which is what deep files break.
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        level = [x for value in level for x in _parts(value)]
    if level:
        raise too_deep
    return content


def cleaned(text: str, max_length: int = 400) -> str:
    """Make a text fit for a terminal and a table: printable, on one line, not too long."""
    # Cut first: a stranger's text may be megabytes long.
    text = " ".join(text[: 4 * max_length].split())
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {shown(text)} is not finite")
    return value


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def entry_fault(name: object) -> str:
    """Return why a value cannot be the name of an entry, and so of a file, or an empty text."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return (
            "must be up to 40 lower-case letters, digits, dots, hyphens and plus signs, a letter "
            f"or digit first, not {shown(name)}"
        )
    if name.endswith("."):
        return f"is {shown(name)}; leave out the dot at the end, which Windows drops"
    if _DEVICES.fullmatch(name):
        return f"is {shown(name)}, a device of Windows and no file there; choose another name"
    return ""


def author_fault(name: str) -> str:
    """Return why an author's printable name could be taken for another, or an empty text."""
    if name != name.strip():
        return "leave out the spaces around it"
    # NFKC maps look-alikes such as full-width letters to plain ones.
    plain = unicodedata.normalize("NFKC", name)
    if name != plain:
        return f"write it in its plain form, {shown(plain)} (Unicode's NFKC)"
    odd = _UNSEEN.search(name) or _ACCENTS.search(name)
    if odd:
        kind = "invisible" if _UNSEEN.match(odd[0]) else "combining"
        return f"leave out the {kind} character U+{ord(odd[0]):04X}"
    return ""


def _is_text(value: Any, max_length: int) -> bool:
    """Return whether a page can show a value as text: no control and no bidi characters."""
    is_short = isinstance(value, str) and len(value) <= max_length
    return is_short and value.isprintable() and bool(_UNSEEN.sub("", value).strip())


def _is_list(value: Any, max_count: int, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) <= max_count and all(map(is_valid, value))


def _is_settings(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) > 40:
        return False
    texts = [x for pair in value.items() for x in pair if not isinstance(x, (int, float))]
    return all(x is None or _is_text(x, 200) for x in texts)


def _words(max_length: int) -> tuple[Callable[[Any], bool], str, Any]:
    expected = f"1 to {max_length:,} printable characters on one line"
    return lambda value: _is_text(value, max_length), expected, "x"


_FIELDS: dict[str, tuple[Callable[[Any], bool], str, Any]] = {
    "authors": (
        lambda value: bool(value) and _is_list(value, 20, lambda name: _is_text(name, 100)),
        "a list of 1 to 20 names of at most 100 printable characters",
        [],
    ),
    "link": (
        lambda value: value == "" or (isinstance(value, str) and bool(_LINK.fullmatch(value))),
        "empty or a link with http(s)://",
        "",
    ),
    "method": _words(1000),
    "learned": (lambda value: isinstance(value, bool), "true or false", False),
    "trained_on": (
        lambda value: _is_list(value, 10, lambda text: _is_text(text, 200)),
        "a list of at most 10 texts of 1 to 200 printable characters",
        [],
    ),
    "seeds": (
        lambda value: _is_list(value, 1000, lambda x: type(x) is int and 0 <= x < 2**63),
        "a list of at most 1,000 whole numbers from 0",
        [],
    ),
    "search_budget": _words(300),
    "hardware": _words(200),
    "commit": _words(80),
    "settings": (_is_settings, "an object of at most 40 numbers and short texts", {}),
}
"""Field -> whether a value is valid, what it must be, and the value that replaces a wrong one."""
_HEAD = ("schema", "tasks", "task", "entry")
_LATER = ("commit", "settings")
"""Fields that older entries do not have."""


class _Checks:
    def __init__(self, content: dict[str, Any], task_list: TaskList) -> None:
        self.content, self.task_list = content, task_list
        name = str(content.get("task"))
        kind, self.task = kinds().get(name), task_list.tasks.get(name)
        self.policies = None if kind is None else kind.policies
        self.is_drawn = kind is not None and kind.draw is not None
        self.reasons: list[str] = []

    def refuse(self, key: str, words: str) -> None:
        self.reasons.append(f"field {key!r} {words}")

    def fields(self) -> dict[str, Any]:
        """Check everything, and return the arguments of ``Entry``, as far as they are valid."""
        content, fields = self.content, {}
        self.check_head()
        for key, (is_valid, expected, default) in _FIELDS.items():
            fields[key] = value = content.get(key, NOT_RECORDED if key == "commit" else default)
            if key in content and not is_valid(value):
                self.refuse(key, f"must be {expected}, not {shown(value)}")
                fields[key] = default
        self.check_people(fields)
        if self.policies is not None:
            fields["policy"] = content.get("policy")
            self.check_policy()
        else:
            fields |= {key: content.get(key) for key in ("plans", "seconds")}
            self.check_plans()
        if self.is_drawn:
            fields["script"] = content.get("script")
            if not _HASH.fullmatch(str(content.get("script"))):
                self.refuse("script", "must be the SHA-256 of the method's script, in hexadecimal")
        named = {key: content.get(key) for key in ("task", "tasks", "entry")}
        lists = {key: tuple(fields[key]) for key in ("authors", "trained_on", "seeds")}
        return {**named, **fields, **lists}

    def check_head(self) -> None:
        content = self.content
        keys = [*_HEAD, *(key for key in _FIELDS if key not in _LATER)]
        keys += ["seconds", "plans"] if self.policies is None else ["policy"]
        keys += ["script"] if self.is_drawn else []
        for key in keys:
            if key not in content:
                self.refuse(key, "is missing")
        allowed = (*keys, *_LATER)
        unknown = [key for key in content if key not in allowed]
        for key in unknown[:_MOST_NAMED]:
            self.reasons.append(f"unknown field {shown(key)}{did_you_mean(key[:80], allowed)}")
        if len(unknown) > _MOST_NAMED:
            self.reasons.append(f"and {len(unknown) - _MOST_NAMED:,} more unknown fields")
        for key, version in (("schema", SCHEMA), ("tasks", self.task_list.version)):
            value = content.get(key)
            if key in content and (type(value) is not int or value != version):
                self.refuse(key, f"is {shown(value)}; this version of parenvs takes {version}")
        fault = entry_fault(content.get("entry", "x"))
        if fault:
            self.refuse("entry", fault)
        if self.task is None and "task" in content:
            name = content["task"]
            removal = removed("task", name)
            listed = f"is {shown(name)}; known: {', '.join(self.task_list.tasks)}"
            self.refuse("task", f"is {shown(name)}: {removal}" if removal else listed)

    def check_people(self, fields: dict[str, Any]) -> None:
        for name in fields["authors"]:
            fault = author_fault(name)
            if fault:
                self.refuse("authors", f"names {shown(name)}; {fault}")
        learned, sources = fields["learned"], fields["trained_on"]
        for source in sources:
            if source not in TRAINED_ON and not re.match("other: .", source):
                allowed = ", ".join(map(repr, TRAINED_ON))
                self.refuse("trained_on", f"holds {shown(source)}; known: {allowed}, 'other: ...'")
        if learned != bool(sources) and "trained_on" in self.content:
            remedy = "name something" if learned else "be empty"
            self.refuse("trained_on", f"must {remedy}, as 'learned' is {str(learned).lower()}")

    def check_policy(self) -> None:
        """Check a policy, and that what it is recorded for are problems of the task."""
        if "policy" not in self.content:
            return
        policy = self.content["policy"]
        try:
            assert self.policies is not None
            self.policies.read(policy, self.content.get("entry"))
        except PolicyError as error:
            self.refuse("policy", str(error))
        if isinstance(policy, dict) and isinstance(policy.get("plans"), dict):
            self.check_names("policy", policy["plans"])

    def check_plans(self) -> None:
        for key in ("plans", "seconds"):
            value = self.content.get(key)
            if isinstance(value, dict):
                self.check_names(key, value)
            elif key in self.content:
                self.refuse(key, f"must be an object of problems, not {shown(value)}")
        if self.content.get("plans") == {}:
            self.refuse("plans", "is empty; give a plan of one problem at least")
        seconds = self.content.get("seconds")
        for name, value in (seconds if isinstance(seconds, dict) else {}).items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (is_number and 0 <= value <= _MAX_SECONDS):
                self.refuse(f"seconds.{name}", f"must be seconds from 0, not {shown(value)}")

    def check_names(self, key: str, values: Mapping[str, Any]) -> None:
        task = self.task
        if task is None:
            return
        unknown = [name for name in values if name not in task.problems]
        for name in unknown[:_MOST_NAMED]:
            near = did_you_mean(name[:80], task.problems)
            self.refuse(key, f"names {shown(name)}, no problem of {task.name}{near}")
        if len(unknown) > _MOST_NAMED:
            self.refuse(key, f"names {len(unknown) - _MOST_NAMED:,} more that are no problems")
