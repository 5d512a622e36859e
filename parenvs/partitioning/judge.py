"""The judge of partition plans: legality, step time, memory, utilisation, what is partitioned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.errors import did_you_mean, shown
from parenvs.partitioning.explain import Explainer, shape_text
from parenvs.partitioning.memory import Memory
from parenvs.partitioning.problem import Partitioning, scope_of
from parenvs.plan import ILLEGAL, BatchPlan, PartitionPlan

if TYPE_CHECKING:
    from parenvs.agents.answer import PartitionAnswer

MOST_REASONS = 20
"""Reasons that are given in full."""


@dataclass(frozen=True)
class PartitionReport:
    """What the judge says of a partition plan. C dimension classes.

    Attributes:
        plan: the plan.
        problem: what it was judged on.
        reasons: every rule that it breaks, in words; empty if it is legal.
        chosen: (C,) bool, the classes that it partitions.
        variables: variables that are partitioned (the paper's PC counts these).
        dimensions: dimensions that the task decides, size 1 included.
        partitioned_dimensions: those of them that are partitioned.
        compute_seconds: of a step.
        communication_seconds: of a step, all-reduces of partial results.
        all_reduces: number of these.
        replicate_seconds: of a step in which every device does everything.
        memory: bytes on each device when most is in use.
        reward: whose optimum ``bound`` is about, or an empty string.
        bound: proven upper bound of the return over all legal plans, or None.
    """

    plan: PartitionPlan
    problem: Partitioning
    reasons: tuple[str, ...]
    chosen: np.ndarray
    variables: int
    dimensions: int
    partitioned_dimensions: int
    compute_seconds: float
    communication_seconds: float
    all_reduces: int
    replicate_seconds: float
    memory: Memory
    reward: str = ""
    bound: float | None = None

    @property
    def legal(self) -> bool:
        """Whether the plan breaks no rule."""
        return not self.reasons

    @property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.compute_seconds + self.communication_seconds

    @property
    def utilisation(self) -> float:
        """Average device utilisation, in [0, 1]: useful FLOPs / (N * peak * step time)."""
        cluster = self.problem.cluster
        peak = cluster.devices * cluster.device.peak_flops
        return self.problem.graph.total_flops / (peak * self.step_seconds)

    @property
    def fits(self) -> bool:
        """Whether a device's memory holds the peak, within the share that plans may use."""
        return self.memory.peak <= self.problem.memory_limit

    def value(self, reward: str = "paper") -> float:
        """Return of the episode that makes this plan, or -1 if it is illegal.

        Args:
            reward: ``"paper"``, 0.1 a dimension of the task and 0.3 more if partitioned, or
                ``"step_time"``, the share of the replicated step's seconds that is saved.
        """
        if not self.legal:
            return ILLEGAL
        return float(self.problem.value(self.chosen, reward, scope_of(self.plan.task, reward)))

    @property
    def gap(self) -> float | None:
        """Share by which the return may fall short of the best one, or None without a bound."""
        if self.bound is None or not self.legal:
            return None
        return max(self.bound - self.value(self.reward), 0.0) / max(abs(self.bound), 1e-12)

    def certified(self, answer: PartitionAnswer) -> PartitionReport:
        """The same report with the bound that a planner proved."""
        return replace(self, reward=answer.reward, bound=answer.bound)

    @cached_property
    def explainer(self) -> Explainer:
        """Puts reasons into words."""
        return Explainer(self.problem.classes)

    def to_json(self) -> dict[str, Any]:
        """The report as an object of JSON types (seconds and bytes)."""
        return {
            "legal": self.legal,
            "reasons": list(self.reasons),
            "values": {reward: self.value(reward) for reward in ("paper", "step_time")},
            "reward": self.reward or None,
            "bound": self.bound,
            "gap": self.gap,
            "partitioned_variables": self.variables,
            "dimensions": self.dimensions,
            "partitioned_dimensions": self.partitioned_dimensions,
            "step_seconds": self.step_seconds,
            "compute_seconds": self.compute_seconds,
            "communication_seconds": self.communication_seconds,
            "all_reduces": self.all_reduces,
            "replicate_seconds": self.replicate_seconds,
            "utilisation": self.utilisation,
            "memory_bytes": {**vars(self.memory), "peak": self.memory.peak},
            "memory_limit_bytes": self.problem.memory_limit,
            "fits": self.fits,
        }


def judge_partition(plan: PartitionPlan, problem: Partitioning) -> PartitionReport:
    """Judge a plan on the problem that it is for."""
    classes, graph = problem.classes, problem.graph
    known, reasons = _known_entries(plan, problem)
    reasons += _mismatches(plan, problem)
    chosen = problem.chosen(known)
    if not reasons:
        reasons = _broken_rules(plan, problem, chosen)
    more = len(reasons) - MOST_REASONS
    if more > 0:
        reasons[MOST_REASONS:] = [f"and {more} more"]
    dims = problem.dimensions(scope_of(plan.task, "paper"))
    split = chosen[classes.label[dims]] & (graph.dims[dims] > 1)
    factors = chosen[classes.factor_class]
    partial = np.unique(classes.factors.instruction[factors & problem.partial])
    return PartitionReport(
        plan=plan,
        problem=problem,
        reasons=tuple(reasons),
        chosen=chosen,
        variables=len(problem.partition(chosen, "variables")),
        dimensions=len(dims),
        partitioned_dimensions=int(split.sum()),
        compute_seconds=problem.replicate_seconds - float(problem.saved_seconds[chosen].sum()),
        communication_seconds=float(problem.all_reduce_seconds[chosen].sum()),
        all_reduces=len(partial),
        replicate_seconds=problem.replicate_seconds,
        memory=problem.footprint.memory(chosen),
    )


def make_partition_plan(
    problem: Partitioning, chosen: np.ndarray, task: str, reward: str, instance: str | None = None
) -> PartitionPlan:
    """The plan object of some classes, (C,) bool, of a problem.

    Args:
        problem: the problem.
        chosen: the partitioned classes.
        task: ``"operator-partition"`` or ``"data-parallel"``.
        reward: ``"paper"`` or ``"step_time"``; for the latter operator partitioning decides the
            batch inputs too.
        instance: its name or path (default: the graph's name).
    """
    kind = BatchPlan if task == BatchPlan.task else PartitionPlan
    plan = kind(
        instance=instance or problem.graph.name,
        fingerprint=problem.graph.fingerprint,
        cluster=problem.cluster,
        partition={},
        rules=problem.rules,
        uneven=problem.uneven,
    )
    return replace(plan, partition=problem.partition(chosen, scope_of(plan.task, reward)))


def _known_entries(plan: PartitionPlan, problem: Partitioning) -> tuple[dict[str, int], list[str]]:
    """The entries that can be looked up, and reasons why the others cannot."""
    scope = scope_of(plan.task, "step_time")
    graph = problem.graph
    paths = {graph.paths[i] for i in problem.parameters(scope).tolist()}
    what = "batch input" if scope == "inputs" else "variable or batch input"
    known, reasons = {}, []
    for path, dimension in plan.partition.items():
        if path not in paths:
            reasons.append(f"partition: no {what} {shown(path)}{did_you_mean(path, paths)}")
            continue
        tensor = problem.tensor[path]
        if not 0 <= dimension < len(graph.shape(tensor)):
            shape = shape_text(graph, tensor)
            reasons.append(f"partition: {path} is {shape} and has no dimension {dimension}")
        elif graph.shape(tensor)[dimension] == 1:
            reasons.append(f"partition: dimension {dimension} of {path} has size 1")
        else:
            known[path] = dimension
    return known, reasons


def _mismatches(plan: PartitionPlan, problem: Partitioning) -> list[str]:
    """Reasons for which the plan is for something else."""
    graph, reasons = problem.graph, []
    if plan.fingerprint != graph.fingerprint:
        reasons.append(
            f"fingerprint: the plan is for {plan.fingerprint[:19]}..., but {graph.name} is "
            f"{graph.fingerprint[:19]}...; make the plan anew"
        )
    for key in ("cluster", "rules", "uneven"):
        mine, asked = getattr(plan, key), getattr(problem, key)
        if mine != asked:
            reasons.append(f"{key}: the plan is for {mine}, not {asked}")
    return reasons


def _broken_rules(plan: PartitionPlan, problem: Partitioning, chosen: np.ndarray) -> list[str]:
    """Blocked classes, conflicts, and dimensions that would have to be partitioned as well."""
    classes, graph = problem.classes, problem.graph
    words = Explainer(classes)
    places = {
        path: int(graph.dim_offset[problem.tensor[path]]) + dimension
        for path, dimension in plan.partition.items()
    }
    first: dict[int, int] = {}  # class -> the first dimension that the plan names
    for place in places.values():
        first.setdefault(int(classes.label[place]), place)
    reasons = []
    for label, place in first.items():
        if classes.blocked[label]:
            reasons.append(
                f"{words.dimension(place)} cannot be partitioned: {words.blocked(label)}"
            )
    both = chosen[classes.conflicts].all(axis=1)
    for one, other in classes.conflicts[both].tolist():
        reasons.append(
            f"{words.dimension(first[one])} and {words.dimension(first[other])} cannot both be "
            f"partitioned: {words.conflict(one, other)}"
        )
    if reasons:
        return reasons
    for index in problem.parameters(scope_of(plan.task, "paper")).tolist():
        tensor, path = int(graph.parameter_tensor[index]), graph.paths[index]
        start, end = graph.dim_offset[tensor : tensor + 2].tolist()
        split = np.flatnonzero(chosen[classes.label[start:end]] & (graph.dims[start:end] > 1))
        if split.size and path not in plan.partition:
            if len(reasons) >= MOST_REASONS:  # a chain takes a search, and only these are shown
                reasons.append(path)
                continue
            place = start + int(split[0])
            origin = first[int(classes.label[place])]
            reasons.append(
                f"{words.dimension(place)} must be partitioned with {words.dimension(origin)}: "
                f"linked by {words.link(origin, place)}"
            )
    return reasons
