"""Makes entries: of anybody's planner, and of the project's own agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from parenvs.agents.request import STEPS, TRAINED
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.leaderboard.baselines import ONE, Planner, agents, learned_from, planner
from parenvs.leaderboard.check import ILLEGAL, judged
from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.problem import Problem
from parenvs.leaderboard.reading import cleaned
from parenvs.leaderboard.tasks import tasks
from parenvs.machine import cores, counted, processor

_DRAW = ("random", "pretrained", "pretrained-refined", *TRAINED)
"""Agents whose plans depend on the seed and on the steps."""


def submission(
    task: str,
    plan: Planner,
    *,
    entry: str,
    authors: Sequence[str],
    method: str,
    learned: bool = False,
    trained_on: Sequence[str] = (),
    seeds: Sequence[int] = (),
    search_budget: str = ONE,
    hardware: str | None = None,
    link: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Entry:
    """Plan every problem of a task and make an entry of it.

    A problem on which ``plan`` raises ``InfeasibleError``, or whose plan is illegal, is left out:
    it scores as the trivial plan.

    Args:
        task: name of the task.
        plan: takes a ``Problem``, gives a plan; ``problem.pipeline_plan(cuts, device_cuts)`` and
            ``problem.partition_plan(partition)`` make one.
        entry: name of the entry: lower-case letters, digits, dots, hyphens.
        authors: who made it.
        method: what it does, in a sentence or two.
        learned: whether anything in it was trained.
        trained_on: on what; see ``parenvs.leaderboard.entry.TRAINED_ON``.
        seeds: seeds of everything random.
        search_budget: what was spent on a problem, in words.
        hardware: what it ran on (default: this processor).
        link: where it is described.
        say: takes a line for each problem.

    Raises:
        ParenvsError: unknown task, or no problem got a legal plan.
    """
    plans: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for problem in tasks().task(task).problems.values():
        content, spent, words = _planned(problem, plan)
        if content is not None:
            plans[problem.name] = content
            seconds[problem.name] = float(f"{spent:.3g}")
        say(f"{task} {entry} {problem.name}: {words}")
    if not plans:
        raise ParenvsError(f"{task}: no problem got a legal plan; there is nothing to enter")
    return Entry(
        task=task,
        entry=entry,
        authors=tuple(authors),
        method=method,
        plans=plans,
        learned=learned,
        trained_on=tuple(trained_on),
        seeds=tuple(seeds),
        search_budget=search_budget,
        hardware=machine() if hardware is None else hardware,
        link=link,
        seconds=seconds,
    )


def agent_submission(
    task: str,
    agent: str,
    *,
    entry: str | None = None,
    authors: Sequence[str] = ("parenvs",),
    seed: int = 0,
    steps: int = STEPS,
    hardware: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Entry:
    """An entry of one of the project's agents.

    Args:
        task: name of the task.
        agent: one of ``parenvs.leaderboard.baselines.agents``.
        entry: name of the entry (default: the agent's).
        authors: who made it.
        seed: seed of everything random.
        steps: environment steps a problem of agents that draw or learn.
        hardware: what it ran on (default: this processor).
        say: takes a line for each problem.

    Raises:
        ParenvsError: unknown task or agent, or a missing extra.
    """
    of = tasks().task(task)
    plan = planner(of, agent, seed, steps)
    method, link, budget = agents(of)[agent]
    lessons = learned_from(agent)
    return submission(
        task,
        plan,
        entry=entry or agent,
        authors=authors,
        method=method,
        learned=bool(lessons),
        trained_on=lessons,
        seeds=(seed,) if agent in _DRAW else (),
        search_budget=budget.format(steps=steps),
        hardware=hardware,
        link=link,
        say=say,
    )


def machine() -> str:
    """Processor and cores."""
    return cleaned(f"{processor()}, {counted(cores())}", 200)


def _planned(problem: Problem, plan: Planner) -> tuple[dict[str, Any] | None, float, str]:
    """The content of a legal plan file or None, the seconds it took, and what is said of it."""
    problem.target  # noqa: B018 - loads it before the clock starts
    begin = time.perf_counter()
    try:
        content = plan(problem).to_json()
    except InfeasibleError as error:
        return None, 0.0, f"left out, {cleaned(str(error))}"
    spent = time.perf_counter() - begin
    verdict = judged(problem, content)
    if verdict.state == ILLEGAL:
        return None, spent, f"left out, {verdict.reasons[0]}"
    return content, spent, f"score {verdict.score:.4f}"
