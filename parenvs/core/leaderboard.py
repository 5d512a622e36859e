"""A task on the leaderboard: its problems, their references, and descriptions of agents."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parenvs.cluster import Cluster
from parenvs.core.plan import Plan, judge
from parenvs.core.registry import TASKS, problem
from parenvs.errors import ParenvsError

TOLERANCE = 1e-6
"""Relative difference below which costs are equal; covers rounding and tolerances of solvers."""
OPTIMAL, BOUND = "optimal", "bound"
"""Status of a reference: the cost is proven optimal, or there is a lower bound only."""


def is_less(cost: float, other: float) -> bool:
    """Return whether a cost is less than another: integers by 1, others beyond ``TOLERANCE``."""
    if isinstance(cost, Integral) and isinstance(other, Integral):
        # Costs of sharding problems are integers, whose difference of 1 may be below a millionth.
        return cost < other
    return cost < other * (1 - TOLERANCE)


@dataclass(frozen=True)
class Reference:
    """The best known cost of a problem, and a proven lower bound.

    Attributes:
        cost: cost of the best known plan, in the unit of the task.
        bound: proven lower bound of the cost of any plan.
        status: ``"optimal"`` if the bound equals the cost, else ``"bound"``.
        method: name of the planner or entry that found the plan.
        among: plans among which the cost is proven optimal, in words; empty if among all, or if
            nothing is proven.
        bounded_by: the proof of the bound, in words; empty if it is ``method``.
        source: command that reproduces both, or their publication.
    """

    cost: float
    bound: float
    status: str
    method: str
    among: str = ""
    bounded_by: str = ""
    source: str = ""

    @property
    def proven(self) -> bool:
        """Whether the cost is proven optimal among all plans."""
        return self.status == OPTIMAL

    def to_json(self) -> dict[str, Any]:
        """Return the reference as an object of JSON types; empty texts are left out."""
        return {key: value for key, value in vars(self).items() if value != ""}


UNKNOWN = Reference(float("inf"), 0.0, BOUND, "")
"""The reference of a problem before one is computed."""


@dataclass(frozen=True, eq=False)
class TaskProblem:
    """A problem of a leaderboard task, on which entries are compared.

    Tasks derive their own classes in ``agents/NAME/entries.py``.

    Attributes:
        name: unique name in its task, for example ``"t5-3b-C-4"``.
        reward: ``"paper"`` or ``"step_time"`` for partitions, else empty.
        fingerprint: hash of the graph, model or problem; plans must have the same.
        settings: further arguments of the problem, by kind: cluster, stages, tier, ...
        trivial: cost of the plan without parallelism, which counts if an entry has no plan.
    """

    name: str
    kind: str
    reward: str
    instance: str
    fingerprint: str
    settings: dict[str, Any]
    reference: Reference = UNKNOWN
    trivial: float = 0.0

    plan_class: ClassVar[type[Plan]]
    """Class of the plans."""
    decisions: ClassVar[tuple[str, ...]]
    """Fields of a plan file that are decisions; the other fields belong to the problem."""
    optional: ClassVar[Mapping[str, Any]] = {}
    """Optional fields of a plan file -> their defaults."""

    def load(self) -> Any:
        """Load the target of ``judge`` without comparing fingerprints."""
        return problem(self.instance, task=self.kind)

    def fingerprint_of(self, target: Any) -> str:
        """Return the fingerprint of a target."""
        return str(target.fingerprint)

    def empty_plan(self) -> Plan:
        """Return the plan without decisions, with all fields that belong to the problem."""
        plan: Plan = self.target.plan(())
        return plan

    def cost(self, report: Any) -> float:
        """Return the cost of a legal plan from its report; lower is better."""
        return float(report.cost)

    def trivial_cost(self) -> float:
        """Return the cost of the trivial plan, by default of the plan without decisions."""
        return self.cost(self.judge(self.empty_plan()))

    def solved(self, seconds: float) -> Reference:
        """Return the reference: by the planner ``exact``, or from a file that a command writes.

        Raises:
            InfeasibleError: no plan fits the memory.
        """
        answer = TASKS[self.kind].request_class()(self.target).run("exact")
        cost = self.cost(answer.report)
        bound = cost if answer.proven else answer.bound or 0.0
        return reference_of(cost, bound, answer.method, answer.among)

    def found(self) -> dict[str, Any]:
        """Return settings that are computed together with the reference, such as another bound."""
        return {}

    def faults(self, plan: Plan) -> list[str]:
        """Return reasons, without evaluating it, why a plan does not belong to this problem."""
        return []

    def missing(self) -> str:
        """Return what this machine lacks to evaluate plans, and the remedy; empty if nothing."""
        return ""

    @property
    def added(self) -> bool:
        """Whether users must add the problem's file; such a problem does not count in scores."""
        return False

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster that plans are for."""
        return Cluster.parse(self.settings["cluster"])

    @property
    def has_cluster(self) -> bool:
        """Whether the problem names a cluster."""
        return "cluster" in self.settings

    @property
    def place(self) -> str:
        """Instance and devices, in words."""
        return f"{self.instance} on {self.cluster}" if self.has_cluster else self.instance

    @cached_property
    def target(self) -> Any:
        """The target that ``judge`` takes.

        Raises:
            ParenvsError: its fingerprint is not the one that the references are for.
        """
        target = self.load()
        # Scores of different graphs under one name must never be compared.
        if self.fingerprint_of(target) != self.fingerprint:
            raise ParenvsError(
                f"tasks.json: problem {self.name!r}: field 'fingerprint' is not that of the "
                "shipped graph; a new graph needs a new version of the list"
            )
        return target

    @cached_property
    def head(self) -> dict[str, Any]:
        """The fields that all plan files of this problem share, with defaults filled in."""
        content = {**self.optional, **self.empty_plan().to_json()}
        return {key: value for key, value in content.items() if key not in self.decisions}

    def judge(self, plan: Plan) -> Any:
        """Evaluate a plan on this problem."""
        return judge(plan, self.target)

    def decided(self, report: Any) -> Any:
        """Return the decisions of an evaluated plan, JSON types."""
        content = report.plan.to_json()
        return {key: content.get(key) for key in self.decisions}

    def views(self, report: Any) -> Sequence[Any]:
        """Return the objects that pages show of an evaluated plan, for ``parenvs.view``."""
        return (report,)

    def simulated(self, report: Any) -> float | None:
        """Return the simulated step time of a legal plan; None if the task has no simulation."""
        return None

    def score(self, cost: float) -> float:
        """Return ``reference / cost``; above 1 only if the cost beats an unproven reference."""
        # Rounding must not push a plan above a proven optimum.
        score = self.reference.cost / cost
        return score if self.improves(cost) else min(score, 1.0)

    def improves(self, cost: float) -> bool:
        """Return whether a cost is less than an unproven reference."""
        return not self.reference.proven and is_less(cost, self.reference.cost)

    def words(self, cost: float) -> str:
        """Return a cost with its unit."""
        return f"{cost:.6g}"

    def to_json(self) -> dict[str, Any]:
        """Return the problem as an object of JSON types; kind and reward are fields of the task."""
        return {
            "name": self.name,
            "instance": self.instance,
            "fingerprint": self.fingerprint,
            **self.settings,
            "reference": self.reference.to_json(),
            "trivial": self.trivial,
        }


SECONDS = 60.0
"""Time limit of a search that may not terminate by itself."""
PROVEN, ONE = "until proven", "one plan a problem"
"""Search budgets."""
Instances = Collection[str] | None
"""Names of graphs and problems, or None for all."""
Planner = Callable[[Any], Plan]
"""Returns a plan of a ``TaskProblem``, or raises ``InfeasibleError``."""


class Description(NamedTuple):
    """The description of an agent in an ``Entry``.

    Attributes:
        search_budget: time or evaluations per problem; may contain ``{steps}``.
    """

    method: str
    link: str
    search_budget: str
    seeded: bool = False


class Figure(NamedTuple):
    """A figure of an entry that is shown beside its score and does not affect the rank.

    Attributes:
        of: takes (problem, cost) pairs, the cost None without a legal plan; returns the figure, or
            None.
        added: whether it includes problems whose files users add.
    """

    title: str
    words: str
    of: Callable[[list[tuple[TaskProblem, float | None]]], float | None]
    show: Callable[[float], str] = "{:.4f}".format
    added: bool = False


def _certified(pairs: list[tuple[TaskProblem, float | None]]) -> float | None:
    # A problem without a plan counts as its trivial plan, as in the score.
    shares = [
        math.log(problem.reference.bound / (problem.trivial if cost is None else cost))
        for problem, cost in pairs
        if not problem.added
    ]
    # fsum is exact, so the result does not depend on the order of the problems.
    return math.exp(math.fsum(shares) / len(shares)) if shares else None


CERTIFIED = Figure(
    "certified",
    "geometric mean of proven bound / cost: how near to the optimum an entry is at least",
    _certified,
)
"""The figure of tasks with unproven references."""
BEST_KNOWN = Description(
    "The best plans known when the list was made, by several planners and seeds; tasks.json names "
    "each.",
    "",
    "what the references took",
)
"""The entry of the references' plans."""


