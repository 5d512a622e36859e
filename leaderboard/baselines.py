"""The project's own agents as planners of leaderboard tasks; their ``entries`` describe them."""

from __future__ import annotations

from parenvs.agents.names import GENERAL, TRAINED
from parenvs.core.leaderboard import Description, Planner, kind_of
from parenvs.core.removed import refuse_removed
from parenvs.core.request import STEPS
from parenvs.errors import ParenvsError, did_you_mean
from parenvs.leaderboard.tasks import Task

_DRAWN = ("generated",)
_FITTED_ON = {"mean-chain": ("other: the mean chain of elastic-train",)}


def agents(task: Task) -> dict[str, Description]:
    """Return every agent of a task with its description."""
    return dict(kind_of(task.name).agents)


def ready(task: Task) -> tuple[str, ...]:
    """Return the agents of a task that need not be trained first."""
    return tuple(agent for agent in agents(task) if agent not in TRAINED)


def learned_from(agent: str) -> tuple[str, ...]:
    """Return what an agent learned from, as ``Entry.trained_on``; empty if it did not learn."""
    if agent in TRAINED:
        return ("the problem itself",)
    if agent in _FITTED_ON:
        return _FITTED_ON[agent]
    return _DRAWN if agent in GENERAL else ()


def planner(task: Task, agent: str, seed: int = 0, steps: int = STEPS) -> Planner:
    """Return an agent as a planner of the task's problems.

    Args:
        task: the task.
        agent: one of ``agents(task)``.
        seed: seed of all random numbers.
        steps: environment steps for each problem, for agents that draw or learn.

    Raises:
        ParenvsError: the task has no such agent.
    """
    known = agents(task)
    if agent not in known:
        refuse_removed("planner", f"{task.kind}/{agent}")
        raise ParenvsError(
            f"task {task.name!r} has no agent {agent!r}{did_you_mean(agent, known)}; "
            f"known: {', '.join(known)}"
        )
    return kind_of(task.name).planner(agent, seed, steps)
