"""The fixed list of what is ranked: tasks, their problems and the references of these.

``tasks.json`` holds it; ``parenvs.leaderboard.references`` makes that file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.files import write_text
from parenvs.leaderboard.problem import Problem, Reference

SCHEMA = 1
"""Version of ``tasks.json`` and of ``splits.json``."""
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Task:
    """Problems of one kind whose scores make one ranking.

    Attributes:
        name: for example ``"pipeline-cut"``.
        title: what is planned, in a sentence.
        kind: task of its plan files.
        reward: ``"paper"`` or ``"step_time"`` of partitions, else empty.
        cost: what a cost is, in words.
        trivial: what the trivial plan is, in words.
        problems: name -> problem, in the order of the list.
    """

    name: str
    title: str
    kind: str
    reward: str
    cost: str
    trivial: str
    problems: dict[str, Problem]

    def to_json(self) -> dict[str, Any]:
        """The task as an object of JSON types."""
        content = {key: value for key, value in vars(self).items() if key != "problems"}
        return {**content, "problems": [p.to_json() for p in self.problems.values()]}


@dataclass(frozen=True, eq=False)
class TaskList:
    """All tasks.

    Attributes:
        version: grows when a problem is added, changed or taken away; entries name it.
        revision: grows when references become better.
        tasks: name -> task.
    """

    version: int
    revision: int
    tasks: dict[str, Task]

    def task(self, name: str) -> Task:
        """A task by name.

        Raises:
            ParenvsError: there is none of that name.
        """
        if name in self.tasks:
            return self.tasks[name]
        raise ParenvsError(
            f"unknown task {shown(name)}{did_you_mean(name[:80], self.tasks)}; "
            f"known: {', '.join(self.tasks)}"
        )

    def improved(self, better: Mapping[str, Mapping[str, Reference]]) -> TaskList:
        """The list with other references, task -> problem -> reference: one revision on."""
        made = dict(self.tasks)
        for name, references in better.items():
            old = self.task(name)
            problems = {
                key: replace(problem, reference=references.get(key, problem.reference))
                for key, problem in old.problems.items()
            }
            made[name] = replace(old, problems=problems)
        return TaskList(self.version, self.revision + 1, made)

    def save(self, path: Path | None = None) -> None:
        """Write it, whole or not at all (default: where ``tasks`` reads it)."""
        content = {
            "schema": SCHEMA,
            "version": self.version,
            "revision": self.revision,
            "command": "python -m parenvs.leaderboard.references",
            "tasks": [task.to_json() for task in self.tasks.values()],
        }
        write_text(path or tasks_file(), json.dumps(content, indent=1) + "\n")


def tasks_file() -> Path:
    """Where the list lies."""
    return Path(__file__).parent / "tasks.json"


def tasks() -> TaskList:
    """The list; what it has loaded is kept until the file changes."""
    path = tasks_file()
    return _tasks(path, path.stat().st_mtime_ns)


def split(name: str) -> dict[str, Any]:
    """A split, task -> ``families``, ``instances`` and ``note``: ``"train"``, ``"validation"``, ...

    Raises:
        ParenvsError: no such split.
    """
    if name not in SPLITS:
        raise ParenvsError(f"unknown split {shown(name)}; known: {', '.join(SPLITS)}")
    content = json.loads((Path(__file__).parent / "splits.json").read_text(encoding="utf-8"))
    return dict(content["splits"][name])


@lru_cache(maxsize=2)
def _tasks(path: Path, stamp: int) -> TaskList:
    return read_tasks(path)


def read_tasks(path: Path) -> TaskList:
    """The list in a file of the project's own.

    Raises:
        ParenvsError: another schema.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("schema") != SCHEMA:
        raise ParenvsError(
            f"{path}: field 'schema' is {shown(content.get('schema'))}; this version reads {SCHEMA}"
        )
    made = {task["name"]: _task(task) for task in content["tasks"]}
    return TaskList(content["version"], content["revision"], made)


def _task(content: dict[str, Any]) -> Task:
    kind, reward = content["kind"], content["reward"]
    return Task(
        **{
            **content,
            "problems": {p["name"]: _problem(p, kind, reward) for p in content["problems"]},
        }
    )


def _problem(content: dict[str, Any], kind: str, reward: str) -> Problem:
    content = dict(content)
    own = {key: content.pop(key) for key in ("name", "instance", "fingerprint", "trivial")}
    reference = Reference(**content.pop("reference"))
    return Problem(kind=kind, reward=reward, settings=content, reference=reference, **own)
