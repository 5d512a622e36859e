"""Makes entries of any planner, and of the project's own agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parenvs.core.leaderboard import ONE, Description, Planner, TaskProblem, kind_of
from parenvs.core.registry import TASKS
from parenvs.core.request import STEPS
from parenvs.errors import NO_PLAN, ParenvsError, need_extra
from parenvs.leaderboard.baselines import agents, learned_from, planner
from parenvs.leaderboard.entry import Entry, holds
from parenvs.leaderboard.reading import cleaned
from parenvs.leaderboard.tasks import tasks
from parenvs.leaderboard.verdicts import PlanState, judged
from parenvs.machine import commit, cores, counted, processor


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
    settings: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Entry:
    """Plan every problem of a task, and make an entry of the plans.

    A problem on which ``plan`` raises ``InfeasibleError``, or whose plan is illegal, is left out:
    it scores as the trivial plan.

    Args:
        task: name of the task.
        plan: takes a ``TaskProblem`` and returns a plan, which
            ``problem.pipeline_plan(cuts, device_cuts)``, ``problem.partition_plan(partition)`` or
            ``problem.target.plan(...)`` makes.
        entry: name of the entry: lower-case letters, digits, dots, hyphens.
        authors: names of the authors.
        method: what ``plan`` does, in a sentence or two.
        learned: whether any part of it was trained.
        trained_on: what it was trained on; see ``parenvs.leaderboard.entry.TRAINED_ON``.
        seeds: seeds of all random numbers.
        search_budget: time or steps that are spent on each problem, in words.
        hardware: machine that it runs on (default: this processor).
        link: address of a description.
        settings: name -> number or text: what else makes the plans, for whoever makes them again.
        say: takes a line of text for each problem.

    Raises:
        ParenvsError: there is no such task, or no problem got a legal plan.
    """
    if holds(task) != "plans":
        raise ParenvsError(f"task {task!r} takes no plans; see leaderboard/README.md")
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
        hardware=this_hardware() if hardware is None else hardware,
        link=link,
        seconds=seconds,
        commit=commit(),
        settings=dict(settings or {}),
    )


def run_submission(
    task: str,
    run: Path,
    *,
    entry: str | None = None,
    authors: Sequence[str] = ("parenvs",),
    hardware: str | None = None,
    trust: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Entry:
    """Make an entry of the best actions of an agent that ``parenvs train`` trained.

    Args:
        task: name of the task.
        run: the run's folder.
        entry: name of the entry (default: the folder's).
        authors: names of the authors.
        hardware: machine that it runs on (default: this processor).
        trust: whether the file of a Python function that it was trained on may be run.
        say: takes a line of text for each problem.

    Raises:
        ParenvsError: there is no such task or run, its environment is of another task, or no
            problem got a legal plan.
    """
    with need_extra("agents", "trained agents"):
        from parenvs.agents.learning.play import one_thread
        from parenvs.agents.learning.trainer import load_config, player, rules_of
    kind = TASKS[tasks().task(task).kind]
    config, policy = load_config(run, trust), player(run, trust)
    if policy.env_id not in kind.envs:
        raise ParenvsError(
            f"{run}: trained in {config.env_id}, which is no environment of task {task}; those "
            f"are {', '.join(kind.envs)}"
        )
    rules = rules_of(config)
    named = {key: value for key, value in config.env_kwargs.items() if key not in rules}
    where = ", ".join(f"{key} {value}" for key, value in named.items())
    sources = f"other: {policy.env_id} {where}".strip()
    with one_thread():
        return submission(
            task,
            lambda problem: policy.plan(problem.target, rules),
            entry=entry or run.resolve().name.lower(),
            authors=authors,
            method=f"The best actions of {config.agent}, trained by parenvs train for "
            f"{config.steps:,} steps in {policy.env_id}.",
            learned=True,
            trained_on=(sources[:200],),
            seeds=(config.seed,),
            search_budget=ONE,
            hardware=hardware,
            settings={
                "agent": config.agent,
                "environment": policy.env_id,
                "steps": config.steps,
                "seed": config.seed,
            },
            say=say,
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
    """Make an entry of one of the project's agents.

    Args:
        task: name of the task.
        agent: one of ``parenvs.leaderboard.baselines.agents``; where entries are policies also
            the path of a trained agent, ``.npz``.
        entry: name of the entry (default: the agent's).
        authors: names of the authors.
        seed: seed of all random numbers.
        steps: environment steps for each problem, for agents that draw or learn.
        hardware: machine that it runs on (default: this processor).
        say: takes a line of text for each problem.

    Raises:
        ParenvsError: there is no such task or agent, or an extra is missing.
    """
    known_task, kind = tasks().task(task), kind_of(task)
    known = agents(known_task)
    policy = None
    if kind.policies is not None and agent.endswith(".npz"):
        policy, method, trained_on = kind.policies.of_file(Path(agent))
        description = Description(method, "", ONE, seeded=True)
    else:
        if agent not in known:
            planner(known_task, agent)  # raises, and says which there are
        description, trained_on = known[agent], learned_from(agent)
        policy = None if kind.policy is None else kind.policy(agent)
    if policy is not None:
        made = Entry(
            task=task,
            entry=entry or Path(agent).stem,
            authors=tuple(authors),
            method=description.method,
            learned=bool(trained_on),
            trained_on=trained_on,
            seeds=(seed,) if description.seeded else (),
            search_budget=description.search_budget,
            hardware=this_hardware() if hardware is None else hardware,
            link=description.link,
            policy=policy,
            commit=commit(),
            settings={"agent": Path(agent).name, **({"seed": seed} if description.seeded else {})},
        )
        say(f"{task} {made.entry}: {made.policy['kind'] if made.policy else ''}")
        return made
    plan = planner(known_task, agent, seed, steps)
    settings: dict[str, Any] = {"agent": agent}
    if description.seeded:
        settings["seed"] = seed
    if "{steps" in description.search_budget:
        settings["steps"] = steps
    return submission(
        task,
        plan,
        entry=entry or agent,
        authors=authors,
        method=description.method,
        learned=bool(trained_on),
        trained_on=trained_on,
        seeds=(seed,) if description.seeded else (),
        search_budget=description.search_budget.format(steps=steps),
        hardware=hardware,
        link=description.link,
        settings=settings,
        say=say,
    )


def this_hardware() -> str:
    """Return processor and number of cores of this machine."""
    return cleaned(f"{processor()}, {counted(cores())}", 200)


def _planned(problem: TaskProblem, plan: Planner) -> tuple[dict[str, Any] | None, float, str]:
    """Plan a problem.

    Returns:
        Content of the plan file, None without a legal plan; seconds; and a few words to print.
    """
    missing = problem.missing()
    if missing:
        return None, 0.0, f"left out, {missing}"
    problem.target  # noqa: B018 - it loads the graph before the clock starts
    begin = time.perf_counter()
    try:
        content = plan(problem).to_json()
    except NO_PLAN as error:
        return None, 0.0, f"left out, {cleaned(str(error))}"
    spent = time.perf_counter() - begin
    verdict = judged(problem, content)
    if verdict.state == PlanState.ILLEGAL:
        return None, spent, f"left out, {verdict.reasons[0]}"
    return content, spent, f"score {verdict.score:.4f}"
