"""What a task says to the leaderboard: its problems, their references, the agents that enter it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
"""Share by which seconds must differ to count as different; covers rounding and solvers."""
OPTIMAL, BOUND = "optimal", "bound"
"""States of a reference: its cost is the proven optimum, or there is a lower bound only."""


def is_less(cost: float, other: float) -> bool:
    """Return whether a cost is less than another: whole numbers by 1, others beyond rounding."""
    if isinstance(cost, Integral) and isinstance(other, Integral):
        # Costs of sharding problems are whole, and 1 less may be below a millionth.
        return cost < other
    return cost < other * (1 - TOLERANCE)


@dataclass(frozen=True)
class Reference:
    """The best cost that is known of a problem, and a proven lower bound.

    Attributes:
        cost: cost of the best plan known, in the unit of the task.
        bound: proven lower bound of the cost of any plan.
        status: ``"optimal"`` if the bound is the cost, else ``"bound"``.
        method: name of the planner or entry that made the plan.
        among: plans among which the cost is proven optimal, in words; empty if that is proven
            among all of them, or of none.
        bounded_by: what proves the bound, in words; empty if ``method`` does.
        source: command that makes both anew, or where they were published.
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
        """Whether the cost is the proven optimum among all plans."""
        return self.status == OPTIMAL

    def to_json(self) -> dict[str, Any]:
        """Return the reference as an object of JSON types; empty texts are left out."""
        return {key: value for key, value in vars(self).items() if value != ""}


def reference_of_row(
    row: Mapping[str, Any], method: str, bounded_by: str, source: str
) -> Reference:
    """Make the reference of a row of ``parenvs.datasets.references``."""
    among = str(row.get("among", ""))
    return reference_of(row["length"], row["bound"], method, among, bounded_by, source)


UNKNOWN = Reference(float("inf"), 0.0, BOUND, "")
"""The reference of a problem that has none yet."""


@dataclass(frozen=True, eq=False)
class TaskProblem:
    """A problem of a leaderboard task, on which entries are compared.

    There is a subclass for each kind of problem, in the ``entries`` of a task.

    Attributes:
        name: unique name in its task, for example ``"t5-3b-C-4"``.
        reward: ``"paper"`` or ``"step_time"`` for partitions, else empty.
        fingerprint: that of the graph, model or problem; plans must have the same.
        settings: what else makes the problem, by kind: cluster, stages, tier, ...
        trivial: cost of the plan without parallelism, which counts where an entry has no plan.
    """

    name: str
    kind: str
    reward: str
    instance: str
    fingerprint: str
    settings: dict[str, Any]
    reference: Reference
    trivial: float

    plan_class: ClassVar[type[Plan]]
    """Class of the plans; ``named_kind`` takes that of the task."""
    decisions: ClassVar[tuple[str, ...]]
    """Fields of a plan file that are the planner's choice; the others are the problem's."""
    optional: ClassVar[Mapping[str, Any]] = {}
    """Fields that a plan file may leave out -> what it then means."""

    def load(self) -> Any:
        """Load what plans are judged on, whatever its fingerprint."""
        return problem(self.instance, task=self.kind)

    def fingerprint_of(self, target: Any) -> str:
        """Return the fingerprint of what ``load`` returned."""
        return str(target.fingerprint)

    def empty_plan(self) -> Plan:
        """Return a plan that decides nothing, with all other fields of the problem's plans."""
        plan: Plan = self.target.plan(())
        return plan

    def cost(self, report: Any) -> float:
        """Return the cost of a legal plan, lower is better, from the judge's report."""
        return float(report.cost)

    def trivial_cost(self) -> float:
        """Compute the cost of the trivial plan, by default of the one that decides nothing."""
        return self.cost(self.judge(self.empty_plan()))

    def solved(self, seconds: float) -> Reference:
        """Find the reference by the planner ``exact``, or read it where a command makes it.

        Raises:
            InfeasibleError: no plan fits the memory.
        """
        answer = TASKS[self.kind].request_class()(self.target).run("exact")
        cost = self.cost(answer.report)
        bound = cost if answer.proven else answer.bound or 0.0
        return reference_of(cost, bound, answer.method, answer.among)

    def found(self) -> dict[str, Any]:
        """Return settings that are computed with the reference, such as another bound."""
        return {}

    def faults(self, plan: Plan) -> list[str]:
        """Return why a plan, whatever it costs, is none of this problem; the judge is not asked."""
        return []

    def missing(self) -> str:
        """Return what is missing here to judge plans, and the remedy; empty if nothing is."""
        return ""

    @property
    def added(self) -> bool:
        """Whether the problem's file is one that users add; it does not count in scores."""
        return False

    @property
    def tier(self) -> str:
        """Name of the problems of like size among which it is; empty in tasks without tiers."""
        return str(self.settings.get("tier", ""))

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster that plans are for."""
        return Cluster.parse(self.settings["cluster"])

    @property
    def has_cluster(self) -> bool:
        """Whether its devices are known as a cluster."""
        return "cluster" in self.settings

    @property
    def place(self) -> str:
        """Instance and devices, in words."""
        return f"{self.instance} on {self.cluster}" if self.has_cluster else self.instance

    @cached_property
    def target(self) -> Any:
        """What plans are judged on.

        Raises:
            ParenvsError: it is not what the references are for.
        """
        target = self.load()
        if self.fingerprint_of(target) != self.fingerprint:
            raise ParenvsError(
                f"tasks.json: problem {self.name!r}: field 'fingerprint' is not that of the "
                "shipped graph; a new graph needs a new version of the list"
            )
        return target

    @cached_property
    def head(self) -> dict[str, Any]:
        """The fields that every plan file of this problem has or means, without the decisions."""
        content = {**self.optional, **self.empty_plan().to_json()}
        return {key: value for key, value in content.items() if key not in self.decisions}

    def judge(self, plan: Plan) -> Any:
        """Judge a plan on this problem."""
        return judge(plan, self.target)

    def decided(self, report: Any) -> Any:
        """Return what a judged plan decides, JSON types."""
        content = report.plan.to_json()
        return {key: content.get(key) for key in self.decisions}

    def views(self, report: Any) -> Sequence[Any]:
        """Return what pages show of a judged plan, as ``parenvs.view`` takes it."""
        return (report,)

    def simulated(self, report: Any) -> float | None:
        """Return the simulated seconds of a legal plan; None where nothing is simulated."""
        return None

    def score(self, cost: float) -> float:
        """Return ``reference / cost``: above 1 only for better plans than one without proof."""
        score = self.reference.cost / cost
        return score if self.improves(cost) else min(score, 1.0)

    def improves(self, cost: float) -> bool:
        """Return whether a cost is better than the reference, which is then without proof."""
        return not self.reference.proven and is_less(cost, self.reference.cost)

    def words(self, cost: float) -> str:
        """Return a cost with its unit."""
        return f"{cost:.6g}"

    def to_json(self) -> dict[str, Any]:
        """Return the problem as an object of JSON types; kind and reward stand in the task."""
        return {
            "name": self.name,
            "instance": self.instance,
            "fingerprint": self.fingerprint,
            **self.settings,
            "reference": self.reference.to_json(),
            "trivial": self.trivial,
        }


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
        search_budget: what it spends on a problem; may hold ``{steps}``.
    """

    method: str
    link: str
    search_budget: str
    seeded: bool = False


