"""``plan`` and ``compare``: every planner of every task by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from parenvs.agents.learning.options import TRAINED
from parenvs.core.leaderboard import Description
from parenvs.core.plan import OPTIMAL, Answer
from parenvs.core.registry import task_of
from parenvs.core.request import Request
from parenvs.errors import ParenvsError, refuse_unknown, shown
from parenvs.fields import checked


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
            f"plan takes a problem, not {shown(problem)}; make one with "
            "parenvs.problem(graph or name, cluster)"
        )
    kind = task_of(problem).request_class()
    known = [field.name for field in fields(kind) if field.name != "problem"]
    for name in options:
        refuse_unknown("a plan of this problem has no option", name, known)
    given = {name: value for name, value in options.items() if value is not None}
    # A request makes constraints of an object.
    given |= checked(kind, {name: x for name, x in given.items() if name != "constraints"})
    for name, value in given.items():
        if isinstance(value, int | float) and value < 0:
            raise ParenvsError(f"{name} must be a number from 0, not {shown(value)}")
    return kind(problem, **given)


def plan(problem: Any, agent: str | None = None, **options: Any) -> Answer:
    """Plan a problem of any task with any planner.

    Args:
        problem: made by ``parenvs.problem``.
        agent: name of the planner; ``parenvs list`` shows all (default: ``Request.best``).
        **options: see ``request_of``.

    Returns:
        The answer: ``plan``, ``report``, ``bound``, ``proven``.

    Raises:
        InfeasibleError: no plan fits the memory.
        ParenvsError: the planner or an option is unknown.

    >>> import parenvs
    >>> answer = parenvs.plan(parenvs.problem("vgg-19", cluster="A"))
    >>> answer.proven, answer.report.legal
    (True, True)
    """
    request = request_of(problem, **options)
    return request.best() if agent is None else request.run(agent)


def compare(
    problem: Any, agents: Sequence[str] | None = None, **options: Any
) -> dict[str, Answer | ParenvsError]:
    """Plan a problem with several planners, as ``parenvs compare`` does.

    Args:
        problem: made by ``parenvs.problem``.
        agents: names of planners (default: those that the command compares).
        **options: see ``request_of``.

    Returns:
        Planner -> its answer, or the error with which it ended, such as that no plan fits.

    >>> import parenvs
    >>> answers = parenvs.compare(parenvs.problem("vgg-19", cluster="A"), ["even", "exact"])
    >>> answers["exact"].cost <= answers["even"].cost
    True
    """
    request = request_of(problem, **options)
    answers: dict[str, Answer | ParenvsError] = {}
    for agent in agents or request.compared:
        try:
            answers[agent] = request.run(agent)
        except ParenvsError as error:
            answers[agent] = error
    return answers


def target(reward: str, best: float) -> float:
    """Return the least return of episodes that count as optimal: their cost is within 0.1 %.

    Args:
        reward: ``"step_time"``, whose return is 1 - T / T_replicate with the cost T; for other
            rewards the return itself is compared.
        best: return of the best episode.
    """
    if reward == "step_time":
        return 1 - (1 - best) * (1 + OPTIMAL)
    return best * (1 - OPTIMAL)


_LEARNERS = {
    "ppo": "MaskablePPO",
    "rainbow": "Rainbow",
    "rainbow-paper": "Rainbow with the settings of arXiv 2007.04069",
}
"""Agent -> what trained the entries of the leaderboard; PPO's are older than our own PPO."""
TRAINED_AGENTS: dict[str, Description] = {
    agent: Description(
        f"{_LEARNERS.get(agent, agent)}, trained on each problem by itself; its best plan.",
        "",
        "{steps:,} environment steps a problem",
        seeded=True,
    )
    for agent in TRAINED
}
"""Agents that train on the problem itself -> their descriptions."""
