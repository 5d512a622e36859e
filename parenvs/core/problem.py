"""``problem``: makes the problem of any task."""

from __future__ import annotations

from typing import Any

from parenvs.core.registry import DEFAULT, TASKS, task_of_name


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
    >>> parenvs.problem("order-test/p4-m8-000").micro_batches
    8
    """
    chosen = (task_of_name(source) or TASKS[DEFAULT]) if task is None else TASKS.named(task)
    return chosen.problem(source, cluster, **options)
