"""``solve``: every planner of every task by its name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from parenvs.core.plan import Answer
from parenvs.core.registry import TASKS, task_of
from parenvs.core.request import Request
from parenvs.errors import ParenvsError, did_you_mean, shown


def request_of(problem: Any, **options: Any) -> Request:
    """Make the request of a problem.

    Args:
        problem: the problem to plan.
        **options: ``seed``, ``steps``, ``progress``, and those of the task: for pipelines
            ``radius``, ``candidates`` and ``time_limit`` (and ``clusters``, for commands); for
            partitions ``memory_limit``; for hybrid plans ``constraints``, ``objective``, ``price``
            and ``time_limit``.

    Raises:
        ParenvsError: ``problem`` is no problem, or the task does not have an option.
    """
    if not callable(getattr(problem, "report", None)):
        raise ParenvsError(
            f"solve takes a problem, not {shown(problem)}; make one with "
            "parenvs.problem(graph or name, cluster)"
        )
    kind = request_class(task_of(problem).name)
    known = [field.name for field in fields(kind) if field.name != "problem"]
    for name in options:
        if name not in known:
            raise ParenvsError(
                f"{name!r} is not an option of solve for this problem"
                f"{did_you_mean(name, known)}; known: {', '.join(known)}"
            )
    return kind(problem, **options)


def request_class(task: str) -> type[Request]:
    """Return the class of a task's requests; its attribute ``planners`` has the planners.

    Raises:
        ParenvsError: there is no such task.
    """
    return TASKS.named(task).request_class()


def solve(problem: Any, agent: str = "exact", **options: Any) -> Answer:
    """Plan a problem of any task with any planner.

    Args:
        problem: made by ``parenvs.problem``.
        agent: name of the planner; ``parenvs list`` shows all.
        **options: see ``request_of``.

    Returns:
        The answer: ``plan``, ``report``, ``bound``, ``proven``.

    Raises:
        InfeasibleError: no plan fits the memory.
        ParenvsError: the planner or an option is unknown.

    >>> import parenvs
    >>> answer = parenvs.solve(parenvs.problem("vgg-19", cluster="A"))
    >>> answer.proven, answer.report.legal
    (True, True)
    """
    return request_of(problem, **options).run(agent)
