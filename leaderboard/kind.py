"""``TaskKind``: what a task is, which problems it has, which agents enter it, what is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parenvs.agents.names import TRAINED
from parenvs.core.plan import Plan
from parenvs.leaderboard.problem import TaskProblem

SECONDS = 60.0
"""Time limit of a search that need not end by itself."""
PROVEN, ONE = "until proven", "one plan a problem"
"""Search budgets."""
Instances = Collection[str] | None
"""Names of graphs and problems, or None for all of them."""
Planner = Callable[[Any], Plan]
"""Makes a plan of a ``TaskProblem``, or raises ``InfeasibleError``."""


class Description(NamedTuple):
    """An agent in the words of an ``Entry``.

    Attributes:
        method: what it does.
        link: address of a description, or an empty text.
        search_budget: what it spends on a problem; may hold ``{steps}``.
        seeded: whether its plans depend on the seed.
    """

    method: str
    link: str
    search_budget: str
    seeded: bool = False


_LEARNERS = {
    "ppo": "MaskablePPO",
    "rainbow": "Rainbow",
    "rainbow-paper": "Rainbow with the settings of arXiv 2007.04069",
}
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


class Figure(NamedTuple):
    """A figure of an entry that is shown beside its score, and never ranks.

    Attributes:
        title: header of its column.
        words: what it is, in a sentence.
        of: takes a pair (problem, cost) for each problem, the cost None without a legal plan, and
            returns the figure; None if it has none.
        show: writes it.
        added: whether it is of problems whose files users add.
    """

    title: str
    words: str
    of: Callable[[list[tuple[TaskProblem, float | None]]], float | None]
    show: Callable[[float], str] = "{:.4f}".format
    added: bool = False


def _certified(pairs: list[tuple[TaskProblem, float | None]]) -> float | None:
    """Return the geometric mean of bound / cost."""
    shares = [
        math.log(problem.reference.bound / (problem.trivial if cost is None else cost))
        for problem, cost in pairs
        if not problem.added
    ]
    return math.exp(math.fsum(shares) / len(shares)) if shares else None


CERTIFIED = Figure(
    "certified",
    "geometric mean of proven bound / cost: how near to the optimum an entry is at least",
    _certified,
)
"""The figure of tasks whose references are not all proven."""
BEST_KNOWN = Description(
    "The best plans known when the list was made, by several planners and seeds; tasks.json names "
    "each.",
    "",
    "what the references took",
)
"""The entry of the references' own plans."""


@dataclass(frozen=True)
class TaskKind:
    """All that the leaderboard knows of a task; ``parenvs.leaderboard.kinds`` lists them.

    Attributes:
        title: what is planned, in a sentence.
        kind: task of its plan files.
        cost: the cost of a plan, in words.
        trivial: the trivial plan, in words.
        problem: class of its problems.
        problems: yields the problems without references, those of some instances (None: of all).
        agents: the project's agents that enter it, with descriptions.
        planner: makes a planner of an agent's name, a seed and steps.
        reward: ``"paper"`` or ``"step_time"`` for partitions.
        figures: what is shown beside the score.
        policy: makes the policy of an agent's name, JSON types; None where entries hold plans.
        mean: how the scores of problems make that of the task, ``"geometric"`` or
            ``"arithmetic"``, where scores may be 0.
        scoring: how scores come about, in sentences, where the rules of all tasks do not say it.
    """

    title: str
    kind: str
    cost: str
    trivial: str
    problem: type[TaskProblem]
    problems: Callable[[Instances], Iterator[TaskProblem]]
    agents: Mapping[str, Description]
    planner: Callable[[str, int, int], Planner]
    reward: str = ""
    figures: tuple[Figure, ...] = field(default=())
    policy: Callable[[str], dict[str, Any]] | None = None
    mean: str = "geometric"
    scoring: str = ""

    def fields(self) -> dict[str, str]:
        """Return the fields that stand in ``tasks.json``."""
        names = ("title", "kind", "reward", "cost", "trivial")
        return {name: getattr(self, name) for name in names}
