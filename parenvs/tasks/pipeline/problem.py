"""A pipeline problem: a chain on a cluster, and what plans of it cost.

A plan cuts a chain of n pivots into S stages and D devices into S consecutive groups. Functions
are vectorized over plans: ``cuts`` and ``device_cuts`` have the shape (..., S-1). The formulas are
those of ``parenvs.tasks.pipeline.formulas``; this module looks up their arguments for a plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from parenvs import cluster as network
from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.compiled import Array, bare, compiled
from parenvs.core.plan import ILLEGAL, TimedReport
from parenvs.errors import InfeasibleError, ProfileError, refuse_unknown
from parenvs.fields import Count, number, settle, whole
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.formulas import StageTimes, Timetable, simulate
from parenvs.tasks.pipeline.plan import (
    COPIES,
    MICRO_BATCHES,
    RECOMPUTE,
    TIED,
    PipelinePlan,
    can_split,
    group_sizes,
    malformed,
    of_fractions,
    over_memory,
    without_variable,
)
from parenvs.tasks.pipeline.profile import ChainSums, RangeTable, StageProfile, mismatches

MAX_MICRO_BATCHES = 10_000
"""Largest number of micro-batches; the time of the simulation grows with it."""
MOST_COPIES = 1_000
"""Largest number of copies of the parameters."""


def stages_on(cluster: Cluster, stages: int | None = None) -> int:
    """Return ``stages``, or if it is None the default: one stage a server, at least two."""
    return max(cluster.servers, 2) if stages is None else stages


@dataclass(frozen=True)
class Pipeline(ChainSums):
    """The problem of cutting a chain into S stages on a cluster.

    Methods take arrays of cuts with any number of stages; ``stages`` is the number that plans of
    solvers and search spaces have, and that the judge requires. One is pure data parallelism.

    >>> import parenvs
    >>> problem = parenvs.problem("vgg-19", cluster="A")
    >>> problem.stages, problem.length([20], [8]).shape
    (2, ())

    Attributes:
        profile: the chain, n pivots.
        cluster: the devices; text, as ``Cluster.parse`` takes it, is parsed.
        stages: S (default: one stage a server, at least two).
        micro_batches: M, micro-batches per step.
        copies: copies of the parameters that each device of a stage holds.
        recompute: ``"full"``: activations inside a stage are recomputed in the backward pass;
            ``"none"``: they are kept (needs ``profile.resident_bytes``).
        sync: how gradients are synchronized, see ``Cluster.sync_seconds``.
        tied: ``"held"``: every stage that reads a tied weight holds it, and sums its gradient with
            the others; ``"once"``: it counts where it is first read.
        fractions: whether devices may share a sample of a micro-batch, as in the paper; else the
            devices of a stage divide its number of samples, as programs that run ask for.
        instance: name or path of the instance; plans carry it (default: the profile's name).
    """

    task: ClassVar[str] = "pipeline"
    profile: StageProfile
    cluster: Cluster
    stages: Count = None  # type: ignore[assignment]  # resolved in __post_init__
    micro_batches: Annotated[int, whole(1, MAX_MICRO_BATCHES)] = MICRO_BATCHES
    copies: Annotated[float, number(0, MOST_COPIES)] = COPIES
    recompute: str = RECOMPUTE[0]
    sync: str = SYNC_METHODS[0]
    tied: str = TIED[0]
    fractions: bool = True
    instance: str = ""

    def __post_init__(self) -> None:
        """Fill in defaults and raise errors for settings that no plan can have."""
        settle(self, "profile", "instance")
        fill = object.__setattr__
        fill(self, "cluster", Cluster.parse(self.cluster))
        fill(self, "instance", self.instance or self.profile.name)
        timed, device = self.profile.device, self.cluster.device
        ignored: dict[str, Any] = {"name": "", "memory_bytes": 0}  # what seconds do not depend on
        if timed and replace(timed, **ignored) != replace(device, **ignored):
            raise ProfileError(
                f"profile {self.profile.name}: its seconds are those of a {timed.name}, but "
                f"{self.cluster} has {device.name} devices; make the chain anew with "
                "StageProfile.from_graph(graph, cluster.device) or parenvs.problem(graph, cluster)"
            )
        choices = {"recompute": RECOMPUTE, "sync": SYNC_METHODS, "tied": TIED}
        for name, allowed in choices.items():
            refuse_unknown(f"unknown {name}", getattr(self, name), allowed, InfeasibleError)
        if self.recompute == "none" and self.profile.resident_bytes is None:
            raise InfeasibleError(
                f"profile {self.profile.name} has no resident_bytes: recompute='none' needs them"
            )
        if self.cluster.devices < 2:
            raise InfeasibleError("a pipeline needs at least two devices")
        if self.stages is None:
            fill(self, "stages", stages_on(self.cluster))
        settle(self, "stages", "micro_batches", "copies", "fractions", error=InfeasibleError)

    def with_stages(self, stages: int, cluster: Cluster | None = None) -> Pipeline:
        """Return the problem with other stages, also on another cluster; prefix sums are shared."""
        return self._replaced(stages=stages, cluster=cluster or self.cluster)

    def _replaced(self, **changes: Any) -> Pipeline:
        """A copy with changes that no prefix sum depends on; it shares those computed so far."""
        other = replace(self, **changes)
        for name, value in vars(self).items():
            if name != "is_group":
                vars(other).setdefault(name, value)  # values of cached properties
        return other

    @property
    def words(self) -> str:
        """Chain and cluster, for messages."""
        return f"{self.profile.name} on {self.cluster}"

    @property
    def options(self) -> dict[str, Any]:
        """Settings of the cost model, by the names that plans and environments use."""
        names = ("copies", "recompute", "sync", "tied")
        return {name: getattr(self, name) for name in names}

    @cached_property
    def is_group(self) -> Array:
        """Whether a stage may have so many devices, (D+1,) bool."""
        sizes = np.full(self.cluster.devices + 1, self.fractions)
        if not self.fractions:
            sizes[group_sizes(self.profile.micro_batch, self.cluster.devices)] = True
        sizes[0] = False
        return sizes

    def can_split(self, stages: int) -> bool:
        """Return whether stages can share all devices by ``is_group``."""
        if self.fractions:
            return 1 <= stages <= self.cluster.devices
        return can_split(self.cluster.devices, stages, np.flatnonzero(self.is_group).tolist())

    def with_fractions(self) -> Pipeline:
        """Return the problem in which devices may share a sample, as environments play it."""
        return self if self.fractions else self._replaced(fractions=True)

    @property
    def bubble_free(self) -> float:
        """Seconds of a step if all devices compute all the time: ``M sum(F+B) / D``."""
        return float(self.micro_batches * self.seconds_sum[-1] / self.cluster.devices)

    @property
    def memory_limit(self) -> float:
        """Bytes that a stage may hold on each of its devices."""
        return self.cluster.memory_limit

    def stage_times(self, cuts: Array, device_cuts: Array) -> StageTimes:
        """Return the seconds of every stage and transfer of plans, shape (..., 2S-1)."""
        seconds = self.stage_seconds(cuts, device_cuts)
        # Transfers stand at the odd places and synchronize nothing.
        all_reduce = np.zeros_like(seconds.forward)
        all_reduce[::2] = seconds.all_reduce
        figures = (seconds.forward, seconds.backward, all_reduce)
        return StageTimes(*(np.moveaxis(figure, 0, -1) for figure in figures))

    def stage_memory(self, cuts: Array, device_cuts: Array) -> Array:
        """Return the bytes on each device of every compute stage, shape (..., S)."""
        return np.moveaxis(self._memory(cuts, device_cuts), 0, -1)

    def memory_of(self, first: Array, end: Array, group: Array, stages_left: Array) -> Array:
        """Return the bytes that a stage needs on each of its devices, elementwise.

        Args:
            first: first pivot of the stage.
            end: one past its last pivot.
            group: number of devices that share the stage.
            stages_left: stages from this one to the last, itself included (S - s).
        """
        weights, activations = self.memory_parts(first, end, stages_left)
        return formulas.stage_bytes(weights, activations, group)

    def memory_parts(self, first: Array, end: Array, stages_left: Array) -> tuple[Array, Array]:
        """Return the bytes of a stage's weights and of the activations that its devices share.

        Both are elementwise; arguments are those of ``memory_of``.
        """
        # Under 1F1B a stage holds the activations of K micro-batches.
        flight = formulas.in_flight(stages_left, self.micro_batches)
        weights = self.weight_bytes(first, end)
        if self.recompute == "none":
            resident_bytes = self.resident_sum[end] - self.resident_sum[first]
            return weights, formulas.kept_bytes(resident_bytes, flight)
        largest, entering = self.largest_cut(first, end), self.cut_before[first]
        return weights, formulas.recomputed_bytes(largest, entering, flight)

    def exchange_seconds(self, first: Array, end: Array) -> Array | float:
        """Return the seconds in which ``[first, end)`` sums tied gradients with other stages."""
        if self.tied_weights is None:
            return 0.0
        shared_bytes = self.tied_weights.between(self.tied_weights.shared, first, end)
        cluster = self.cluster
        bandwidth = cluster.inter_bw if cluster.servers > 1 else cluster.intra_bw
        return formulas.exchange_seconds(shared_bytes, bandwidth)

    def reduce_seconds(self, first: Array, end: Array, device: Array, device_end: Array) -> Array:
        """Return the seconds in which stages synchronize their gradients, elementwise.

        A stage has the pivots ``[first, end)`` and the devices ``[device, device_end)``.
        """
        size_bytes = self.variable_bytes(first, end)
        sync = self.cluster.sync_seconds(size_bytes, device, device_end, self.sync)
        return sync + self.exchange_seconds(first, end)

    def length(self, cuts: Array, device_cuts: Array) -> Array:
        """Return the closed-form seconds per step of plans, fitting or not, shape (...)."""
        return formulas.length(self.stage_seconds(cuts, device_cuts), self.micro_batches)

    def excess_bytes(self, cuts: Array, device_cuts: Array) -> Array:
        """Return the bytes by which the fullest stage exceeds the memory limit; <= 0 fits."""
        return self._memory(cuts, device_cuts).max(axis=0) - self.memory_limit

    def plan(self, cuts: Array, device_cuts: Array) -> PipelinePlan:
        """Make the plan of the first pivot and the first device of each stage but the first."""
        pivots = tuple(map(int, cuts))
        return PipelinePlan(
            instance=self.instance,
            fingerprint=self.profile.fingerprint,
            cluster=self.cluster,
            cuts=pivots,
            device_cuts=tuple(map(int, device_cuts)),
            micro_batch=self.profile.micro_batch,
            micro_batches=self.micro_batches,
            **self.options,
            fractions=self.fractions,
            cut_after=tuple(str(self.profile.names[pivot - 1]) for pivot in pivots),
        )

    def report(self, plan: PipelinePlan, any_stages: bool = False) -> Report:
        """Judge a plan on this problem.

        Args:
            plan: the plan.
            any_stages: whether the plan may have another number of stages than the problem, for
                example because it is still being built.
        """
        settings = {
            "micro_batch": self.profile.micro_batch,
            "micro_batches": self.micro_batches,
            **self.options,
        }
        reasons = malformed(plan, len(self.profile), self.cluster.devices)
        # No formula holds for a malformed plan; all other faults are found beside its cost.
        is_computable = not reasons
        reasons += mismatches(plan, self.profile, self.cluster, settings)
        stages: tuple[Stage, ...] = ()
        length = simulated = math.inf
        if is_computable:
            count = len(plan.cuts) + 1
            if not any_stages and count != self.stages:
                reasons.append(f"stages: the plan has {count}, the problem asks for {self.stages}")
            cuts, device_cuts = np.array(plan.cuts), np.array(plan.device_cuts)
            times = self.stage_times(cuts, device_cuts)
            length = float(self.length(cuts, device_cuts))
            simulated = float(simulate(times, self.micro_batches).length)
            stages = self._stages(cuts, device_cuts, times, simulated)
            bounds, devices = (x.tolist() for x in self.boundaries(cuts, device_cuts))
            if not (self.fractions and plan.fractions):
                reasons += of_fractions(np.diff(devices).tolist(), self.profile.micro_batch)
            reasons += without_variable(bounds, self.variable_sum[bounds].tolist())
            reasons += over_memory([s.memory_bytes for s in stages], self.memory_limit)
        seconds = (length, simulated, self.bubble_free)
        return Report(plan, self, tuple(reasons), *seconds, self.memory_limit, stages)

    def so_far(self, plan: PipelinePlan) -> Report | Pipeline:
        """Judge a plan that is being built; before the first cut, return the problem itself.

        The rest of the chain counts as the last stage.
        """
        return self.report(plan, any_stages=True) if plan.cuts else self

    def _stages(
        self, cuts: Array, device_cuts: Array, times: StageTimes, simulated: float
    ) -> tuple[Stage, ...]:
        p, d = self.boundaries(cuts, device_cuts)
        figures = np.stack(
            [
                times.forward[::2],
                times.backward[::2],
                np.append(times.forward[1::2], 0.0),
                times.all_reduce[::2],
                self.stage_memory(cuts, device_cuts),
                self.variable_bytes(p[:-1], p[1:]) + np.diff(self.frozen_sum[p]),
                self.micro_batches * (times.forward + times.backward)[::2] / simulated,
            ],
            axis=1,
        )
        spans = np.stack([p[:-1], p[1:], d[:-1], d[1:]], axis=1).tolist()
        return tuple(
            Stage(first, end, str(self.profile.names[end - 1]), *devices, *values)
            for (first, end, *devices), values in zip(spans, figures.tolist(), strict=True)
        )

    def stage_seconds(self, cuts: Array, device_cuts: Array) -> formulas.StageSeconds:
        """Return the seconds of every resource of plans; stages and resources come first."""
        p, d = self.boundaries(cuts, device_cuts)
        first, end = d[:-1], d[1:]
        tied = self.tied_weights
        return formulas.stage_seconds(
            self.forward_sum.take(p),
            self.backward_sum.take(p),
            self.parameter_sum.take(p),
            crossing=self.cut_before.take(p[1:-1]),
            group=end - first,
            group_bandwidth=self.cluster.bandwidth(first, end),
            link_bandwidth=self.cluster.bandwidth(d[:-2], d[2:]),
            sync=self.sync,
            again=0.0 if tied is None else tied.between(tied.again, p[:-1], p[1:]),
            exchange=self.exchange_seconds(p[:-1], p[1:]),
        )

    def _memory(self, cuts: Array, device_cuts: Array) -> Array:
        p, d = self.boundaries(cuts, device_cuts)
        stages = p.shape[0] - 1
        stages_left = np.arange(stages, 0, -1).reshape(-1, *(1 for _ in p.shape[1:]))
        return self.memory_of(p[:-1], p[1:], d[1:] - d[:-1], stages_left)

    def boundaries(self, cuts: Array, device_cuts: Array) -> tuple[Array, Array]:
        """Return pivots and devices at which stages begin and end, (S+1, ...) each."""
        pivots = _with_ends(np.asarray(cuts), len(self.profile))
        return pivots, _with_ends(np.asarray(device_cuts), self.cluster.devices)


@dataclass(frozen=True)
class Stage:
    """One compute stage of a judged plan.

    Attributes:
        first, end: its pivots ``[first, end)``.
        last_name: name of its last pivot.
        device_first, device_end: its devices ``[device_first, device_end)``.
        forward_seconds, backward_seconds: seconds of a pass of a micro-batch.
        transfer_seconds: seconds to send a micro-batch to the next stage; 0 for the last stage.
        all_reduce_seconds: seconds of the gradients' synchronization, once per step.
        memory_bytes: bytes needed on each of its devices.
        parameter_bytes: bytes of one copy of its weights.
        efficiency: share of the simulated step in which its devices compute.
    """

    first: int
    end: int
    last_name: str
    device_first: int
    device_end: int
    forward_seconds: float
    backward_seconds: float
    transfer_seconds: float
    all_reduce_seconds: float
    memory_bytes: float
    parameter_bytes: float
    efficiency: float


@dataclass(frozen=True)
class Report(TimedReport):
    """The judge's verdict on a plan: legality, length, memory and stages.

    Attributes:
        plan: the plan.
        pipeline: the problem on which it was judged.
        reasons: a sentence for every rule that the plan breaks; empty if it is legal.
        length_seconds: closed-form seconds per step (inf if the plan is malformed).
        simulated_seconds: seconds per step by event simulation; plans are not ranked by it.
        bubble_free_seconds: seconds per step if all devices compute all the time.
        memory_limit_bytes: bytes that a stage may hold on each of its devices.
        stages: the compute stages (empty if the plan is malformed).
    """

    task: ClassVar[str] = "pipeline"
    cost_words: ClassVar[str] = (
        "the pipeline model's: FLOPs at half the peak, twice as long backward, no launches, "
        "nothing recomputed"
    )
    plan: PipelinePlan
    pipeline: Pipeline
    reasons: tuple[str, ...]
    length_seconds: float
    simulated_seconds: float
    bubble_free_seconds: float
    memory_limit_bytes: float
    stages: tuple[Stage, ...]

    @property
    def value(self) -> float:
        """The environment's reward: ``1/L`` in units of the bubble-free time; -1 if illegal."""
        if not self.legal:
            return ILLEGAL
        return float(formulas.value(self.length_seconds, self.bubble_free_seconds))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return what the plan's rules allow and programs that run refuse: fractions of samples."""
        groups = [stage.device_end - stage.device_first for stage in self.stages]
        faults = of_fractions(groups, self.plan.micro_batch)
        if not faults or any(reason in self.reasons for reason in faults):
            return ()
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return (f"{faults[0]}{more}: exports refuse it",)

    @cached_property
    def times(self) -> StageTimes:
        """Seconds of every stage and transfer."""
        return self.pipeline.stage_times(np.array(self.plan.cuts), np.array(self.plan.device_cuts))

    @cached_property
    def timetable(self) -> Timetable:
        """The simulated schedule."""
        return simulate(self.times, self.pipeline.micro_batches)

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object of JSON types (seconds and bytes)."""
        return {
            "legal": self.legal,
            "reasons": list(self.reasons),
            "remarks": list(self.remarks),
            "length_seconds": self.length_seconds if self.stages else None,
            "simulated_seconds": self.simulated_seconds if self.stages else None,
            "bubble_free_seconds": self.bubble_free_seconds,
            "value": self.value,
            "memory_limit_bytes": self.memory_limit_bytes,
            "stages": [vars(stage) for stage in self.stages],
        }


def check_stages(pipeline: Pipeline, fewest: int = 1) -> None:
    """Raise an error if no plan can have the problem's number of stages.

    Raises:
        InfeasibleError: there are more stages than devices or than pivots with variables, or fewer
            than ``fewest``, which is 2 where there must be something to cut.
    """
    name, stages = pipeline.profile.name, pipeline.stages
    holders = int(pipeline.variable_sum[-1])
    if stages < fewest:
        raise InfeasibleError(f"{name}: a pipeline needs at least {fewest} stages, not {stages}")
    if stages > holders:
        raise InfeasibleError(
            f"{name}: {stages} stages asked for, but only {holders} pivots hold variables and "
            f"every stage needs one; ask for at most {holders}"
        )
    if stages > pipeline.cluster.devices:
        raise InfeasibleError(
            f"{name}: {stages} stages asked for, but cluster {pipeline.cluster} has only "
            f"{pipeline.cluster.devices} devices"
        )


def check_split(pipeline: Pipeline) -> None:
    """Raise an error if the stages cannot share the devices by whole samples.

    Raises:
        InfeasibleError: they cannot; the line says what can be changed.
    """
    stages, devices = pipeline.stages, pipeline.cluster.devices
    if not pipeline.can_split(stages):
        samples = pipeline.profile.micro_batch
        count = "one stage" if stages == 1 else f"{stages} stages"
        raise InfeasibleError(
            f"{pipeline.profile.name}: {count} on {devices} devices cannot share {samples} "
            f"sample{'s' if samples > 1 else ''} of a micro-batch, a whole number for each device "
            "of a stage; choose another --micro-batch, --stages or --devices-used, or allow "
            "--fractions"
        )


def _with_ends(cuts: Array, end: int) -> Array:
    """Return 0, the cuts of shape (..., S-1), and ``end`` as boundaries of shape (S+1, ...)."""
    axes = (cuts.ndim - 1, *range(cuts.ndim - 1))
    boundaries = np.empty((cuts.shape[-1] + 2, *cuts.shape[:-1]), np.int64)
    boundaries[0], boundaries[1:-1], boundaries[-1] = 0, cuts.transpose(axes), end
    return boundaries


# The same costs in compiled loops, of one stage after the other.

through = compiled(formulas.through)
compute_seconds = compiled(formulas.compute_seconds)
transfer_seconds = compiled(formulas.transfer_seconds)
_in_flight = compiled(formulas.in_flight)
_weight_bytes = compiled(formulas.weight_bytes)
_recomputed_bytes = compiled(formulas.recomputed_bytes)
_kept_bytes = compiled(formulas.kept_bytes)
_stage_bytes = compiled(formulas.stage_bytes)
_exchange_seconds = compiled(formulas.exchange_seconds)
_ring_bytes = compiled(network.ring_bytes)
_central_bytes = compiled(network.central_bytes)


class Tables(NamedTuple):
    """What costs of a stage [p, q) on the devices [e, d) are looked up in.

    Attributes:
        work, forward, backward, parameters, variables, frozen, resident: prefix sums, (n+1,).
        crossing: (n+1,) bytes that cross a cut before each pivot.
        largest: (levels, n) largest cut of 1, 2, 4, ... pivots from each on.
        rank: (n+1,) pivots that read a tied weight before each pivot.
        again, frozen_again, shared: bytes of tied weights, by the ranks of both ends.
        is_group: (D+1,) bool, whether a stage may have so many devices.
        bandwidth: (2,) bytes/s across servers and in one.
        exchange: bytes/s at which stages sum gradients of tied weights.
        stages, micro_batches: S and M.
        server: devices of a server.
        copies: copies of the parameters on each device.
        limit: bytes that a device may hold.
        whole: whether devices share no sample.
        keeps: whether activations are kept; else they are recomputed.
        central: whether a central server sums gradients; else rings do.
    """

    work: Array
    forward: Array
    backward: Array
    parameters: Array
    variables: Array
    frozen: Array
    resident: Array
    crossing: Array
    largest: Array
    rank: Array
    again: Array
    frozen_again: Array
    shared: Array
    is_group: Array
    bandwidth: Array
    exchange: float
    stages: int
    micro_batches: int
    server: int
    copies: float
    limit: float
    whole: bool
    keeps: bool
    central: bool


_NONE, _INDICES, _TABLE = np.zeros(2), np.zeros(2, np.int64), np.zeros((1, 1))
EMPTY = Tables(
    *(_NONE,) * 4, _INDICES, *(_NONE,) * 3, _TABLE, _INDICES, *(_TABLE,) * 3,
    np.zeros(2, np.bool_), _NONE, 1.0, 2, 1, 1, 1.0, 1.0, False, False, False,
)  # fmt: skip
"""Tables of no problem, for whose types loops are compiled."""


def tables_of(pipeline: Pipeline, pivots: Array | None = None) -> Tables:
    """Return the tables of a problem.

    Args:
        pipeline: the problem.
        pivots: where plans may cut, ascending, 0 and n included; they count as 0, 1, 2, ... in what
            takes the tables (default: all).
    """
    cluster, tied = pipeline.cluster, pipeline.tied_weights
    largest = pipeline.cuts_after.rows
    if pivots is None:
        pivots = np.arange(len(pipeline.profile) + 1)
    else:
        largest = RangeTable(pipeline.largest_cut(pivots[:-1], pivots[1:]), greatest=True).rows
    return Tables(
        pipeline.seconds_sum[pivots], pipeline.forward_sum[pivots], pipeline.backward_sum[pivots],
        pipeline.parameter_sum[pivots], pipeline.variable_sum[pivots], pipeline.frozen_sum[pivots],
        pipeline.resident_sum[pivots], pipeline.cut_before[pivots], largest,
        np.zeros_like(pivots) if tied is None else tied.rank[pivots],
        *((_TABLE,) * 3 if tied is None else (tied.again, tied.frozen, tied.shared)),
        pipeline.is_group, np.array([cluster.inter_bw, cluster.intra_bw], float),
        # The other stage that holds a tied weight may be in any server.
        float(cluster.inter_bw if cluster.servers > 1 else cluster.intra_bw),
        int(pipeline.stages), int(pipeline.micro_batches), cluster.devices_per_server,
        float(pipeline.copies), float(pipeline.memory_limit), not pipeline.fractions,
        pipeline.recompute == "none", pipeline.sync == "parameter-server",
    )  # fmt: skip


@bare
def is_near(tables, e, d):
    """1 if the devices [e, d) lie in one server, else 0."""
    return 1 if e // tables.server == (d - 1) // tables.server else 0


@bare
def link_seconds(tables, p, near):
    """Seconds of a transfer before pivot p, one direction, ``near`` in one server."""
    return transfer_seconds(tables.crossing[p], tables.bandwidth[near])


@bare
def bytes_of(tables, p, q, group, left):
    """Bytes on each device of a stage, with which ``left`` stages end the plan."""
    rank, end_rank = tables.rank[p], tables.rank[q]
    variable = tables.parameters[q] - tables.parameters[p] + tables.again[rank, end_rank]
    frozen = tables.frozen[q] - tables.frozen[p] + tables.frozen_again[rank, end_rank]
    weights = _weight_bytes(variable, tables.copies, frozen)
    flight = _in_flight(left, tables.micro_batches)
    if tables.keeps:
        activations = _kept_bytes(tables.resident[q] - tables.resident[p], flight)
    else:
        level = 0
        while 2 << level <= q - p:
            level += 1
        largest = max(tables.largest[level, p], tables.largest[level, q - (1 << level)])
        activations = _recomputed_bytes(largest, tables.crossing[p], flight)
    return _stage_bytes(weights, activations, group)


@bare
def sync_seconds(size, shared, group, bandwidth, exchange, central):
    """Seconds to synchronize ``size`` bytes over a group, and ``shared`` ones with other stages.

    It takes numbers alone: tables that a call passes on in a loop are counted each time.
    """
    passed = _central_bytes(2.0 * size, group) if central else _ring_bytes(2.0 * size, group)
    return passed / bandwidth + _exchange_seconds(shared, exchange)


@bare
def reduce_seconds(tables, p, q, near, group):
    """Seconds to synchronize gradients of a stage over a group, ``near`` in one server."""
    rank, end_rank = tables.rank[p], tables.rank[q]
    return sync_seconds(
        tables.parameters[q] - tables.parameters[p] + tables.again[rank, end_rank],
        tables.shared[rank, end_rank], group, tables.bandwidth[near], tables.exchange,
        tables.central,
    )  # fmt: skip


@bare
def in_front(tables, cuts, devices, stages):
    """Seconds that pass the first stages of a plan, those that hide all-reduces, core and tail.

    The transfer behind the stages does not count.
    """
    passed = core = hidden = tail = 0.0
    for s in range(stages):
        p, q, e, d = cuts[s], cuts[s + 1], devices[s], devices[s + 1]
        if s:
            link = link_seconds(tables, p, is_near(tables, devices[s - 1], d))
            passed += link + link
            hidden += link
            core = max(core, through(passed, link + link, tables.micro_batches))
        backward = compute_seconds(tables.backward[q] - tables.backward[p], d - e)
        x = compute_seconds(tables.forward[q] - tables.forward[p], d - e) + backward
        passed += x
        hidden += backward
        core = max(core, through(passed, x, tables.micro_batches))
        reduce = reduce_seconds(tables, p, q, is_near(tables, e, d), d - e)
        # What hides it is the sum less its last term, as in ``core_and_tail``.
        tail = max(tail, reduce - (hidden - backward))
    return passed, hidden, core, tail


@bare
def excess_bytes(tables, cuts, devices):
    """Bytes by which the fullest stage of a plan is too large.

    They are infinite where a stage has no variable, or devices that share a sample.
    """
    stages, most = len(cuts) - 1, -np.inf
    for s in range(stages):
        p, q, group = cuts[s], cuts[s + 1], devices[s + 1] - devices[s]
        if group < 1 or not tables.is_group[group] or tables.variables[q] <= tables.variables[p]:
            return np.inf
        most = max(most, bytes_of(tables, p, q, group, stages - s))
    return most - tables.limit


@bare
def first_from(values, least):
    """The first of ascending values, (n,), that is at least ``least``; n if none is."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low
