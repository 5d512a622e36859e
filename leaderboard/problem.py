"""``TaskProblem``: a problem on which entries are compared, with the best cost that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError
from parenvs.instances import load_partitioning, load_profile
from parenvs.judging import judge
from parenvs.partitioning.problem import Partitioning, PartitionReport
from parenvs.pipeline.problem import Pipeline, Report
from parenvs.plan import BatchPlan, PartitionPlan, PipelinePlan, Plan

TOLERANCE = 1e-6
"""Share by which costs must differ to count as different; covers rounding and solvers."""
PLAN_CLASSES: dict[str, type[Plan]] = {
    plan_class.task: plan_class for plan_class in (PipelinePlan, PartitionPlan, BatchPlan)
}
"""Task of a plan file -> class of the plan."""


@dataclass(frozen=True)
class Reference:
    """The best cost that is known of a problem, and a proven lower bound.

    Attributes:
        cost: cost of the best plan known, in the unit of the task.
        bound: proven lower bound of the cost of any plan.
        status: ``"optimal"`` if the bound is the cost, else ``"bound"``.
        method: name of the planner or entry that made the plan.
    """

    cost: float
    bound: float
    status: str
    method: str


@dataclass(frozen=True, eq=False)
class TaskProblem:
    """A problem of a leaderboard task, on which entries are compared.

    Attributes:
        name: unique name in its task, for example ``"t5-3b-C-4"``.
        kind: task of the plan files that answer it, for example ``"pipeline-cut"``.
        reward: ``"paper"`` or ``"step_time"`` for partitions, empty for pipelines.
        instance: name of a shipped graph.
        fingerprint: fingerprint of that graph; plans must have the same.
        settings: cluster, and stages, micro_batch, micro_batches (pipelines) or rules, uneven
            (partitions).
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

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster that plans are for."""
        return Cluster.parse(self.settings["cluster"])

    @property
    def stages(self) -> int:
        """Number of stages that a plan must have (pipelines)."""
        return int(self.settings["stages"])

    @cached_property
    def target(self) -> Pipeline | Partitioning:
        """The chain or partitioning that plans are judged on.

        Raises:
            ParenvsError: the shipped graph is not the one that the references are for.
        """
        target: Pipeline | Partitioning
        settings = self.settings
        if self.kind == PipelinePlan.task:
            profile = load_profile(self.instance, self.cluster, settings["micro_batch"])
            target = Pipeline(profile, self.cluster, self.stages, settings["micro_batches"])
            fingerprint = profile.fingerprint
        else:
            target = load_partitioning(
                self.instance,
                self.cluster,
                settings["rules"],
                settings["uneven"],
                self.kind,
                self.reward,
            )
            fingerprint = target.graph.fingerprint
        if fingerprint != self.fingerprint:
            raise ParenvsError(
                f"tasks.json: problem {self.name!r}: field 'fingerprint' is not that of the "
                "shipped graph; a new graph needs a new version of the list"
            )
        return target

    @property
    def pipeline(self) -> Pipeline:
        """The chain on its cluster (pipelines only)."""
        assert isinstance(self.target, Pipeline)
        return self.target

    @property
    def partitioning(self) -> Partitioning:
        """The graph with its dimension classes (partitions only)."""
        assert isinstance(self.target, Partitioning)
        return self.target

    def pipeline_plan(self, cuts: Sequence[int], device_cuts: Sequence[int]) -> PipelinePlan:
        """Make a plan; nothing is checked, as the judge does that.

        Args:
            cuts: (S-1,) first pivot of every stage but the first.
            device_cuts: (S-1,) first device of every stage but the first.
        """
        settings, names = self.settings, self.pipeline.profile.names
        positions = [int(p) for p in cuts]
        all_inside = all(1 <= p < len(names) for p in positions)
        return PipelinePlan(
            instance=self.instance,
            fingerprint=self.fingerprint,
            cluster=self.cluster,
            cuts=tuple(positions),
            device_cuts=tuple(int(d) for d in device_cuts),
            micro_batch=settings["micro_batch"],
            micro_batches=settings["micro_batches"],
            cut_after=tuple(str(names[p - 1]) for p in positions) if all_inside else (),
        )

    def partition_plan(self, partition: Mapping[str, int]) -> PartitionPlan:
        """Make a plan.

        Args:
            partition: path -> partitioned dimension; variables that are not named are replicated.
        """
        plan_class = BatchPlan if self.kind == BatchPlan.task else PartitionPlan
        settings = self.settings
        return plan_class(
            instance=self.instance,
            fingerprint=self.fingerprint,
            cluster=self.cluster,
            partition={path: int(dimension) for path, dimension in partition.items()},
            rules=settings["rules"],
            uneven=settings["uneven"],
        )

    @cached_property
    def head(self) -> dict[str, Any]:
        """The fields that every plan file of this problem has, without the decisions."""
        plan: Plan
        if self.kind == PipelinePlan.task:
            sizes = (self.settings["micro_batch"], self.settings["micro_batches"])
            plan = PipelinePlan(self.instance, self.fingerprint, self.cluster, (), (), *sizes)
        else:
            plan = self.partition_plan({})
        decisions = ("cuts", "device_cuts", "partition")
        return {key: value for key, value in plan.to_json().items() if key not in decisions}

    def judge(self, plan: Plan) -> Report | PartitionReport:
        """Judge a plan on this problem."""
        report: Report | PartitionReport = judge(plan, self.target)  # type: ignore[call-overload]
        return report

    def cost(self, report: Report | PartitionReport) -> float:
        """Return the cost of a legal plan, lower is better: seconds of a step, or 1 / return."""
        if isinstance(report, Report):
            return report.length_seconds
        return 1.0 / report.value("paper") if self.reward == "paper" else report.step_seconds

    def score(self, cost: float) -> float:
        """Return ``reference / cost``, at most 1."""
        return min(self.reference.cost / cost, 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return the problem as an object of JSON types; kind and reward stand in the task."""
        return {
            "name": self.name,
            "instance": self.instance,
            "fingerprint": self.fingerprint,
            **self.settings,
            "reference": vars(self.reference),
            "trivial": self.trivial,
        }
