"""``TASKS``: the tasks by name, the only place that lists them.

A task of another package comes by the entry-point group ``parenvs.tasks``::

    [project.entry-points."parenvs.tasks"]
    knapsack = "my_package.knapsack.task:KnapsackTask"

>>> from parenvs.core.registry import TASKS
>>> sorted(TASKS)[:3]
['elastic', 'hybrid', 'partition']
>>> TASKS["elastic"].sets[0]
'elastic-validation'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any

from parenvs.core.task import Task, late
from parenvs.errors import ParenvsError, refuse_unknown, shown

REMOVED: dict[str, dict[str, str]] = {
    "environment": {
        "MicroBatchOrder-v0": "",
        "MicroBatchOrder-v1": "",
        "PipelinePlan-v1": "PipelinePlan-v0, or PipelineImprove-v0 from eight stages on",
        **{
            f"{name}-v1": f"{name}-v2"
            for name in ("ElasticPlan", "HybridPlan", "IntraOpSharding", "PartitionPlan")
        },
        "hybrid_v0": "parenvs.envs.hybrid_v1",
    },
    "task": {"order": "", "packed-order": "", "order-drawn": ""},
    "agent": {"a2c": "ppo"},
    "set": {"order-validation": "", "order-test": "", "order-outside": "", "order-large": ""},
}
"""Kind -> name -> what to use in its place, or an empty text if there is no successor.

Environments are named without a namespace.
"""


def removed(kind: str, name: object) -> str:
    """Return the line for a removed name, an empty text if it was not removed."""
    names = REMOVED[kind]
    if not isinstance(name, str) or name not in names:
        return ""
    successor = f"; use {names[name]}" if names[name] else ""
    return f"{kind} {shown(name.rpartition('/')[2])} was removed{successor}"


def refuse_removed(
    kind: str, name: object, where: str = "", error: type[ParenvsError] = ParenvsError
) -> None:
    """Raise ``error`` if a name was removed, its message ``where`` (a file) and the line.

    Raises:
        ParenvsError: the name was removed.
    """
    line = removed(kind, name)
    if line:
        raise error(f"{where}: {line}" if where else line)


GROUP = "parenvs.tasks"
"""Entry-point group of tasks of other packages."""
DEFAULT = "pipeline"
"""The task of models that no other task is asked for."""
OLD_NAMES: dict[str, dict[str, str]] = {
    "pipeline-cut": {"task": "pipeline"},
    "operator-partition": {"task": "partition"},
    "data-parallel": {"task": "partition", "scope": "inputs"},
    "iopddl": {"task": "sharding"},
}
"""Names that only files have, written before a task had one name -> the fields that say it now."""
_OWN = {
    "partition": "parenvs.tasks.partition.task:PartitionTask",
    "pipeline": "parenvs.tasks.pipeline.task:PipelineTask",
    "hybrid": "parenvs.tasks.hybrid.task:HybridTask",
    "sharding": "parenvs.tasks.sharding.task:ShardingTask",
    "elastic": "parenvs.tasks.elastic.task:ElasticTask",
}


class Tasks(Mapping[str, Task]):
    """Tasks by name; each is imported when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, Task] = {}

    @cached_property
    def _others(self) -> dict[str, str]:
        return {point.name: point.value for point in entry_points(group=GROUP)}

    def __getitem__(self, name: str) -> Task:
        """Return a task.

        Raises:
            KeyError: there is none of this name.
        """
        # Imported on first use: ``import parenvs`` must not load every task's dependencies.
        if name not in self._loaded:
            task: Any = late(_OWN.get(name) or self._others[name])
            if not (isinstance(task, type) and issubclass(task, Task)):
                raise ParenvsError(f"task {shown(name)}: its entry point is no subclass of Task")
            self._loaded[name] = task()
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, this package's first."""
        # A registered task may replace one of the same name, which keeps its position.
        return iter(dict.fromkeys((*_OWN, *self._others, *self._loaded)))

    def __len__(self) -> int:
        """Number of tasks."""
        return len(list(iter(self)))

    def named(self, name: str) -> Task:
        """Return a task.

        Raises:
            ParenvsError: there is none of this name.
        """
        refuse_removed("task", name)
        # Files may still have these names, so their errors name the successor.
        if isinstance(name, str) and name in OLD_NAMES:
            fields = ", ".join(f"{key} {value!r}" for key, value in OLD_NAMES[name].items())
            raise ParenvsError(f"unknown task {name!r}; it is called {fields}")
        refuse_unknown("unknown task", name, self)
        return self[name]

    def register(self, task: Task) -> None:
        """Add a task until the process ends, and its environments; it replaces one of its name."""
        self._loaded[task.name] = task
        late("parenvs.envs:register")(task)

    def remove(self, name: str) -> None:
        """Take away a task that was registered."""
        del self._loaded[name]


