"""The fixed list of tasks, with their problems and references.

The file ``tasks.json`` holds the list; ``parenvs.leaderboard.references`` makes that file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from parenvs.core.leaderboard import SECONDS, Reference, TaskProblem, kind_of, kinds
from parenvs.core.registry import refuse_removed
from parenvs.errors import NO_PLAN, ParenvsError, refuse_unknown
from parenvs.files import locked, read_json, read_object, write_text

SCHEMA = 1
"""Version of ``tasks.json``."""


@dataclass(frozen=True, eq=False)
class Task:
    """Problems of one kind whose scores make one ranking."""

    name: str
    title: str
    kind: str
    reward: str
    cost: str
    trivial: str
    problems: dict[str, TaskProblem]

    @property
    def counted(self) -> dict[str, TaskProblem]:
        """The problems that count in scores: those that everybody can judge."""
        return {name: problem for name, problem in self.problems.items() if not problem.added}

    def to_json(self) -> dict[str, Any]:
        content = {key: value for key, value in vars(self).items() if key != "problems"}
        return {**content, "problems": [p.to_json() for p in self.problems.values()]}


@dataclass(frozen=True, eq=False)
class TaskList:
    """All tasks.

    Attributes:
        version: grows when a problem of a task is added, changed or taken away; entries name it.
        revision: grows when references become better or lose a proof, tasks are added, or the
            cost model changes.
        tasks: name -> task.
        seeds: version -> the seed of the problems and courses of that version; each is drawn when
            its version is made.
        lodged: version -> SHA-256 of the scripts whose authors lodged them before its seed.
    """

    version: int
    revision: int
    tasks: dict[str, Task]
    seeds: Mapping[int, int] = field(default_factory=lambda: {1: 0})
    lodged: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Seed of the problems and courses of this version."""
        return self.seeds[self.version]

    def task(self, name: str) -> Task:
        """Return the task called ``name``.

        Raises:
            ParenvsError: there is no such task.
        """
        refuse_removed("task", name)
        refuse_unknown("unknown task", name, self.tasks)
        return self.tasks[name]

    def matching(self, word: str) -> list[Task]:
        """Return the task called ``word``, or else the tasks whose plans are of the task ``word``.

        Raises:
            ParenvsError: there is none.
        """
        of_plans = [task for task in self.tasks.values() if task.kind == word]
        return of_plans if of_plans and word not in self.tasks else [self.task(word)]

    def improved(self, better: Mapping[str, Mapping[str, Reference]]) -> TaskList:
        """Return the list of the next revision, with better references.

        Args:
            better: task -> problem -> its new reference.
        """
        improved_tasks = dict(self.tasks)
        for name, references in better.items():
            old = self.task(name)
            problems = {
                key: replace(problem, reference=references.get(key, problem.reference))
                for key, problem in old.problems.items()
            }
            improved_tasks[name] = replace(old, problems=problems)
        return replace(self, revision=self.revision + 1, tasks=improved_tasks)

    def save(self, path: Path | None = None) -> None:
        """Write the list to ``path``, whole or not at all (default: the file of ``tasks``).

        Raises:
            ParenvsError: another process writes to the file.
        """
        content = {
            "schema": SCHEMA,
            "version": self.version,
            "revision": self.revision,
            "seeds": {str(version): seed for version, seed in self.seeds.items()},
            "lodged": {str(version): list(hashes) for version, hashes in self.lodged.items()},
            "command": "python benchmarks/leaderboard_references.py",
            "tasks": [task.to_json() for task in self.tasks.values()],
        }
        target = path or tasks_file()
        with locked(target, beside=True):
            write_text(target, json.dumps(content, indent=1) + "\n")


def tasks_file() -> Path:
    """Return the path of ``tasks.json``."""
    return Path(__file__).parent / "tasks.json"


def older_file(path: Path, version: int) -> Path:
    """Return where a list of an older version lies, beside today's."""
    return path.with_name(f"{path.stem}-{version}.json")


