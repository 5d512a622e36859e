"""``TASKS``: the tasks by name, the only place that lists them.

A task of another package comes by the entry-point group ``parenvs.tasks``::

    [project.entry-points."parenvs.tasks"]
    knapsack = "my_package.knapsack.task:TASK"

>>> from parenvs.core.registry import TASKS
>>> sorted(TASKS)[:3]
['elastic', 'hybrid', 'order']
>>> TASKS["order"].sets[0]
'order-validation'
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any

from parenvs.core.task import Task, late
from parenvs.errors import ParenvsError, did_you_mean, shown

GROUP = "parenvs.tasks"
"""Entry-point group of tasks of other packages."""
DEFAULT = "pipeline"
"""The task of models that no other task is asked for."""
OLD_NAMES: dict[str, dict[str, str]] = {
    "pipeline-cut": {"task": "pipeline"},
    "operator-partition": {"task": "partition"},
    "data-parallel": {"task": "partition", "scope": "inputs"},
    "packed-order": {"task": "order"},
    "iopddl": {"task": "sharding"},
}
"""Names that only files have, written before a task had one name -> the fields that say it now."""
_OWN = ("partition", "pipeline", "hybrid", "order", "sharding", "elastic")


class Tasks(Mapping[str, Task]):
    """Tasks by name; each is imported when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, Task] = {}

    @cached_property
    def _others(self) -> dict[str, str]:
        """Name -> place of the tasks of other packages; a name of this package is not replaced."""
        return {point.name: point.value for point in entry_points(group=GROUP)}

    def __getitem__(self, name: str) -> Task:
        """Return a task.

        Raises:
            KeyError: there is none of this name.
        """
        if name not in self._loaded:
            own = f"parenvs.tasks.{name}.task:TASK"
            self._loaded[name] = late(own if name in _OWN else self._others[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, this package's first."""
        return iter(dict.fromkeys((*_OWN, *self._others, *self._loaded)))

    def __len__(self) -> int:
        """Number of tasks."""
        return len(list(iter(self)))

    def named(self, name: str) -> Task:
        """Return a task.

        Raises:
            ParenvsError: there is none of this name.
        """
        if not isinstance(name, str) or name not in self:
            raise ParenvsError(f"unknown task {shown(name)}{remedy(name, self)}")
        return self[name]

    def register(self, task: Task) -> None:
        """Add a task until the process ends, and its environments; it replaces one of its name."""
        self._loaded[task.name] = task
        late("parenvs.envs:register")(task)

    def remove(self, name: str) -> None:
        """Take away a task that was registered."""
        del self._loaded[name]


def remedy(name: object, known: Collection[str]) -> str:
    """Return what a message says after an unknown task: its name now or a near one; the known."""
    old = OLD_NAMES.get(name) if isinstance(name, str) else None
    if old is not None:
        return "; it is called " + ", ".join(f"{key} {value!r}" for key, value in old.items())
    return f"{did_you_mean(str(name), known)}; known: {', '.join(known)}"


TASKS = Tasks()
"""Every task by name."""


def register(task: Task) -> None:
    """Add a task until the process ends, for example in a test."""
    TASKS.register(task)


def environments() -> dict[str, str]:
    """Return each environment's id, with and without its namespace -> where its game is."""
    games = {name: game for task in TASKS.values() for name, game in task.envs.items()}
    return games | {f"parenvs/{name}": game for name, game in games.items()}


def task_of(thing: Any, expected: str = "expected a problem, a plan or a report") -> Task:
    """Return the task of a problem, a plan or a report: by its attribute ``task``.

    Args:
        thing: the object.
        expected: what it should be, in words.

    Raises:
        ParenvsError: it is none of these.
    """
    word = getattr(thing, "task", None)
    if isinstance(word, str) and word in TASKS:
        return TASKS[word]
    raise ParenvsError(f"{expected}, not {shown(thing)}")


def hook_of(thing: Any, *rooms: str, where: object = "") -> Callable[..., Any]:
    """Return what a room needs of a task, for a problem, a plan or a report of it.

    Args:
        thing: the problem, the plan or the report.
        *rooms: names of hooks, of which the first that the task has is returned.
        where: file of a plan, for the line of the error.

    Raises:
        ParenvsError: the task has none; the line names the tasks that have one.
    """
    task = task_of(thing)
    for room in rooms:
        if room in task.hooks:
            return task.hook(room)
    able = [other.name for other in TASKS.values() if not other.hooks.keys().isdisjoint(rooms)]
    remedy = f"; plan with --task {' or '.join(able)}" if able else ""
    words = f"task: {task.name} has no {' and no '.join(rooms)}{remedy}"
    raise ParenvsError(f"{where}: {words}" if where else words)


def task_of_name(instance: object) -> Task | None:
    """Return the task that a name is of, if it is of a set or a drawn problem; None if not."""
    return next((task for task in TASKS.values() if task.names(instance)), None)
