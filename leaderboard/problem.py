"""One thing to be planned, on which entries are compared, and the best cost that is known."""

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
"""Share by which a cost must differ to count as another one; covers rounding and solvers."""
KINDS: dict[str, type[Plan]] = {
    kind.task: kind for kind in (PipelinePlan, PartitionPlan, BatchPlan)
}


@dataclass(frozen=True)
class Reference:
    """The best cost that is known, and what is proven of it.

    Attributes:
        cost: of the best plan known, in the unit of the task.
        bound: no plan costs less, proven.
        status: ``"optimal"`` if the bound is the cost, else ``"bound"``.
        method: the planner or entry whose plan it is.
    """

    cost: float
    bound: float
    status: str
    method: str


@dataclass(frozen=True, eq=False)
class Problem:
    """One thing to be planned, on which entries are compared.

    Attributes:
        name: unique in its task, for example ``"t5-3b-C-4"``.
        kind: task of the plan files that answer it, for example ``"pipeline-cut"``.
        reward: ``"paper"`` or ``"step_time"`` of a partition, empty for a pipeline.
        instance: name of a shipped graph.
        fingerprint: of that graph; plans must bear it.
        settings: the rest of it: cluster, and stages, micro_batch, micro_batches or rules, uneven.
        reference: the best cost known.
        trivial: cost of doing without parallelism, which scores where an entry has no plan.
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
        """The devices."""
        return Cluster.parse(self.settings["cluster"])

    @property
    def stages(self) -> int:
        """Stages that a plan must have (pipelines)."""
        return int(self.settings["stages"])

    @cached_property
    def target(self) -> Pipeline | Partitioning:
        """What plans are judged on.

        Raises:
            ParenvsError: the shipped graph is not the one that the references are for.
        """
        found: Pipeline | Partitioning
        settings = self.settings
        if self.kind == PipelinePlan.task:
            profile = load_profile(self.instance, self.cluster, settings["micro_batch"])
            found, fingerprint = (
                Pipeline(profile, self.cluster, self.stages, settings["micro_batches"]),
                profile.fingerprint,
            )
        else:
            found = load_partitioning(
                self.instance,
                self.cluster,
                settings["rules"],
                settings["uneven"],
                self.kind,
                self.reward,
            )
            fingerprint = found.graph.fingerprint
        if fingerprint != self.fingerprint:
            raise ParenvsError(
                f"tasks.json: problem {self.name!r}: field 'fingerprint' is not that of the "
                "shipped graph; a new graph needs a new version of the list"
            )
        return found

    @property
    def pipeline(self) -> Pipeline:
        """The chain on its cluster (pipelines)."""
        assert isinstance(self.target, Pipeline)
        return self.target

    @property
    def partitioning(self) -> Partitioning:
        """The graph with its dimension classes (partitions)."""
        assert isinstance(self.target, Partitioning)
        return self.target

    def pipeline_plan(self, cuts: Sequence[int], device_cuts: Sequence[int]) -> PipelinePlan:
        """A plan from the first pivot and the first device of every stage but the first.

        Each (S-1,); nothing is checked, that is the judge's business.
        """
        settings, names = self.settings, self.pipeline.profile.names
        positions = [int(p) for p in cuts]
        inside = all(1 <= p < len(names) for p in positions)
        return PipelinePlan(
            instance=self.instance,
            fingerprint=self.fingerprint,
            cluster=self.cluster,
            cuts=tuple(positions),
            device_cuts=tuple(int(d) for d in device_cuts),
            micro_batch=settings["micro_batch"],
            micro_batches=settings["micro_batches"],
            cut_after=tuple(str(names[p - 1]) for p in positions) if inside else (),
        )

    def partition_plan(self, partition: Mapping[str, int]) -> PartitionPlan:
        """A plan from path -> partitioned dimension; what is not named is replicated."""
        kind = BatchPlan if self.kind == BatchPlan.task else PartitionPlan
        settings = self.settings
        return kind(
            instance=self.instance,
            fingerprint=self.fingerprint,
            cluster=self.cluster,
            partition={path: int(dimension) for path, dimension in partition.items()},
            rules=settings["rules"],
            uneven=settings["uneven"],
        )

    @cached_property
    def head(self) -> dict[str, Any]:
        """What every plan file of this problem says, all but the decisions."""
        plan: Plan
        if self.kind == PipelinePlan.task:
            batches = (self.settings["micro_batch"], self.settings["micro_batches"])
            plan = PipelinePlan(self.instance, self.fingerprint, self.cluster, (), (), *batches)
        else:
            plan = self.partition_plan({})
        decisions = ("cuts", "device_cuts", "partition")
        return {key: value for key, value in plan.to_json().items() if key not in decisions}

    def judge(self, plan: Plan) -> Report | PartitionReport:
        """What the judge says of a plan."""
        report: Report | PartitionReport = judge(plan, self.target)  # type: ignore[call-overload]
        return report

    def cost(self, report: Report | PartitionReport) -> float:
        """Cost of a legal plan, the less the better: seconds of a step, or 1 / return."""
        if isinstance(report, Report):
            return report.length_seconds
        return 1.0 / report.value("paper") if self.reward == "paper" else report.step_seconds

    def score(self, cost: float) -> float:
        """``reference / cost``, in (0, 1]."""
        return min(self.reference.cost / cost, 1.0)

    def to_json(self) -> dict[str, Any]:
        """The problem as an object of JSON types; kind and reward are the task's."""
        return {
            "name": self.name,
            "instance": self.instance,
            "fingerprint": self.fingerprint,
            **self.settings,
            "reference": vars(self.reference),
            "trivial": self.trivial,
        }