class PolicyError(ValueError):
    """A damaged policy; the message names the field and the fault."""


class Policies(NamedTuple):
    """Functions that read and run the policies of a task.

    Attributes:
        read: takes the unchecked field ``policy`` of an entry and the entry's name; returns a
            policy, or raises ``PolicyError``.
        choose: takes a policy, the problems and the checker's seed; returns the choices by problem
            name on the courses that the seed generates, or the reason why it cannot run.
        of_file: takes the path of a trained agent; returns its policy in JSON types, a sentence on
            its method, and its training problems.
    """

    read: Callable[[Any, object], Any]
    choose: Callable[[Any, list[Any], int], dict[str, Any] | str]
    of_file: Callable[[Path], tuple[dict[str, Any], str, tuple[str, ...]]]


@dataclass(frozen=True)
class TaskKind:
    """A task of the leaderboard; ``kinds`` lists them.

    Attributes:
        problems: yields the problems of some instances (None: all), without references.
        planner: returns the planner for an agent's name, a seed and steps.
        policy: returns the policy of an agent's name, JSON types; None if entries hold plans.
        mean: ``"geometric"``, or ``"arithmetic"`` if scores may be 0, of the problems' scores.
        scoring: sentences on scoring beyond the rules of all tasks.
        draw: generates problem ``number`` of a seed, without reference; None if all seeds have the
            same problems.
        docs: name of the documentation page; empty if there is none.
    """

    title: str
    kind: str
    cost: str
    trivial: str
    problem: type[TaskProblem]
    problems: Callable[[Instances], Iterator[TaskProblem]] = field(default=lambda _: iter(()))
    agents: Mapping[str, Description] = field(default_factory=dict)
    planner: Callable[[str, int, int], Planner] | None = None
    reward: str = ""
    figures: tuple[Figure, ...] = field(default=())
    policy: Callable[[str], dict[str, Any]] | None = None
    mean: str = "geometric"
    scoring: str = ""
    draw: Callable[[int, int], TaskProblem] | None = None
    count: int = 0
    policies: Policies | None = None
    docs: str = ""

    def fields(self) -> dict[str, str]:
        """Return the fields of ``tasks.json``."""
        names = ("title", "kind", "reward", "cost", "trivial")
        return {name: getattr(self, name) for name in names}


