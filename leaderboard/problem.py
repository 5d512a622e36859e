"""``TaskProblem``: a problem on which entries are compared, with the best cost that is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from parenvs.cluster import Cluster
from parenvs.core.judge import judge
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError
from parenvs.view.words import duration

TOLERANCE = 1e-6
"""Share by which costs must differ to count as different; covers rounding and solvers."""
OPTIMAL, BOUND = "optimal", "bound"
"""States of a reference: its cost is the proven optimum, or there is a lower bound only."""


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
    """Make the reference of a row of ``parenvs.datasets.references``.

    Args:
        row: its length and bound, in seconds.
        method: what made the plan, in words.
        bounded_by: what proves the bound, in words.
        source: the command that makes it.
    """
    cost, bound = float(row["length"]), float(row["bound"])
    proven = cost <= bound * (1 + TOLERANCE)
    return Reference(
        cost,
        cost if proven else bound,
        OPTIMAL if proven else BOUND,
        method,
        "" if proven else str(row.get("among", "")),
        bounded_by,
        source,
    )


UNKNOWN = Reference(float("inf"), 0.0, BOUND, "")
"""The reference of a problem that has none yet."""


@dataclass(frozen=True, eq=False)
class TaskProblem(ABC):
    """A problem of a leaderboard task, on which entries are compared.

    There is a subclass for each kind of problem, in ``parenvs.leaderboard.kinds``.

    Attributes:
        name: unique name in its task, for example ``"t5-3b-C-4"``.
        kind: task of the plan files that answer it, for example ``"pipeline"``.
        reward: ``"paper"`` or ``"step_time"`` for partitions, else empty.
        instance: name of the shipped graph, or of the problem where problems have names.
        fingerprint: that of the graph, model or problem; plans must have the same.
        settings: what else makes the problem, by kind: cluster, stages, tier, ...
        reference: the best cost known.
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
    """Class of the plans."""
    decisions: ClassVar[tuple[str, ...]]
    """Fields of a plan file that are the planner's choice; the others are the problem's."""
    optional: ClassVar[Mapping[str, Any]] = {}
    """Fields that a plan file may leave out -> what it then means."""
    page: ClassVar[str | None] = None
    """``"module:function"`` that shows a plan on a web page: takes the problem's name and the
    judge's report, returns a ``PlanPage``; imported on first use. None shows nothing."""

    @abstractmethod
    def load(self) -> Any:
        """Load what plans are judged on, whatever its fingerprint."""

    @abstractmethod
    def fingerprint_of(self, target: Any) -> str:
        """Return the fingerprint of what ``load`` returned."""

    @abstractmethod
    def empty_plan(self) -> Plan:
        """Return a plan that decides nothing, with all other fields of the problem's plans."""

    @abstractmethod
    def cost(self, report: Any) -> float:
        """Return the cost of a legal plan, lower is better, from the judge's report."""

    @abstractmethod
    def trivial_cost(self) -> float:
        """Compute the cost of the plan without any parallelism."""

    @abstractmethod
    def solved(self, seconds: float) -> Reference:
        """Find the reference, or read it where a command of its own makes it.

        Args:
            seconds: time limit of each search.

        Raises:
            InfeasibleError: no plan fits the memory.
        """

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
        return judge(plan, self.target)  # type: ignore[call-overload]

    def decided(self, report: Any) -> Any:
        """Return what a judged plan decides, JSON types."""
        content = report.plan.to_json()
        return {key: content.get(key) for key in self.decisions}

    def simulated(self, report: Any) -> float | None:
        """Return the simulated seconds of a legal plan; None where nothing is simulated."""
        return None

    def score(self, cost: float) -> float:
        """Return ``reference / cost``: above 1 only for better plans than one without proof."""
        score = self.reference.cost / cost
        return score if self.improves(cost) else min(score, 1.0)

    def improves(self, cost: float) -> bool:
        """Return whether a cost is better than the reference, which is then without proof."""
        return not self.reference.proven and cost < self.reference.cost * (1 - TOLERANCE)

    def words(self, cost: float) -> str:
        """Return a cost with its unit."""
        return duration(cost)

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
