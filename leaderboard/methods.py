"""Judges methods: each drawn problem in a process of its own, the plan by the judge out here."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from parenvs.core.leaderboard import kind_of
from parenvs.errors import NO_PLAN
from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.sandbox.limits import Limits
from parenvs.leaderboard.sandbox.runner import run
from parenvs.leaderboard.tasks import Task
from parenvs.leaderboard.verdicts import PlanState, Verdict, illegal, judged

LIMITS = Limits(seconds=180.0, cpu_seconds=60)
"""What a method may use for each problem, the start of Python included."""
SECONDS = 5.0
"""Time limit of the search for a reference."""
_PLANNED = "parenvs.leaderboard.sandbox.work:planned"


@lru_cache(maxsize=16)
def drawn_task(name: str, seed: int, problems: int = 0) -> Task:
    """Return a task with the problems of a seed, solved here; the answers leave no trace.

    Args:
        name: name of the task.
        seed: of the checker.
        problems: how many (0: all that the task has).
    """
    solved, kind = {}, kind_of(name)
    assert kind.draw is not None
    for number in range(problems or kind.count):
        problem = kind.draw(seed, number)
        try:
            reference = problem.solved(SECONDS)
        except NO_PLAN:  # draws fit the memory, but a search may find nothing in time
            continue
        solved[problem.name] = replace(problem, reference=reference, trivial=problem.trivial_cost())
    return Task(name, **kind.fields(), problems=solved)


def method_verdicts(
    entry: Entry, task: Task, limits: Limits = LIMITS, unsafe: bool = False
) -> tuple[Verdict, ...]:
    """Return a verdict on each problem of a drawn task.

    Args:
        entry: an entry of a method.
        task: of ``drawn_task``.
        limits: for each problem.
        unsafe: whether to run where this system cannot isolate it, too.

    Raises:
        IsolationError: it cannot, and the method was not run.
    """
    verdicts = []
    for problem in task.problems.values():
        job = {
            "task": task.name,
            "seed": problem.settings["seed"],
            "number": problem.settings["number"],
            "script": entry.script,
        }
        outcome = run(_PLANNED, job, limits, unsafe=unsafe)
        if outcome.fault:
            where = f"problem {problem.name!r}"
            verdict = illegal(problem, where, [f"the method {outcome.fault}"])
        elif outcome.value is None:
            verdict = Verdict(problem, PlanState.MISSING, problem.trivial)
        else:
            verdict = judged(problem, outcome.value)
        verdicts.append(replace(verdict, isolation=outcome.isolation))
    return tuple(verdicts)
