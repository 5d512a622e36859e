"""The project's own agents as planners of leaderboard tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from parenvs.agents.answer import Answer
from parenvs.agents.exact.pipeline import exact_full
from parenvs.agents.exact.points import even_plan, exact_points
from parenvs.agents.partition_planners import PartitionRequest
from parenvs.agents.planners import PLANNERS, PipelineRequest
from parenvs.agents.request import STEPS, TRAINED
from parenvs.errors import ParenvsError, did_you_mean
from parenvs.leaderboard.problem import TaskProblem
from parenvs.leaderboard.tasks import Task
from parenvs.partitioning.judge import make_partition_plan
from parenvs.partitioning.space import PartitionSpace
from parenvs.pipeline.cuts import CutSpace
from parenvs.pipeline.points import PlanSpace
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
        "Megatron's splits by the names of a transformer's variables; the dense layers of a CNN.",
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
_POINT_AGENTS = ("even-points", "exact-points", "exact-full")
"""Agents of pipelines that this module makes."""
_PRETRAINED_ON = ("generated", "plan-validation")


def agents(task: Task) -> dict[str, Description]:
    """Return every agent of a task with its description."""
    if task.kind == PipelinePlan.task:
        known = {*_POINT_AGENTS, *PLANNERS}
        ready_agents = {name: x for name, x in _PIPELINE_AGENTS.items() if name in known}
        return {**ready_agents, **_TRAINED_AGENTS}
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
    if task.kind != PipelinePlan.task:
        return lambda problem: _partition(problem, agent, seed, steps)
    solvers = {"even-points": _even_points, "exact-points": _exact_points, "exact-full": shortest}
    if agent in solvers:
        return lambda problem: _pipeline(problem, solvers[agent](problem))
    return lambda problem: _pipeline(problem, _pipeline_request(problem, seed, steps).run(agent))


def shortest(problem: TaskProblem, seconds: float = SECONDS) -> Answer:
    """Search for the shortest pipeline plan, and say whether it is proven optimal.

    Args:
        problem: a problem of pipelines.
        seconds: time limit of each of the two searches.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    space = PlanSpace.build(problem.pipeline, problem.stages)
    incumbent = exact_points(space, time_limit=seconds)
    return exact_full(problem.pipeline, problem.stages, incumbent, time_limit=seconds)


def _even_points(problem: TaskProblem) -> Answer:
    """Return the even plan over 128 points."""
    space = PlanSpace.build(problem.pipeline, problem.stages)
    cuts, device_cuts = space.plan(*even_plan(space))
    return Answer(cuts, device_cuts, float(problem.pipeline.length(cuts, device_cuts)), "even")


def _exact_points(problem: TaskProblem) -> Answer:
    """Return the optimum over 128 points."""
    return exact_points(PlanSpace.build(problem.pipeline, problem.stages))


def _pipeline(problem: TaskProblem, answer: Answer) -> Plan:
    """Return the plan of an answer."""
    return problem.pipeline_plan(answer.cuts.tolist(), answer.device_cuts.tolist())


def _pipeline_request(problem: TaskProblem, seed: int, steps: int) -> PipelineRequest:
    """Return the problem as a request to the planners of pipelines."""
    space = CutSpace.build(problem.pipeline, problem.stages)
    return PipelineRequest(_env_kwargs(problem), seed, steps, space=space)


def _partition(problem: TaskProblem, agent: str, seed: int, steps: int) -> Plan:
    """Return an agent's plan of a problem of partitions."""
    linkage = problem.kind == "operator-partition"
    space = PartitionSpace.of(problem.partitioning, problem.kind, problem.reward, linkage)
    answer = PartitionRequest(_env_kwargs(problem), seed, steps, space=space).run(agent)
    return make_partition_plan(
        problem.partitioning, answer.chosen, problem.kind, problem.reward, problem.instance
    )


def _env_kwargs(problem: TaskProblem) -> dict[str, Any]:
    """Return the problem as arguments of its environment, for agents that train."""
    kwargs = {"instance": problem.instance, **problem.settings}
    return {**kwargs, "reward": problem.reward} if problem.reward else kwargs