_STREAM = 26  # separates the leaderboard's problems from those that environments generate


class DrawnProblem(TaskProblem):
    """A problem that the checker generates from the seed and number in its settings."""

    @property
    def place(self) -> str:
        """The name of the generated problem, in words."""
        return f"{self.name}, drawn"

    @property
    def number(self) -> tuple[int, int]:
        """The seed of the checker and the number of the problem."""
        return int(self.settings["seed"]), int(self.settings["number"])

    @property
    def rng(self) -> np.random.Generator:
        """The random generator of the problem."""
        return np.random.default_rng([_STREAM, *self.number])

    @classmethod
    def draw(cls, seed: int, number: int, **settings: Any) -> Any:
        """Generate a problem from the checker's seed, without reference."""
        name = f"drawn/{seed}-{number}"
        settings |= {"seed": seed, "number": number}
        bare = cls(name, cls.plan_class.task, "", name, "", settings)
        target = bare.load()
        drawn = cls(
            name, bare.kind, "", cls.instance_of(target, name), bare.fingerprint_of(target),
            settings | cls.settings_of(target),
        )  # fmt: skip
        drawn.__dict__["target"] = target  # fills the cached property without a second load
        return drawn

    @classmethod
    def instance_of(cls, target: Any, name: str) -> str:
        """Return the instance name in plans of a generated problem."""
        return name

    @classmethod
    def settings_of(cls, target: Any) -> dict[str, Any]:
        """Return settings that follow from the generated problem."""
        return {}


def reference_of(
    cost: float, bound: float, method: str, among: str = "", bounded_by: str = "", source: str = ""
) -> Reference:
    """Return a search's reference, proven if the cost reaches the bound."""
    proven = not is_less(bound, cost)
    return Reference(
        cost, cost if proven else bound, OPTIMAL if proven else BOUND, method,
        "" if proven else among, bounded_by, source,
    )  # fmt: skip


def drawn_kind(
    problem: type[DrawnProblem], count: int, title: str, cost: str, trivial: str
) -> TaskKind:
    """Return a task for methods, whose problems the checker's seed generates."""
    return TaskKind(
        title=title, kind=problem.plan_class.task, cost=cost, trivial=trivial, problem=problem,
        figures=(CERTIFIED,), draw=problem.draw, count=count,
    )  # fmt: skip


def kinds() -> dict[str, TaskKind]:
    """Return the leaderboard's tasks by name, which ``Task.leaderboard`` lists."""
    return {name: kind for task in TASKS.values() for name, kind in task.leaderboard().items()}


def kind_of(name: str) -> TaskKind:
    """Return a task of the leaderboard by its name."""
    return kinds()[name]
