"""The problem of partitioning, and the judge of its plans.

``Partitioning`` is a graph on a cluster together with what is asked of it: a scope and a reward.
Its costs come from ``parenvs.tasks.partition.formulas`` (seconds, returns) and ``memory`` (bytes),
its rules from ``classes`` and ``legality``. ``PartitionReport`` is what it says of a plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

import parenvs.tasks.partition.classes as propagation
import parenvs.tasks.partition.formulas as formulas
from parenvs.cluster import PRESETS, Cluster
from parenvs.compiled import Array
from parenvs.core.plan import ILLEGAL, Bounded, Plan, Report
from parenvs.errors import (
    ClusterError,
    ParenvsError,
    PlanError,
    did_you_mean,
    refuse_unknown,
    shown,
)
from parenvs.fields import Count, Index, Size, Text, one_of, read, settle, whole
from parenvs.files import StrPath
from parenvs.graph.graph import Graph
from parenvs.graph.layout import shape_text
from parenvs.instances import Key, load_graph, reading_key, stamp, text_of
from parenvs.tasks.partition.classes import REMADE, RULE_SETS, SETTINGS, UNEVEN, WHOLE, StepSettings
from parenvs.tasks.partition.formulas import Footprint, LinearReturn, Memory
from parenvs.tasks.partition.words import Explainer

if TYPE_CHECKING:
    from typing_extensions import Self

SCOPES = ("variables", "inputs")
"""What plans decide: variables, and batch inputs beside them, or batch inputs alone."""
REWARDS = ("paper", "step_time")
"""What plans are paid for: dimensions that are partitioned, or seconds of a step that are saved."""
STEP_OPTIONS = ("micro_batch", "micro_batches", "recompute", "memory_limit")
"""Options that say how a step runs, see ``StepSettings.of``; plan files leave out defaults."""


MEMORY_PARTS = ("parameters", "optimizer", "inputs", "gradients", "activations")
"""Fields of ``Memory`` in the order in which they are shown."""


@dataclass(frozen=True)
class PartitionPlan(Plan):
    """Dimensions of variables or batch inputs that are partitioned over all devices.

    Of scope ``"variables"`` every variable that is not named is replicated; batch inputs may be
    named too, and the partitioning of those that are not follows from the variables. Of scope
    ``"inputs"`` batch inputs alone are named, those that are not are replicated, and the
    partitioning of variables follows from the inputs.

    Attributes:
        instance: shipped name or path of the graph.
        fingerprint: ``sha256:...`` of the arrays of the graph.
        cluster: the devices.
        partition: path of a variable or batch input -> its partitioned dimension.
        scope: ``"variables"`` or ``"inputs"``.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` or ``"forbid"``.
        micro_batch: samples of a micro-batch; None: the batch that the graph was made for.
        micro_batches: micro-batches of a step, whose gradients are added up.
        recompute: ``"none"`` or ``"full"``.
        memory_limit: bytes that the plan keeps to on each device; None: no limit is asked for.
        reward: ``"paper"`` or ``"step_time"``, by which the judge values the plan if it is given no
            problem.
    """

    instance: Text
    fingerprint: Text
    cluster: Cluster
    partition: dict[str, Index]
    scope: Annotated[str, one_of(*SCOPES)] = SCOPES[0]
    rules: Annotated[str, one_of(*RULE_SETS)] = RULE_SETS[0]
    uneven: Annotated[str, one_of(*UNEVEN)] = UNEVEN[0]
    micro_batch: Count | None = None
    micro_batches: Count = 1
    recompute: Annotated[str, one_of(*REMADE)] = REMADE[0]
    memory_limit: Size | None = None
    reward: Annotated[str, one_of(*REWARDS)] = REWARDS[0]

    task: ClassVar[str] = "partition"
    settings: ClassVar[tuple[str, ...]] = (
        "fingerprint", "cluster", "rules", "uneven", "micro_batch", "micro_batches", "recompute",
    )  # fmt: skip

    @property
    def step(self) -> dict[str, Any]:
        """How a step runs, by the names of the fields: the arguments that make the problem."""
        return {key: getattr(self, key) for key in STEP_OPTIONS}

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first.

        One server of V100 is written as its number of devices, without ``cluster``.
        """
        defaults = dict(zip(STEP_OPTIONS, (None, 1, REMADE[0], None), strict=True))
        content: dict[str, Any] = {**self._head(), "devices": self.cluster.devices}
        if self.cluster != Cluster.parse(f"1x{self.cluster.devices}:v100"):
            content["cluster"] = self.cluster.to_json()
        return {
            **content,
            **({} if self.scope == SCOPES[0] else {"scope": self.scope}),
            **({} if self.reward == REWARDS[0] else {"reward": self.reward}),
            "rules": self.rules,
            "uneven": self.uneven,
            **{key: value for key, value in self.step.items() if value != defaults[key]},
            "partition": dict(sorted(self.partition.items())),
        }

    @classmethod
    def _of(cls, body: dict[str, Any], where: str) -> Self:
        """See ``Plan._of``; without a cluster it is one server of so many V100."""
        about_devices = {key: body[key] for key in ("devices", "cluster") if key in body}
        stated = read(_Devices, about_devices, where, PlanError)
        try:
            cluster = stated.cluster or Cluster.parse(f"1x{stated.devices}:v100")
        except ClusterError as error:
            raise PlanError(f"{where}: field 'devices': {error}") from None
        if cluster.devices != stated.devices:
            raise PlanError(
                f"{where}: field 'devices' is {stated.devices}, but the cluster has "
                f"{cluster.devices}"
            )
        fields = {key: value for key, value in body.items() if key != "devices"}
        return super()._of({**fields, "cluster": cluster}, where)


@dataclass(frozen=True)
class _Devices:
    devices: Annotated[int, whole(2)]
    cluster: Cluster | None = None


MAX_REASONS = 20
"""Reasons that are given in full."""


def _valid_entries(
    plan: PartitionPlan, classes: propagation.DimensionClasses
) -> tuple[dict[str, int], list[str]]:
    """The plan's entries that can be split, and the reasons against the others.

    What a plan may name, and what it must name in full, follows from the plan's own scope.
    """
    scope, graph = propagation.full_scope(plan.scope, "step_time"), classes.graph
    paths = {graph.paths[i] for i in classes.parameters(scope).tolist()}
    what = "batch input" if scope == "inputs" else "variable or batch input"
    valid, reasons = {}, []
    for path, dimension in plan.partition.items():
        if path not in paths:
            reasons.append(f"partition: no {what} {shown(path)}{did_you_mean(path, paths)}")
            continue
        tensor = classes.tensor[path]
        if not 0 <= dimension < len(graph.shape(tensor)):
            shape = shape_text(graph, tensor)
            reasons.append(f"partition: {path} is {shape} and has no dimension {dimension}")
        elif graph.shape(tensor)[dimension] == 1:
            reasons.append(f"partition: dimension {dimension} of {path} has size 1")
        else:
            valid[path] = dimension
    return valid, reasons


def _broken_rules(
    plan: PartitionPlan, classes: propagation.DimensionClasses, chosen: Array
) -> list[str]:
    graph, words = classes.graph, Explainer(classes)
    start = {path: int(graph.dim_offset[tensor]) for path, tensor in classes.tensor.items()}
    # Class -> position of the first dimension that the plan names.
    named: dict[int, int] = {}
    for path, dimension in plan.partition.items():
        position = start[path] + dimension
        named.setdefault(int(classes.label[position]), position)
    reasons = [
        f"{words.dimension(position)} cannot be partitioned: {words.blocked(label)}"
        for label, position in named.items()
        if classes.blocked[label]
    ]
    conflicting = chosen[classes.conflicts].all(axis=1)
    for lower, upper in classes.conflicts[conflicting].tolist():
        reasons.append(
            f"{words.dimension(named[lower])} and {words.dimension(named[upper])} cannot both be "
            f"partitioned: {words.conflict(lower, upper)}"
        )
    if reasons:
        return reasons
    # Only of a plan that can be: what it should have named, too.
    implied = classes.partition(chosen, plan.scope)
    for path, dimension in implied.items():
        if path in plan.partition:
            continue
        # A chain takes a search, and only these are shown.
        if len(reasons) >= MAX_REASONS:
            reasons.append(path)
            continue
        position = start[path] + dimension
        origin = named[int(classes.label[position])]
        reasons.append(
            f"{words.dimension(position)} must be partitioned with {words.dimension(origin)}: "
            f"linked by {words.link(origin, position)}"
        )
    return reasons


_PEAKS = 4096
"""Peaks of plans that a problem keeps."""


@dataclass(frozen=True, eq=False)
class Partitioning:
    """A graph to be partitioned over the devices of a cluster. C dimension classes.

    Another scope or reward on the same classes: ``dataclasses.replace(problem, reward=...)``.

    Attributes:
        cluster: the devices.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` or ``"forbid"``, for dimensions that are no multiple of the devices.
        scope: ``"variables"`` or ``"inputs"``, what plans decide.
        reward: ``"paper"`` or ``"step_time"``, what ``value`` and the environments pay.
        instance: name or path that plans carry (default: the graph's name).
        step: micro-batches, recomputation, and the limit of memory; the classes are those of the
            graph at its micro-batch.

    Raises:
        ParenvsError: unknown scope or reward.
    """

    task: ClassVar[str] = "partition"
    graph: Graph
    cluster: Cluster
    rules: str
    uneven: str
    classes: propagation.DimensionClasses
    scope: str = SCOPES[0]
    reward: str = "paper"
    instance: str = ""
    step: StepSettings = WHOLE

    def __post_init__(self) -> None:
        """Refuse unknown scopes and rewards; take the graph's name where no instance is given."""
        settle(self)
        refuse_unknown("unknown scope", self.scope, SCOPES)
        refuse_unknown("unknown reward", self.reward, REWARDS)
        if not self.instance:
            object.__setattr__(self, "instance", self.graph.name)

    @classmethod
    def build(
        cls,
        graph: Graph,
        cluster: Cluster | StrPath | dict[str, Any],
        rules: str = "shardy",
        uneven: str = "pad",
        scope: str = SCOPES[0],
        reward: str = "paper",
        instance: str = "",
        **step: Any,
    ) -> Partitioning:
        """Find the classes of a graph.

        The arguments are those of the class; ``step`` has ``micro_batch``, ``micro_batches``,
        ``recompute`` and ``memory_limit``, see ``StepSettings.of``.

        Raises:
            ParenvsError: one device only, no trainable variable, paths that are not unique,
                unknown rules, scope or reward, or a setting of the step that cannot be.
        """
        cluster = Cluster.parse(cluster)
        if cluster.devices < 2:
            raise ParenvsError(
                f"devices: partitioning needs at least 2, the cluster {cluster} has 1"
            )
        if not len(graph.weights):
            raise ParenvsError(
                f"{graph.name}: no trainable variable; read the module with "
                "from_hlo(path, variables=...), an argument's index or globs over parameter "
                "paths, save it as .npz and give that"
            )
        how = StepSettings.of(cluster, **step).on(graph)
        classes = propagation.dimension_classes(graph, rules, uneven, cluster.devices)
        if how.micro_batch is not None:
            classes = propagation.at_micro_batch(classes, how.micro_batch, uneven)
        problem = cls(graph, cluster, rules, uneven, classes, scope, reward, instance, how)
        paths = [graph.paths[i] for i in problem.parameters("all").tolist()]
        twice = [path for path, count in Counter(paths).items() if count > 1]
        if twice:
            raise ParenvsError(
                f"{graph.name}: {len(twice)} variables or batch inputs share a path, like "
                f"{twice[0]!r}; plans name them by path, so change a key of that argument"
            )
        return problem

    def __deepcopy__(self, memo: dict[int, Any]) -> Partitioning:
        """Itself: nothing in it changes, and environments that are forked share it."""
        return self

    def __repr__(self) -> str:
        """Graph, cluster and what is asked, in a line."""
        return (
            f"Partitioning({self.graph.name!r}, {self.cluster}, rules={self.rules!r}, "
            f"uneven={self.uneven!r}, scope={self.scope!r}, reward={self.reward!r}"
            + "".join(f", {name}={value!r}" for name, value in self.step.settings.items())
            + ")"
        )

    # What is decided

    @property
    def full_scope(self) -> str:
        """``"variables"``, ``"inputs"`` or ``"all"``: the entry parameters that are decided."""
        return propagation.full_scope(self.scope, self.reward)

    @property
    def inputs(self) -> Array:
        """Indices into the parameter arrays of the batch inputs, in parameter order."""
        return self.classes.inputs

    @property
    def tensor(self) -> dict[str, int]:
        """Tensor of each variable and batch input, by path."""
        return self.classes.tensor

    def parameters(self, scope: str | None = None) -> Array:
        """Indices of the entry parameters of a scope (default: all that is decided)."""
        return self.classes.parameters(scope or self.full_scope)

    def dimensions(self, scope: str | None = None) -> Array:
        """(V,) positions in ``graph.dims`` of the dimensions of a scope (default: all decided)."""
        return self.classes.dimensions_of(self.parameters(scope))

    def paths_of(self, dimensions: Array) -> set[str]:
        """Paths of the variables and batch inputs that have some of the positions' dimensions."""
        tensors = set(propagation.owner_of(self.classes.graph)[dimensions].tolist())
        return {path for path, tensor in self.tensor.items() if tensor in tensors}

    def counts(self, scope: str | None = None) -> Array:
        """(C,) dimensions of a scope, of those larger than 1, in each class."""
        return self.classes.counts(self.dimensions(scope))

    def decidable(self, scope: str | None = None) -> Array:
        """(k,) classes that hold dimensions of a scope and can be partitioned, ascending."""
        return np.flatnonzero((self.counts(scope) > 0) & ~self.classes.blocked)

    # What it costs and pays

    @cached_property
    def device_share(self) -> Array:
        """(C,) largest share of a dimension that one device holds if its class is partitioned."""
        return formulas.device_share(self.classes, self.cluster.devices)

    @cached_property
    def seconds(self) -> Array:
        """(I,) seconds of each instruction in a step on one device."""
        graph = self.classes.graph
        times = self.step.repetitions(graph, self._reruns)
        return formulas.instruction_seconds(graph, self.cluster.device) * times

    @cached_property
    def synchronizations(self) -> Array:
        """(I,) how often a step all-reduces partial results of each instruction, loops aside."""
        times = self.step.repetitions(self.classes.graph, self._reruns)
        if self.step.micro_batches == 1:
            return times
        return np.where(propagation.synchronized_once(self.classes), 1.0, times)

    @property
    def _reruns(self) -> Array | int:
        """(I,) bool, what the backward pass runs once more; 0 if that is nothing."""
        return self.footprint.reruns if self.step.recomputes else 0

    @cached_property
    def replicate_seconds(self) -> float:
        """Seconds of a step in which every device does everything."""
        return float(self.seconds.sum())

    @cached_property
    def saved_seconds(self) -> Array:
        """(C,) seconds of computation that partitioning a class saves in a step."""
        return formulas.saved_seconds(self.classes, self.seconds, self.device_share)

    @cached_property
    def all_reduce_seconds(self) -> Array:
        """(C,) seconds of all-reduces that partitioning a class costs in a step."""
        return formulas.all_reduce_seconds(
            self.classes, self.seconds, self.cluster, self.synchronizations
        )

    @cached_property
    def gain_seconds(self) -> Array:
        """(C,) by how much partitioning a class shortens the step; may be negative."""
        return self.saved_seconds - self.all_reduce_seconds

    def step_seconds(self, chosen: Array) -> Array:
        """Seconds of a step, (...), if the classes ``chosen``, (..., C) bool, are partitioned."""
        return np.asarray(self.replicate_seconds - chosen @ self.gain_seconds)

    @cached_property
    def returns(self) -> LinearReturn:
        """The return of the problem's reward: its base, and (C,) what each class adds."""
        return self.returns_of(self.reward, self.full_scope)

    def returns_of(self, reward: str, scope: str) -> LinearReturn:
        """The return of any reward over any scope.

        Args:
            reward: ``"paper"``: 0.1 a dimension, 0.3 more if it is partitioned. ``"step_time"``:
                the share of the replicated step's seconds that is saved.
            scope: whose dimensions the paper's reward counts.

        Raises:
            ParenvsError: unknown reward.
        """
        if reward == "paper":
            return formulas.paper_return(len(self.dimensions(scope)), self.counts(scope))
        if reward == "step_time":
            # 1 - T / T_replicate; a step of no seconds, all of constants, has nothing to save.
            return LinearReturn(0.0, self.gain_seconds / (self.replicate_seconds or 1.0))
        raise ParenvsError(f"reward must be one of {REWARDS}, not {shown(reward)}")

    def value(self, chosen: Array) -> Array:
        """Return of the complete episodes that partition the classes ``chosen``, (..., C) bool.

        It is -1 beyond the limit of memory, if there is one.
        """
        returns = self.returns.value(chosen)
        if self.step.limit is None:
            return returns
        fits = np.array([self.fits(plan) for plan in chosen.reshape(-1, chosen.shape[-1])])
        return np.where(fits.reshape(chosen.shape[:-1]), returns, ILLEGAL)

    def _parts(self, chosen: Array) -> tuple[float, float]:
        """Seconds of computation and of communication of a step; ``chosen`` is (C,) bool."""
        # T = T_replicate - sum(saved) + sum(all-reduce), apart: reports show both parts.
        compute = self.replicate_seconds - float(self.saved_seconds[chosen].sum())
        return compute, float(self.all_reduce_seconds[chosen].sum())

    def cost(self, chosen: Array) -> float:
        """The number to minimize if the classes ``chosen``, (C,) bool, are partitioned.

        It is the seconds of a step; under the paper's reward 1 / return, inf if that is 0.
        """
        if self.reward != "paper":
            return sum(self._parts(chosen))
        # To minimize 1 / return is to maximize the return, which is never negative here.
        value = float(self.returns.value(chosen))
        return 1.0 / value if value else math.inf

    @cached_property
    def footprint(self) -> Footprint:
        """Memory on each device."""
        graph, step = self.classes.graph, self.step
        share = self.device_share
        return Footprint(graph, self.classes.label, share, step.micro_batches, step.recomputes)

    @property
    def memory_limit(self) -> float:
        """Bytes that a plan may use on each device: the limit, or without one the cluster's."""
        return self.cluster.memory_limit if self.step.limit is None else self.step.limit

    @cached_property
    def _peaks(self) -> dict[bytes, float]:
        """Peaks of choices of classes that were asked for; learners ask for few plans often."""
        return {}

    def peak(self, chosen: Array) -> float:
        """Peak bytes per device of the classes ``chosen``, (C,) bool; milliseconds, cached."""
        key = np.packbits(chosen).tobytes()
        if key not in self._peaks:
            if len(self._peaks) >= _PEAKS:
                self._peaks.clear()
            self._peaks[key] = self.footprint.memory(chosen).peak
        return self._peaks[key]

    def fits(self, chosen: Array) -> bool:
        """Whether the classes ``chosen``, (C,) bool, keep to ``memory_limit``."""
        return self.peak(chosen) <= self.memory_limit

    # Choices, plans and reports

    def legal(self, chosen: Array) -> bool:
        """Whether the classes ``chosen``, (C,) bool, can be partitioned together."""
        return self.classes.legal(chosen)

    def chosen(self, partition: Mapping[str, int]) -> Array:
        """(C,) bool, the classes of the partitioned dimensions of entry parameters, by path."""
        return self.classes.chosen(partition)

    def partition(self, chosen: Array, scope: str | None = None) -> dict[str, int]:
        """Partitioned dimension of each entry parameter of a scope that has one, by path."""
        return self.classes.partition(chosen, scope or self.full_scope)

    def plan(self, chosen: Array, scope: str | None = None) -> PartitionPlan:
        """The plan that partitions the classes ``chosen``, (C,) bool.

        It names the entry parameters of a scope (default: all that is decided, which is batch
        inputs beside variables under the step time).
        """
        return PartitionPlan(
            instance=self.instance,
            fingerprint=self.graph.fingerprint,
            cluster=self.cluster,
            partition=self.partition(chosen, scope),
            scope=self.scope,
            reward=self.reward,
            rules=self.rules,
            uneven=self.uneven,
            **self.step.settings,
        )

    def report(self, plan: PartitionPlan) -> PartitionReport:
        """Judge a plan of any scope on this graph and cluster.

        What the plan has to name follows from its own scope, not from the problem's. The limit of
        memory is the problem's, whatever the plan was made for.
        """
        classes, dims = self.classes, self.graph.dims
        valid, reasons = _valid_entries(plan, classes)
        settings = {name: getattr(self, name) for name in ("cluster", "rules", "uneven")}
        settings |= {name: getattr(self.step, name) for name in SETTINGS}
        reasons += plan.mismatches(self.graph.name, self.graph.fingerprint, settings)
        chosen = classes.chosen(valid)
        if not reasons:
            reasons = _broken_rules(plan, classes, chosen)
        memory, limit = self.footprint.memory(chosen), self.step.limit
        if limit is not None and not reasons and memory.peak > limit:
            reasons = [
                f"memory: {memory.peak:,.0f} bytes on each device, {memory.peak - limit:,.0f} more "
                f"than the {limit:,.0f} allowed"
            ]
        hidden = len(reasons) - MAX_REASONS
        if hidden > 0:
            reasons[MAX_REASONS:] = [f"and {hidden} more"]
        dimensions = self.dimensions(plan.scope)
        split = chosen[classes.label[dimensions]] & (dims[dimensions] > 1)
        compute, communication = self._parts(chosen)
        return PartitionReport(
            plan=plan,
            problem=self,
            reasons=tuple(reasons),
            chosen=chosen,
            variables=len(self.partition(chosen, "variables")),
            dimensions=len(dimensions),
            partitioned_dimensions=int(split.sum()),
            compute_seconds=compute,
            communication_seconds=communication,
            all_reduces=formulas.all_reduces(classes, chosen, self.synchronizations),
            replicate_seconds=self.replicate_seconds,
            memory=memory,
        )


@dataclass(frozen=True)
class PartitionReport(Report):
    """What the judge says of a partition plan. C dimension classes.

    Attributes:
        plan: the plan.
        reasons: every rule that it breaks, in words; empty if it is legal.
        chosen: (C,) bool, the classes that it partitions.
        variables: variables that are partitioned (the paper's PC counts these).
        dimensions: dimensions of the plan's scope, size 1 included.
        partitioned_dimensions: those of them that are partitioned.
        replicate_seconds: of a step in which every device does everything.
        memory: bytes on each device when most is in use.
        reward: the reward that a planner was asked for, which is printed alone; or an empty
            string: both are printed.
        bound: proven upper bound of that reward's return over all legal plans, or None; printed.
    """

    task: ClassVar[str] = "partition"
    bound_words: ClassVar[tuple[str, str]] = ("upper", " of the return")
    cost_words: ClassVar[str] = (
        "the partition model's: instructions one by one, unfused, no launches, no update of weights"
    )
    plan: PartitionPlan
    problem: Partitioning
    reasons: tuple[str, ...]
    chosen: Array
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
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.compute_seconds + self.communication_seconds

    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        seconds = {"compute": self.compute_seconds, "communication": self.communication_seconds}
        return seconds, {name: getattr(self.memory, name) for name in MEMORY_PARTS}

    @property
    def utilization(self) -> float:
        """Average device utilization, in [0, 1]: useful FLOPs / (N * peak * step time).

        What is recomputed is not useful. It is 0 if all is computed from constants, so that a step
        takes no time.
        """
        cluster = self.problem.cluster
        if not self.step_seconds:
            return 0.0
        # With infinite bandwidth the roofline leaves the seconds of the FLOPs.
        device = replace(cluster.device, memory_bw=math.inf)
        graph = self.problem.classes.graph
        seconds = formulas.instruction_seconds(graph, device, efficiency=1.0)
        useful = float((seconds * self.problem.step.repetitions(graph)).sum())
        return useful / (cluster.devices * self.step_seconds)

    @property
    def fits(self) -> bool:
        """Whether a device's memory holds the peak, within the share that plans may use."""
        return self.memory.peak <= self.problem.memory_limit

    @property
    def cost(self) -> float:
        """Seconds of a step; under the paper's reward 1 / return, inf if the plan is illegal."""
        paper = self.problem.reward == "paper"
        return math.inf if paper and not self.legal else self.problem.cost(self.chosen)

    @property
    def value(self) -> float:
        """Return of the episode that makes this plan, or -1 if it is illegal."""
        return self.value_of(self.problem.reward)

    def value_of(self, reward: str) -> float:
        """Return of the episode that makes this plan under a reward, or -1 if it is illegal."""
        if not self.legal:
            return ILLEGAL
        scope = propagation.full_scope(self.plan.scope, reward)
        returns = self.problem.returns_of(reward, scope)
        return float(returns.value(self.chosen))

    def gap(self, answer: Bounded) -> float | None:
        """Share by which the return may fall short of the best, 0 for an optimum.

        None without a bound, or if this plan is illegal. ``answer`` is any for the same problem.
        """
        if answer.bound is None or not self.legal:
            return None
        return max(answer.bound - self.value, 0.0) / max(abs(answer.bound), 1e-12)

    def certified(self, answer: Bounded) -> PartitionReport:
        """The same report, to be printed with the problem's reward and the bound of an answer."""
        return replace(self, reward=self.problem.reward, bound=answer.bound)

    def to_json(self) -> dict[str, Any]:
        """The report as an object of JSON types (seconds and bytes)."""
        figures = (
            "dimensions", "partitioned_dimensions", "step_seconds", "compute_seconds",
            "communication_seconds", "all_reduces", "replicate_seconds", "utilization",
        )  # fmt: skip
        return {
            "legal": self.legal,
            "reasons": list(self.reasons),
            "values": {reward: self.value_of(reward) for reward in REWARDS},
            "reward": self.reward or None,
            "bound": self.bound,
            "gap": self.gap(self),
            "partitioned_variables": self.variables,
            **{name: getattr(self, name) for name in figures},
            "memory_bytes": {**vars(self.memory), "peak": self.memory.peak},
            "memory_limit_bytes": self.problem.memory_limit,
            "fits": self.fits,
        }


def load_partitioning(
    instance: StrPath | Graph,
    cluster: Cluster | StrPath | dict[str, Any],
    rules: str = "shardy",
    uneven: str = "pad",
    scope: str = SCOPES[0],
    reward: str = "paper",
    arguments: str | None = None,
    **options: Any,
) -> Partitioning:
    """Load the partitioning of a shipped instance or a graph file.

    The same name or path and settings give the same object; problems that differ only in scope
    or reward share the graph and its classes.

    Args:
        instance: the name or path, which plans carry, or a ``Graph``.
        cluster: the devices, in any form that ``Cluster.parse`` takes.
        rules: this and the next are those of ``Partitioning``.
        uneven: see there.
        scope: see there.
        reward: see there.
        arguments: see ``load_graph``.
        **options: of the step, see ``Partitioning.build``, and of reading, see ``load_graph``.

    Raises:
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: see ``load_graph`` and ``Partitioning.build``.
    """
    devices = Cluster.parse(cluster)
    settings = {key: options.pop(key) for key in STEP_OPTIONS if key in options}
    if isinstance(instance, Graph):
        graph = load_graph(instance, arguments=arguments, **options)
        return Partitioning.build(graph, devices, rules, uneven, scope, reward, **settings)
    text, step = text_of(instance, "a Graph"), StepSettings.of(devices, **settings)
    how = (arguments, reading_key(options), stamp(text))
    # Plans write the preset, if the cluster is one.
    named = next((preset for preset in PRESETS.values() if preset == devices), devices)
    return _cached(scope, reward, step, text, how, named, rules, uneven)


@lru_cache(maxsize=64)
def _cached(scope: str, reward: str, step: StepSettings, *key: Any) -> Partitioning:
    """Load the problem; ``key`` begins the arguments of ``_cached_classes``."""
    # The classes depend on the micro-batch, but not on scope, reward or memory limit.
    classes = _cached_classes(*key, step.micro_batch)
    return replace(classes, scope=scope, reward=reward, step=step.on(classes.graph))


@lru_cache(maxsize=16)
def _cached_classes(
    instance: str,
    how: tuple[str | None, Key, int | None],
    cluster: Cluster,
    rules: str,
    uneven: str,
    micro_batch: int | None,
) -> Partitioning:
    """Load the problem with the default scope and reward, which do not change the classes."""
    # The time of the file's last change is part of the key.
    arguments, reading, _ = how
    graph = load_graph(instance, arguments=arguments, **dict(reading))
    build = partial(Partitioning.build, instance=instance, micro_batch=micro_batch)
    return build(graph, cluster, rules, uneven)
