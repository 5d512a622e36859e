"""The project's own agents as planners of leaderboard problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parenvs.agents.answer import Answer
from parenvs.agents.exact.pipeline import exact_full
from parenvs.agents.exact.points import even_plan, exact_points
from parenvs.agents.partition_planners import PartitionRequest
from parenvs.agents.planners import PLANNERS, PipelineRequest
from parenvs.agents.trained import STEPS, TRAINED
from parenvs.errors import ParenvsError, did_you_mean
from parenvs.leaderboard.problem import Problem
from parenvs.leaderboard.tasks import Task
from parenvs.partitioning.judge import make_partition_plan
from parenvs.partitioning.space import PartitionSpace
from parenvs.pipeline.cuts import CutSpace
from parenvs.pipeline.points import PlanSpace
from parenvs.plan import PipelinePlan, Plan

Planner = Callable[[Problem], Plan]
"""Makes a plan of a problem, or raises ``InfeasibleError``."""
SECONDS = 60.0
"""Time limit of a search that may not end."""
PROVEN, ONE = "until proven", "one plan a problem"
_PIPELINES: dict[str, tuple[str, str, str]] = {
    "even": (
        "GPipe's rule: equal device groups, cuts that balance seconds; sees neither bytes nor "
        "memory.",
        "https://arxiv.org/abs/1811.06965",
        ONE,
    ),
    "even-points": (
        "Each stage takes an even share of the seconds and devices that are left, as near as the "
        "memory allows.",
        "",
        ONE,
    ),
    "pipedream": (
        "PipeDream's steady-state objective, by dynamic programming, with as many stages as asked.",
        "https://arxiv.org/abs/1806.03377",
        ONE,
    ),
    "random": (
        "The best of many random episodes of PipelineCut-v0.",
        "",
        "{steps:,} environment steps a problem",
    ),
    "beam": (
        "Beam search over 128 points of the chain, stage by stage; beginnings are compared by how "
        "short the rest may get.",
        "",
        ONE,
    ),
    "pretrained": (
        "A network that learned on generated problems draws some plans; the shortest counts.",
        "",
        "inference: some plans drawn, no search",
    ),
    "pretrained-refined": (
        "As pretrained, then a small exact search around the plan.",
        "",
        "inference, then a search with a limit",
    ),
    "exact": ("Proven optimum of the candidates of PipelineCut-v0, by label search.", "", PROVEN),
    "exact-points": (
        "Proven optimum over 128 points of the chain and all device cuts, as PipelinePlan-v0 has "
        "them.",
        "",
        PROVEN,
    ),
    "exact-full": (
        "Label search over all pivots and all device cuts, from the optimum over 128 points on.",
        "",
        f"until proven, at most {2 * SECONDS:.0f} s a problem",
    ),
}
"""Agent -> method, link, search budget; those that ``parenvs plan`` does not know are left out."""
_PARTITIONS: dict[str, tuple[str, str, str]] = {
    "replicate": ("Every device does everything: the trivial plan.", "", ONE),
    "data-parallel": ("The first dimension of every batch input, nothing else.", "", ONE),
    "expert": (
        "Megatron's splits by the names of a transformer's variables; the dense layers of a CNN.",
        "https://arxiv.org/abs/1909.08053",
        ONE,
    ),
    "ones": ("The constant action 1: whatever is asked for, in the environment's order.", "", ONE),
    "greedy": (
        "GWMIN: the class of largest worth / (open rivals + 1) until none is left.",
        "",
        ONE,
    ),
    "random": ("The best of many random episodes.", "", "{steps:,} environment steps a problem"),
    "exact": ("Weighted independent set on the conflicts of the classes, by MILP.", "", PROVEN),
}
_LEARNERS = {
    "ppo": "MaskablePPO",
    "rainbow": "Rainbow",
    "rainbow-paper": "Rainbow with the settings of arXiv 2007.04069",
}
_TRAINED: dict[str, tuple[str, str, str]] = {
    agent: (
        f"{_LEARNERS.get(agent, agent)}, trained on each problem by itself; its best plan.",
        "",
        "{steps:,} environment steps a problem",
    )
    for agent in TRAINED
}
_POINTS = ("even-points", "exact-points", "exact-full")
"""Agents of pipelines that are made here."""
_GENERAL = ("generated", "plan-validation")


def agents(task: Task) -> dict[str, tuple[str, str, str]]:
    """Every agent of a task -> method, link, search budget (with ``{steps}``)."""
    if task.kind == PipelinePlan.task:
        known = {*_POINTS, *PLANNERS}
        return {**{k: words for k, words in _PIPELINES.items() if k in known}, **_TRAINED}
    named = dict(_PARTITIONS)
    if (task.kind, task.reward) == ("operator-partition", "paper"):
        del named["data-parallel"]  # it decides no variable
    if task.kind == "data-parallel":
        del named["expert"]  # it decides no input
    return {**named, **_TRAINED}


def ready(task: Task) -> tuple[str, ...]:
    """The agents of a task that need not be trained first."""
    return tuple(agent for agent in agents(task) if agent not in TRAINED)


def learned_from(agent: str) -> tuple[str, ...]:
    """What an agent learned from, in the words of ``Entry.trained_on``; nothing if it did not."""
    if agent in TRAINED:
        return ("the problem itself",)
    return _GENERAL if agent.startswith("pretrained") else ()


def planner(task: Task, agent: str, seed: int = 0, steps: int = STEPS) -> Planner:
    """An agent as a planner of the task's problems.

    Args:
        task: the task.
        agent: one of ``agents(task)``.
        seed: seed of everything random.
        steps: environment steps a problem of agents that draw or learn.

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
    points = {"even-points": _even_points, "exact-points": _exact_points, "exact-full": shortest}
    if agent in points:
        return lambda problem: _cut(problem, points[agent](problem))
    return lambda problem: _cut(problem, _pipeline_request(problem, seed, steps).run(agent))


