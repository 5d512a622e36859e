"""Makes entries: of any planner, the project's agents, trained runs, and scripts."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parenvs.agents.learning.options import LEARNED, TRAINED
from parenvs.core.leaderboard import ONE, Description, Planner, TaskProblem, kind_of
from parenvs.core.registry import TASKS
from parenvs.core.request import STEPS
from parenvs.errors import NO_PLAN, ParenvsError, need_extra, refuse_unknown
from parenvs.leaderboard.check import PlanState, judged
from parenvs.leaderboard.entry import Entry, cleaned
from parenvs.leaderboard.methods import PLAIN, digest, run
from parenvs.leaderboard.tasks import Task, tasks
from parenvs.machine import commit, cores, counted, processor

_FITTED_ON = {"mean-chain": ("other: the mean chain of elastic-train",)}


def ready(task: Task) -> tuple[str, ...]:
    """Return the agents of a task that need not be trained first."""
    return tuple(agent for agent in kind_of(task.name).agents if agent not in TRAINED)


def learned_from(agent: str) -> tuple[str, ...]:
    """Return what an agent learned from, as ``Entry.trained_on``; empty if it did not learn."""
    if agent in TRAINED:
        return ("the problem itself",)
    return _FITTED_ON.get(agent, ("generated",) if agent == LEARNED else ())


def check_agent(task: Task, agent: str) -> None:
    """Raise an error unless the agent enters the task; the line names those that do."""
    refuse_unknown(f"task {task.name!r} has no agent", agent, kind_of(task.name).agents)


def submission(
    task: str, plan: Planner, *, say: Callable[[str], None] = lambda _: None, **fields: Any
) -> Entry:
    """Plan every problem of a task, and make an entry of the plans.

    A problem on which ``plan`` raises ``InfeasibleError``, or whose plan is illegal, is left out:
    it scores as the trivial plan.

    Args:
        task: name of the task.
        plan: takes a ``TaskProblem`` and returns a plan, which
            ``problem.pipeline_plan(cuts, device_cuts)``, ``problem.partition_plan(partition)`` or
            ``problem.target.plan(...)`` makes.
        say: takes a line of text for each problem.
        **fields: fields of ``Entry``: ``entry``, ``authors`` and ``method``, and others that have
            defaults; ``hardware`` is this processor by default.

    Raises:
        ParenvsError: there is no such task, or no problem got a legal plan.
    """
    if kind_of(task).policies is not None:
        raise ParenvsError(f"task {task!r} takes no plans; see leaderboard/README.md")
    plans: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for problem in tasks().task(task).problems.values():
        content, elapsed, outcome = _plan_problem(problem, plan)
        if content is not None:
            plans[problem.name] = content
            seconds[problem.name] = float(f"{elapsed:.3g}")
        say(f"{task} {fields['entry']} {problem.name}: {outcome}")
    if not plans:
        raise ParenvsError(f"{task}: no problem got a legal plan; there is nothing to enter")
    return _entry(task, plans=plans, seconds=seconds, **fields)


def _entry(task: str, hardware: str | None = None, **fields: Any) -> Entry:
    for key in ("authors", "trained_on", "seeds"):
        fields[key] = tuple(fields.get(key, ()))
    fields.setdefault("learned", bool(fields["trained_on"]))
    hardware = this_hardware() if hardware is None else hardware
    return Entry(task=task, hardware=hardware, commit=commit(), **fields)


def script_submission(
    task: str,
    script: Path,
    *,
    entry: str | None = None,
    trained_on: Sequence[str] = (),
    **common: Any,
) -> Entry:
    """Run one's own script on the problems of a task that a seed generates, and make an entry.

    The entry's method is the docstring of the script (``parenvs.leaderboard.methods``), its name by
    default the script's; the other arguments are those of ``submission``.

    Raises:
        ParenvsError: the task takes no scripts, the script fails, or it makes no legal plan.
    """
    sha256 = digest(script)
    if kind_of(tasks().task(task).name).draw is None:
        raise ParenvsError(f"task {task!r} takes plans, not scripts")
    tree = ast.parse(script.read_text(encoding="utf-8"))
    summary, *_ = (ast.get_docstring(tree) or "").split("\n\n")
    return submission(
        task,
        lambda problem: run(task, problem, script, PLAIN)[0],
        entry=entry or script.stem,
        method=" ".join(summary.split()) or f"The script {script.name}.",
        trained_on=trained_on,
        search_budget=ONE,
        script=sha256,
        **common,
    )


def run_submission(
    task: str, run: Path, *, entry: str | None = None, trust: bool = False, **common: Any
) -> Entry:
    """Make an entry of the best actions of an agent that ``parenvs train`` trained.

    ``run`` is the run's folder, whose name is the entry's by default; ``trust`` allows running the
    file of the Python function that it was trained on. The others are those of ``submission``.

    Raises:
        ParenvsError: there is no such task or run, its environment is of another task, or no
            problem got a legal plan.
    """
    with need_extra("agents", "trained agents"):
        from parenvs.agents.learning.play import one_thread
        from parenvs.agents.learning.trainer import load_config, player, rules_of
    kind = TASKS[tasks().task(task).kind]
    config, policy = load_config(run, trust), player(run, trust)
    env_id, rules = policy.env_id, rules_of(config)
    if env_id not in kind.envs:
        raise ParenvsError(
            f"{run}: trained in {config.env_id}, which is no environment of task {task}; those "
            f"are {', '.join(kind.envs)}"
        )
    where = ", ".join(f"{k} {x}" for k, x in config.env_kwargs.items() if k not in rules)
    settings = {"agent": config.agent, "environment": env_id, "steps": config.steps}
    with one_thread():
        return submission(
            task,
            lambda problem: policy.plan(problem.target, rules),
            entry=entry or run.resolve().name.lower(),
            method=f"The best actions of {config.agent}, trained by parenvs train for "
            f"{config.steps:,} steps in {env_id}.",
            trained_on=(f"other: {env_id} {where}".strip()[:200],),
            seeds=(config.seed,),
            search_budget=ONE,
            settings={**settings, "seed": config.seed},
            **common,
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

    ``agent`` is one of the task's ``agents``, or, where entries are policies, the path of a trained
    agent, ``.npz``. ``steps`` are environment steps per problem. The others are those of
    ``submission``.

    Raises:
        ParenvsError: there is no such task or agent, or an extra is missing.
    """
    known_task, kind = tasks().task(task), kind_of(task)
    policy = None
    if kind.policies is not None and agent.endswith(".npz"):
        policy, method, trained_on = kind.policies.of_file(Path(agent))
        description = Description(method, "", ONE, seeded=True)
    else:
        check_agent(known_task, agent)
        description, trained_on = kind.agents[agent], learned_from(agent)
        policy = None if kind.policy is None else kind.policy(agent)
    settings: dict[str, Any] = {"agent": agent if policy is None else Path(agent).name}
    settings |= {"seed": seed} if description.seeded else {}
    if policy is None and "{steps" in description.search_budget:
        settings["steps"] = steps
    fields: dict[str, Any] = {
        "entry": entry or Path(agent).stem,
        "authors": authors,
        "method": description.method,
        "trained_on": trained_on,
        "seeds": (seed,) if description.seeded else (),
        "search_budget": description.search_budget.format(steps=steps),
        "hardware": hardware,
        "link": description.link,
        "settings": settings,
    }
    if policy is not None:
        say(f"{task} {fields['entry']}: {policy['kind']}")
        return _entry(task, policy=policy, **fields)
    assert kind.planner is not None  # a task without one takes policies, above
    return submission(task, kind.planner(agent, seed, steps), say=say, **fields)


def this_hardware() -> str:
    """Return processor and number of cores of this machine."""
    return cleaned(f"{processor()}, {counted(cores())}", 200)


def _plan_problem(problem: TaskProblem, plan: Planner) -> tuple[dict[str, Any] | None, float, str]:
    missing = problem.missing()
    if missing:
        return None, 0.0, f"left out, {missing}"
    problem.target  # noqa: B018 - it loads the graph before the clock starts
    begin = time.perf_counter()
    try:
        answer: Any = plan(problem)
        content = answer.to_json() if hasattr(answer, "to_json") else answer
    except NO_PLAN as error:
        return None, 0.0, f"left out, {cleaned(str(error))}"
    spent = time.perf_counter() - begin
    if content is None:
        return None, spent, "left out"
    verdict = judged(problem, content)
    if verdict.state == PlanState.ILLEGAL:
        return None, spent, f"left out, {verdict.reasons[0]}"
    return content, spent, f"score {verdict.score:.4f}"
