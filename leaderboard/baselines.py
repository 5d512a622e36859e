"""The project's own agents as planners of leaderboard problems."""

from __future__ import annotations

from collections.abc import Callable

from parenvs.agents.answer import Answer, PipelineAnswer
from parenvs.agents.exact.pipeline import exact_full
from parenvs.agents.exact.points import even_plan, exact_points
from parenvs.agents.names import STEPS, TRAINED
from parenvs.agents.planners import solve
from parenvs.errors import ParenvsError, did_you_mean
from parenvs.leaderboard.problem import Problem
from parenvs.leaderboard.tasks import Task
from parenvs.pipeline.points import PointSpace
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
_PLANNERS = {"exact": "exact-pruned"}
"""Id of an entry -> the planner that makes it, where the two differ: entries keep their ids."""
_GENERAL = ("generated", "plan-validation")


def agents(task: Task) -> dict[str, tuple[str, str, str]]:
    """Every agent of a task -> method, link, search budget (with ``{steps}``)."""
    if task.kind == PipelinePlan.task:
        return {**_PIPELINES, **_TRAINED}
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
    made_here = {"even-points": _even_points, "exact-full": shortest}
    if agent in made_here:
        return lambda problem: _plan(problem, made_here[agent](problem))
    name = _PLANNERS.get(agent, agent) if task.kind == PipelinePlan.task else agent
    return lambda problem: _plan(problem, solve(problem.target, name, seed=seed, steps=steps))


def shortest(problem: Problem, seconds: float = SECONDS) -> PipelineAnswer:
    """The best pipeline plan that the project can find, with what is proven of it.

    Args:
        problem: a problem of pipelines.
        seconds: time limit of each of the two searches.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    points = exact_points(PointSpace.build(problem.pipeline), time_limit=seconds)
    return exact_full(problem.pipeline, points, time_limit=seconds)


def _even_points(problem: Problem) -> PipelineAnswer:
    space = PointSpace.build(problem.pipeline)
    cuts, device_cuts = space.plan(*even_plan(space))
    length = float(problem.pipeline.length(cuts, device_cuts))
    return PipelineAnswer(problem.pipeline, cuts, device_cuts, length, method="even-points")


def _plan(problem: Problem, answer: Answer) -> Plan:
    if isinstance(answer, PipelineAnswer):
        return problem.pipeline_plan(answer.cuts.tolist(), answer.device_cuts.tolist())
    return answer.plan