class Figure(NamedTuple):
    """A figure of an entry that is shown beside its score, and never ranks.

    Attributes:
        of: takes a pair (problem, cost) for each problem, the cost None without a legal plan, and
            returns the figure; None if it has none.
        added: whether it is of problems whose files users add.
    """

    title: str
    words: str
    of: Callable[[list[tuple[TaskProblem, float | None]]], float | None]
    show: Callable[[float], str] = "{:.4f}".format
    added: bool = False


def _certified(pairs: list[tuple[TaskProblem, float | None]]) -> float | None:
    shares = [
        math.log(problem.reference.bound / (problem.trivial if cost is None else cost))
        for problem, cost in pairs
        if not problem.added
    ]
    # fsum: the same to the last bit in any order of the problems.
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


class PolicyError(ValueError):
    """A policy that is none; its text names the field and what is wrong."""


class Policies(NamedTuple):
    """How the policies of a task are read and played.

    Attributes:
        read: takes the field ``policy`` of an entry, which may be anything, and the entry's name;
            returns a policy, or raises ``PolicyError``.
        with_arrays: takes a policy's JSON types and the arrays of the file that it names, and
            returns it with the arrays as JSON types, or raises ``PolicyError``.
        choose: takes a policy, the problems of the list and the seed of the checker, and returns
            what is chosen on what that seed draws, by name of a problem; or a text that says why
            it cannot be judged.
        of_file: takes the path of a trained agent and returns its policy as JSON types, its method
            in a sentence, and what it was trained on.
    """

    read: Callable[[Any, object], Any]
    with_arrays: Callable[[dict[str, Any], dict[str, np.ndarray]], dict[str, Any]]
    choose: Callable[[Any, list[Any], int], dict[str, Any] | str]
    of_file: Callable[[Path], tuple[dict[str, Any], str, tuple[str, ...]]]


def _no_problems(_names: Instances) -> Iterator[TaskProblem]:
    """Yield nothing: the task's problems are all generated."""
    return iter(())