TASKS = Tasks()
"""Every task by name."""


def environments() -> dict[str, str]:
    """Return each environment's id, with and without its namespace -> where its game is."""
    games = {name: game for task in TASKS.values() for name, game in task.envs.items()}
    return games | {f"parenvs/{name}": game for name, game in games.items()}


def task_of(item: Any, expected: str = "expected a problem, a plan or a report") -> Task:
    """Return the task of a problem, a plan or a report: by its attribute ``task``.

    Args:
        item: the object.
        expected: what it should be, in words.

    Raises:
        ParenvsError: it is none of these.
    """
    word = getattr(item, "task", None)
    if isinstance(word, str) and word in TASKS:
        return TASKS[word]
    raise ParenvsError(f"{expected}, not {shown(item)}")


def task_with(item: Any, *methods: Callable[..., Any], where: object = "") -> Task:
    """Return the task of a problem, plan or report if it implements an optional method.

    Args:
        item: the problem, plan or report.
        *methods: optional methods, such as ``Task.layout``; the task must implement one of them.
        where: the plan's file, for the error message.

    Raises:
        ParenvsError: the task implements none of them; the message names the tasks that do.
    """
    task = task_of(item)
    if any(task.supports(method) for method in methods):
        return task
    able = [x.name for x in TASKS.values() if any(x.supports(method) for method in methods)]
    remedy = f"; plan with --task {' or '.join(able)}" if able else ""
    nouns = " and no ".join(method.__name__ for method in methods)
    words = f"task: {task.name} has no {nouns}{remedy}"
    raise ParenvsError(f"{where}: {words}" if where else words)


def task_of_name(instance: object) -> Task | None:
    """Return the task that a name is of, if it is of a set or a drawn problem; None if not."""
    return next((task for task in TASKS.values() if task.names(instance)), None)


def problem(source: Any, cluster: Any = None, task: str | None = None, **options: Any) -> Any:
    """Make a problem: a model to be planned on a cluster, or one of a set.

    Args:
        source: shipped name, path of a graph, of a ``.csv`` profile or of another file that the
            task reads, ``FILE.py:FUNCTION``, a ``Graph`` or another object that the task makes
            problems of; or the name of a problem of a set (``"plan-test/cnn-003"``) or of a drawn
            one (``"hybrid/7"``), which have settings of their own.
        cluster: preset, short form, ``.json`` path or object, see ``Cluster.parse`` (default: that
            of the task).
        task: name of the task (default: that of the set or of the drawn problem; for all else
            ``"pipeline"``).
        **options: of the task, see ``TASKS[task].options``.

    Returns:
        The problem, of a class of the task: a ``Pipeline``, a ``Partitioning``, ...

    Raises:
        UnknownInstanceError: ``source`` is neither a known name nor a file.
        ParenvsError: the task or an option is unknown, or no plan can solve the problem.

    >>> import parenvs
    >>> parenvs.problem("t5-3b", cluster="C").stages
    4
    >>> parenvs.problem("hybrid-test/mixture-000").task
    'hybrid'
    """
    chosen = (task_of_name(source) or TASKS[DEFAULT]) if task is None else TASKS.named(task)
    return chosen.problem(source, cluster, **options)


def tune(problem: Any, **settings: Any) -> Any:
    """Start or resume a study of a problem: it proposes plans, and learns from what they took.

    Args:
        problem: made by ``parenvs.problem``; of the task ``hybrid``.
        **settings: ``stack``, ``journal``, ``site``, ``candidates``, ``constraints``, ``tolerance``
            and ``seed``, see ``parenvs.tasks.hybrid.tune.study.Study``.

    Returns:
        The study: ``ask``, ``tell``, ``best``, ``stop``, ``table``.

    Raises:
        ParenvsError: the task of the problem cannot be tuned, or a setting is wrong.

    >>> import parenvs
    >>> study = parenvs.tune(parenvs.problem("llama3-8b", "1x8:a100", "hybrid", batch=64))
    >>> trial = study.ask()
    >>> study.tell(trial, seconds=trial.expected_seconds)
    >>> study.best.plan == trial.plan
    True
    """
    return task_of(problem, "tune takes a problem").tune(problem, **settings)