def shortest(problem: Problem, seconds: float = SECONDS) -> Answer:
    """The best pipeline plan that the project can find, with what is proven of it.

    Args:
        problem: a problem of pipelines.
        seconds: time limit of each of the two searches.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    space = PlanSpace.build(problem.pipeline, problem.stages)
    points = exact_points(space, time_limit=seconds)
    return exact_full(problem.pipeline, problem.stages, points, time_limit=seconds)


def _even_points(problem: Problem) -> Answer:
    space = PlanSpace.build(problem.pipeline, problem.stages)
    cuts, device_cuts = space.plan(*even_plan(space))
    return Answer(cuts, device_cuts, float(problem.pipeline.length(cuts, device_cuts)), "even")


def _exact_points(problem: Problem) -> Answer:
    return exact_points(PlanSpace.build(problem.pipeline, problem.stages))


def _cut(problem: Problem, answer: Answer) -> Plan:
    return problem.pipeline_plan(answer.cuts.tolist(), answer.device_cuts.tolist())


def _pipeline_request(problem: Problem, seed: int, steps: int) -> PipelineRequest:
    space = CutSpace.build(problem.pipeline, problem.stages)
    return PipelineRequest(_env_kwargs(problem), seed, steps, space=space)


def _partition(problem: Problem, agent: str, seed: int, steps: int) -> Plan:
    linkage = problem.kind == "operator-partition"
    space = PartitionSpace.of(problem.partitioning, problem.kind, problem.reward, linkage)
    answer = PartitionRequest(_env_kwargs(problem), seed, steps, space=space).run(agent)
    return make_partition_plan(
        problem.partitioning, answer.chosen, problem.kind, problem.reward, problem.instance
    )


def _env_kwargs(problem: Problem) -> dict[str, Any]:
    """The problem as arguments of its environment, for agents that train."""
    kwargs = {"instance": problem.instance, **problem.settings}
    return {**kwargs, "reward": problem.reward} if problem.reward else kwargs
