"""Orders of micro-batches: task ``packed-order``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from parenvs.agents.order import exact_order, heuristics
from parenvs.agents.order.references import ORDER_REFERENCES
from parenvs.core.leaderboard import (
    BEST_KNOWN,
    CERTIFIED,
    ONE,
    OPTIMAL,
    UNKNOWN,
    Description,
    DrawnProblem,
    Instances,
    Planner,
    Reference,
    TaskKind,
    TaskProblem,
    drawn_kind,
    reference_of,
    reference_of_row,
)
from parenvs.core.plan import Answer
from parenvs.core.request import Budget
from parenvs.datasets.order.drawing import TIERS, draw_ordering
from parenvs.datasets.references import ORDERS, references
from parenvs.tasks.order.load import load_ordering
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order
from parenvs.view.words import duration

SET = "order-test"
"""The set that the problems are of."""
METHOD, BOUNDED_BY = "branch and bound", "the program of all paths, open nodes (exact_order)"
"""Of references."""
FIRST = 5
"""Problems of each tier: the first ones of the set."""
PROGRAMS = 500
"""Linear programs of the search that gives drawn problems their reference; about a second."""
EVALUATIONS = 600
"""Orders that searches judge."""
EXACT_SECONDS = 6.0
"""Time limit of branch and bound."""


class OrderProblem(TaskProblem):
    """Micro-batches to be ordered; settings: tier, stages, micro_batches."""

    plan_class = OrderPlan
    decisions = ("order",)
    page = "parenvs.tasks.order.view.page:page"

    def empty_plan(self) -> OrderPlan:
        """See ``TaskProblem.empty_plan``."""
        return OrderPlan(self.instance, self.fingerprint, ())

    def trivial_cost(self) -> float:
        """See ``TaskProblem.trivial_cost``: one pass at a time."""
        return float(self.target.work.sum())

    def solved(self, seconds: float) -> Reference:
        """See ``TaskProblem.solved``: it is read from the shipped references."""
        row = references(ORDERS)[self.instance]
        return reference_of_row(row, METHOD, BOUNDED_BY, ORDER_REFERENCES.command)

    def words(self, cost: float) -> str:
        """See ``TaskProblem.words``."""
        return duration(cost)

    @property
    def place(self) -> str:
        """Instance and sizes, in words."""
        settings = self.settings
        sizes = f"{settings['micro_batches']} micro-batches on {settings['stages']} stages"
        return f"{self.instance}, {sizes}"


def problems(instances: Instances = None) -> Iterator[OrderProblem]:
    """Yield the problems without references."""
    for tier, sizes in TIERS.items():
        for number in range(FIRST):
            name = f"{SET}/{tier}-{number:03d}"
            if instances is not None and name not in instances:
                continue
            settings = {
                "tier": tier, "stages": sizes.stages, "micro_batches": sizes.micro_batches
            }  # fmt: skip
            fingerprint = load_ordering(name).fingerprint
            yield OrderProblem(name, OrderPlan.task, "", name, fingerprint, settings, UNKNOWN, 0.0)


_RULES = {
    "as-drawn": "The order in which the micro-batches are given.",
    "ascending": "The lightest micro-batch first.",
    "descending": "The heaviest micro-batch first.",
    "pyramid": "Light micro-batches at both ends, the heaviest in the middle.",
}
_AGENTS = {
    **{rule: Description(words, "", ONE) for rule, words in _RULES.items()},
    "neh": Description(
        "NEH (Omega 11, 1983): the heaviest first, each where those so far take least.",
        "",
        "M (M + 1) / 2 - 1 judged orders, most of them partial",
    ),
    "random": Description(
        "The best of random orders.", "", f"{EVALUATIONS} judged orders a problem", True
    ),
    "swap": Description(
        "Swaps and insertions from the better of NEH's order and the pyramid, kept if the step "
        "gets no longer.",
        "",
        f"{EVALUATIONS} judged orders a problem beside those of NEH",
        True,
    ),
    "exact": Description(
        "Branch and bound on positions of the heaviest by a linear program, local searches between;"
        " where time ends it, the best so far.",
        "",
        f"at most {EXACT_SECONDS:.0f} s a problem",
        True,
    ),
    "best-known": BEST_KNOWN,
}
_MAKERS: dict[str, Callable[[Order, int], Answer]] = {
    "neh": lambda problem, seed: heuristics.neh(problem),
    "random": lambda problem, seed: heuristics.random_order(
        problem, EVALUATIONS, np.random.default_rng(seed)
    ),
    "swap": lambda problem, seed: heuristics.swap(
        problem, Budget(EVALUATIONS), np.random.default_rng(seed)
    ),
    "exact": lambda problem, seed: exact_order(problem, EXACT_SECONDS, seed),
    **{
        rule: partial(lambda rule, problem, seed: heuristics.by_rule(problem, rule), rule)
        for rule in _RULES
    },
}


def planner(agent: str, seed: int, steps: int) -> Planner:
    """Return an agent as a planner of the problems; see ``TaskKind.planner``."""

    def plan(problem: OrderProblem) -> OrderPlan:
        target: Order = problem.target
        if agent == "best-known":
            return target.plan(references(ORDERS)[problem.instance]["order"])
        return _MAKERS[agent](target, seed).plan

    return plan


class DrawnOrder(DrawnProblem, OrderProblem):
    """Micro-batches that were drawn."""

    def load(self) -> Order:
        """See ``TaskProblem.load``."""
        return draw_ordering(self.rng, self.tier, name=self.instance)

    def solved(self, seconds: float) -> Reference:
        """See ``TaskProblem.solved``."""
        answer = exact_order(self.target, rounds=PROGRAMS)
        if answer.proven:
            return Reference(answer.cost, answer.cost, OPTIMAL, METHOD)
        return reference_of(answer.cost, answer.bound, METHOD, bounded_by=BOUNDED_BY)

    @classmethod
    def draw(cls, seed: int, number: int, **settings: Any) -> DrawnOrder:
        """See ``DrawnProblem.draw``: the two small tiers take turns."""
        return super().draw(seed, number, tier=list(TIERS)[number % 2], **settings)


TASKS = {
    "packed-order": TaskKind(
        title="Order the micro-batches of a 1F1B step, packed of documents, that take unequally "
        "long (docs/packed-order.md).",
        kind=OrderPlan.task,
        cost="seconds of a step",
        trivial="no parallelism: one pass at a time",
        problem=OrderProblem,
        problems=problems,
        agents=_AGENTS,
        planner=planner,
        figures=(CERTIFIED,),
        docs="packed-order",
    ),
    "order-drawn": drawn_kind(
        DrawnOrder,
        4,
        "Order drawn micro-batches of a 1F1B step.",
        "seconds of a step",
        "no parallelism: one pass at a time",
    ),
}
"""Tasks of this kind."""