@dataclass(frozen=True)
class TaskKind:
    """All that the leaderboard knows of one of its tasks; ``kinds`` lists them.

    Attributes:
        problems: yields the problems without references, those of some instances (None: of all).
        planner: makes a planner of an agent's name, a seed and steps, where there are agents.
        policy: makes the policy of an agent's name, JSON types; None where entries hold plans.
        mean: how the scores of problems make that of the task, ``"geometric"`` or
            ``"arithmetic"``, where scores may be 0.
        scoring: how scores come about, in sentences, where the rules of all tasks do not say it.
        draw: generates problem ``number`` of a seed, without reference; None where problems are
            the same for all seeds.
        docs: name of the page of the documentation that is about it; empty if there is none.
    """

    title: str
    kind: str
    cost: str
    trivial: str
    problem: type[TaskProblem]
    problems: Callable[[Instances], Iterator[TaskProblem]] = field(default=_no_problems)
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
        """Return the fields that stand in ``tasks.json``."""
        names = ("title", "kind", "reward", "cost", "trivial")
        return {name: getattr(self, name) for name in names}


_STREAM = 26  # keeps the drawn problems apart from those that other seeds draw


class DrawnProblem(TaskProblem):
    """What problems that a seed of the checker draws have alike; settings hold seed and number."""

    @property
    def place(self) -> str:
        """What was drawn, in words."""
        return f"{self.name}, drawn"

    @property
    def number(self) -> tuple[int, int]:
        """The seed of the checker and the number of the problem."""
        return int(self.settings["seed"]), int(self.settings["number"])

    @property
    def rng(self) -> np.random.Generator:
        """The generator that the problem is drawn from."""
        return np.random.default_rng([_STREAM, *self.number])

    @classmethod
    def draw(cls, seed: int, number: int, **settings: Any) -> Any:
        """Return a problem of a seed of the checker, without reference."""
        name = f"drawn/{seed}-{number}"
        settings |= {"seed": seed, "number": number}
        bare = cls(name, cls.plan_class.task, "", name, "", settings, UNKNOWN, 0.0)
        target = bare.load()
        drawn = cls(
            name, bare.kind, "", cls.instance_of(target, name), bare.fingerprint_of(target),
            settings | cls.settings_of(target), UNKNOWN, 0.0,
        )  # fmt: skip
        drawn.__dict__["target"] = target  # it was made just now
        return drawn

    @classmethod
    def instance_of(cls, target: Any, name: str) -> str:
        """Return the name that plans of a drawn problem carry."""
        return name

    @classmethod
    def settings_of(cls, target: Any) -> dict[str, Any]:
        """Return settings that are known once the problem is drawn."""
        return {}


def reference_of(
    cost: float, bound: float, method: str, among: str = "", bounded_by: str = "", source: str = ""
) -> Reference:
    """Return the reference of a search, which is proven if it reaches the bound."""
    proven = not is_less(bound, cost)
    return Reference(
        cost, cost if proven else bound, OPTIMAL if proven else BOUND, method,
        "" if proven else among, bounded_by, source,
    )  # fmt: skip


def drawn_kind(
    problem: type[DrawnProblem], count: int, title: str, cost: str, trivial: str,
    draw: Callable[[int, int], TaskProblem] | None = None,
) -> TaskKind:  # fmt: skip
    """Return a task whose problems a seed of the checker draws, for methods."""
    return TaskKind(
        title=title, kind=problem.plan_class.task, cost=cost, trivial=trivial, problem=problem,
        figures=(CERTIFIED,), draw=draw or problem.draw, count=count,
    )  # fmt: skip


def named_kind(
    task: str, plan_class: type[Plan], decisions: tuple[str, ...], names: Iterable[str],
    agents: Mapping[str, Description], **words: str,
) -> TaskKind:  # fmt: skip
    """Return a task whose problems have names, and whose agents are planners by name.

    Args:
        task: name of the task.
        plan_class: class of its plans.
        decisions: fields of a plan file that are the planner's choice.
        names: names of the problems, as ``parenvs.problem`` takes them.
        agents: planners of the task, with descriptions.
        **words: ``title``, ``cost`` and ``trivial``, see ``TaskKind``.
    """
    fields = {"plan_class": plan_class, "decisions": decisions}
    problem_class: type[TaskProblem] = type("NamedProblem", (TaskProblem,), fields)

    def problems(instances: Instances = None) -> Iterator[TaskProblem]:
        for name in names:
            if instances is None or name in instances:
                fingerprint = problem(name, task=task).fingerprint
                yield problem_class(name, task, "", name, fingerprint, {}, UNKNOWN, 0.0)

    def planner(agent: str, seed: int, steps: int) -> Planner:
        request = TASKS[task].request_class()
        return lambda one: request(one.target, seed=seed, steps=steps).run(agent).plan

    return TaskKind(
        kind=task, problem=problem_class, problems=problems, agents=agents, planner=planner,
        **words,  # type: ignore[arg-type]
    )  # fmt: skip


def kinds() -> dict[str, TaskKind]:
    """Return the leaderboard's tasks by name, which ``Task.leaderboard`` lists."""
    return {name: kind for task in TASKS.values() for name, kind in task.leaderboard().items()}


def kind_of(name: str) -> TaskKind:
    """Return what the leaderboard knows of one of its tasks."""
    return kinds()[name]
