"""The project's own agents as planners of leaderboard tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from parenvs.agents.answer import Answer, PipelineAnswer
from parenvs.agents.exact.pipeline import exact_full
from parenvs.agents.exact.points import even_plan, exact_points
from parenvs.agents.names import STEPS, TRAINED
from parenvs.agents.planners import solve
from parenvs.errors import ParenvsError, did_you_mean
from parenvs.leaderboard.problem import TaskProblem
from parenvs.leaderboard.tasks import Task
from parenvs.pipeline.points import PointSpace
from parenvs.plan import PipelinePlan, Plan

Planner = Callable[[TaskProblem], Plan]
"""Makes a plan of a problem, or raises ``InfeasibleError``."""


class Description(NamedTuple):
    """An agent in the words of an ``Entry``."""

    method: str
    link: str
    search_budget: str  # may hold ``{steps}``


SECONDS = 60.0
"""Time limit of a search that need not end by itself."""
PROVEN, ONE = "until proven", "one plan a problem"
"""Search budgets."""
_PIPELINE_AGENTS: dict[str, Description] = {
    "even": Description(
        "GPipe's rule: equal device groups, cuts that balance seconds; sees neither bytes nor "
        "memory.",
        "https://arxiv.org/abs/1811.06965",
        ONE,
    ),
    "even-points": Description(
        "Each stage takes an even share of the seconds and devices that are left, as near as the "
        "memory allows.",
        "",
        ONE,
    ),
    "pipedream": Description(
        "PipeDream's steady-state objective, by dynamic programming, with as many stages as asked.",
        "https://arxiv.org/abs/1806.03377",
        ONE,
    ),
    "random": Description(
        "The best of many random episodes of PipelineCut-v0.",
        "",
        "{steps:,} environment steps a problem",
    ),
    "beam": Description(
        "Beam search over 128 points of the chain, stage by stage; beginnings are compared by how "
        "short the rest may get.",
        "",
        ONE,
    ),
    "pretrained": Description(
        "A network that learned on generated problems draws some plans; the shortest counts.",
        "",
        "inference: some plans drawn, no search",
    ),
    "pretrained-refined": Description(
        "As pretrained, then a small exact search around the plan.",
        "",
        "inference, then a search with a limit",
    ),
    "exact": Description(
        "Proven optimum of the candidates of PipelineCut-v0, by label search.", "", PROVEN
    ),
    "exact-points": Description(
        "Proven optimum over 128 points of the chain and all device cuts, as PipelinePlan-v0 has "
        "them.",
        "",
        PROVEN,
    ),
    "exact-full": Description(
        "Label search over all pivots and all device cuts, from the optimum over 128 points on.",
        "",
        f"until proven, at most {2 * SECONDS:.0f} s a problem",
    ),
}
"""Agents of pipelines; those that ``parenvs plan`` does not have are left out."""
_PARTITION_AGENTS: dict[str, Description] = {
    "replicate": Description("Every device does everything: the trivial plan.", "", ONE),
    "data-parallel": Description(
        "The first dimension of every batch input, nothing else.", "", ONE
    ),
    "expert": Description(
        "Megatron's splits of the blocks found in a transformer's data flow; a CNN's dense layers.",
        "https://arxiv.org/abs/1909.08053",
        ONE,
    ),
    "ones": Description(
        "The constant action 1: whatever is asked for, in the environment's order.", "", ONE
    ),
    "greedy": Description(
        "GWMIN: the class of largest worth / (open rivals + 1) until none is left.",
        "",
        ONE,
    ),
    "random": Description(
        "The best of many random episodes.", "", "{steps:,} environment steps a problem"
    ),
    "exact": Description(
        "Weighted independent set on the conflicts of the classes, by MILP.", "", PROVEN
    ),
}
_LEARNERS = {
    "ppo": "MaskablePPO",
    "rainbow": "Rainbow",
    "rainbow-paper": "Rainbow with the settings of arXiv 2007.04069",
}
_TRAINED_AGENTS: dict[str, Description] = {
    agent: Description(
        f"{_LEARNERS.get(agent, agent)}, trained on each problem by itself; its best plan.",
        "",
        "{steps:,} environment steps a problem",
    )
    for agent in TRAINED
}
_PLANNERS = {"exact": "exact-pruned"}
"""Id of an entry -> the planner that makes it, where the two differ: entries keep their ids."""
_PRETRAINED_ON = ("generated", "plan-validation")


def agents(task: Task) -> dict[str, Description]:
    """Return every agent of a task with its description."""
    if task.kind == PipelinePlan.task:
        return {**_PIPELINE_AGENTS, **_TRAINED_AGENTS}
    ready_agents = dict(_PARTITION_AGENTS)
    if (task.kind, task.reward) == ("operator-partition", "paper"):
        del ready_agents["data-parallel"]  # it decides no variable
    if task.kind == "data-parallel":
        del ready_agents["expert"]  # it decides no input
    return {**ready_agents, **_TRAINED_AGENTS}


def ready(task: Task) -> tuple[str, ...]:
    """Return the agents of a task that need not be trained first."""
    return tuple(agent for agent in agents(task) if agent not in TRAINED)


def learned_from(agent: str) -> tuple[str, ...]:
    """Return what an agent learned from, as ``Entry.trained_on``; empty if it did not learn."""
    if agent in TRAINED:
        return ("the problem itself",)
    return _PRETRAINED_ON if agent.startswith("pretrained") else ()


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
        raise ParenvsError(
            f"task {task.name!r} has no agent {agent!r}{did_you_mean(agent, known)}; "
            f"known: {', '.join(known)}"
        )
    made_here = {"even-points": _even_points, "exact-full": shortest}
    if agent in made_here:
        return lambda problem: _plan(problem, made_here[agent](problem))
    name = _PLANNERS.get(agent, agent) if task.kind == PipelinePlan.task else agent
    return lambda problem: _plan(problem, solve(problem.target, name, seed=seed, steps=steps))


def shortest(problem: TaskProblem, seconds: float = SECONDS) -> PipelineAnswer:
    """Search for the shortest pipeline plan, and say whether it is proven optimal.

    Args:
        problem: a problem of pipelines.
        seconds: time limit of each of the two searches.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    points = exact_points(PointSpace.build(problem.pipeline), time_limit=seconds)
    return exact_full(problem.pipeline, points, time_limit=seconds)


def _even_points(problem: TaskProblem) -> PipelineAnswer:
    space = PointSpace.build(problem.pipeline)
    cuts, device_cuts = space.plan(*even_plan(space))
    length = float(problem.pipeline.length(cuts, device_cuts))
    return PipelineAnswer(problem.pipeline, cuts, device_cuts, length, method="even-points")


def _plan(problem: TaskProblem, answer: Answer) -> Plan:
    if isinstance(answer, PipelineAnswer):
        return problem.pipeline_plan(answer.cuts.tolist(), answer.device_cuts.tolist())
    return answer.plan