def tasks(version: int | None = None) -> TaskList:
    """Return the list of tasks; it is cached, with the graphs it loaded, until the file changes.

    Tasks of other packages, which are not in the file, are solved when they are first asked for.

    Args:
        version: of an older list, on which entries of then are judged (default: today's).

    Raises:
        ParenvsError: there is no list of this version.
    """
    path = tasks_file()
    # The time of the last change is a part of the cache's key.
    newest = _cached_tasks(path, path.stat().st_mtime_ns)
    if version is not None and version != newest.version:
        if version not in newest.seeds:
            raise ParenvsError(f"no list of tasks of version {version}; known: {[*newest.seeds]}")
        # Seeds of all versions stand in today's file alone.
        path = older_file(path, version)
        return replace(_cached_tasks(path, path.stat().st_mtime_ns), seeds=newest.seeds)
    others = {name: kind for name, kind in kinds().items() if name not in newest.tasks}
    if not others:
        return newest
    solved = {
        name: solved_task(name, newest.seed, SECONDS, id(kind)) for name, kind in others.items()
    }
    return replace(newest, tasks={**newest.tasks, **solved})


def unsolved(name: str, seed: int, instances: Sequence[str] | None = None) -> list[TaskProblem]:
    """Return the problems of a task without references: those of its list, or of a seed."""
    kind = kind_of(name)
    if kind.draw is None:
        return list(kind.problems(instances))
    problems = [kind.draw(seed, number) for number in range(kind.count)]
    return [x for x in problems if instances is None or x.instance in instances]


@lru_cache(maxsize=16)
def solved_task(name: str, seed: int, seconds: float = 5.0, identity: int = 0) -> Task:
    """Return a task whose problems are solved here, each search within ``seconds``."""
    problems = {}
    for problem in unsolved(name, seed):
        try:
            reference = problem.solved(seconds)
        except NO_PLAN:  # generated problems fit the memory, but a search may find nothing in time
            continue
        trivial = problem.trivial_cost()
        problems[problem.name] = replace(problem, reference=reference, trivial=trivial)
    return Task(name, **kind_of(name).fields(), problems=problems)


def split(name: str) -> dict[str, Any]:
    """Return a split of ``splits.json``: task -> its ``families``, ``instances`` and ``note``.

    Args:
        name: ``"train"``, ``"validation"`` or ``"test"``.

    Raises:
        ParenvsError: there is no such split.
    """
    splits = read_json(Path(__file__).parent / "splits.json")["splits"]
    refuse_unknown("unknown split", name, splits)
    return dict(splits[name])


@lru_cache(maxsize=4)
def _cached_tasks(path: Path, stamp: int) -> TaskList:
    return read_tasks(path)


def read_tasks(path: Path) -> TaskList:
    """Read a list of tasks from a file that ``TaskList.save`` wrote.

    Raises:
        ParenvsError: the file has another schema, or a task that is not known.
    """
    content = read_object(path, SCHEMA)
    kinds_by_name = kinds()
    for task in content["tasks"]:
        refuse_unknown(f"{path}: field 'tasks' names", task["name"], kinds_by_name)
    tasks_by_name = {task["name"]: _task_of_json(task) for task in content["tasks"]}
    seeds = {int(version): seed for version, seed in content["seeds"].items()}
    lodged = {int(version): tuple(hashes) for version, hashes in content["lodged"].items()}
    return TaskList(content["version"], content["revision"], tasks_by_name, seeds, lodged)


def _task_of_json(content: dict[str, Any]) -> Task:
    problem_class = kind_of(content["name"]).problem
    problems = {}
    for settings in content["problems"]:
        fields = {key: settings.pop(key) for key in ("name", "instance", "fingerprint", "trivial")}
        fields |= {key: content[key] for key in ("kind", "reward")}
        reference = Reference(**settings.pop("reference"))
        problems[fields["name"]] = problem_class(reference=reference, settings=settings, **fields)
    return Task(**{**content, "problems": problems})
