"""Pipeline length: the closed form, memory and the observation features of a cut chain.

A plan cuts a chain of n pivots into S stages and D devices into S consecutive groups. Stages are
numbered 0..2S-2: the even ones compute, the odd ones are the transfers between them. Every function
here is vectorised over plans: ``cuts`` and ``device_cuts`` have the shape (..., S-1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.errors import InfeasibleError, ProfileError
from parenvs.pipeline.profile import StageProfile
from parenvs.plan import COPIES, ILLEGAL, MICRO_BATCHES, RECOMPUTE, PipelinePlan

if TYPE_CHECKING:
    from parenvs.pipeline.judge import Report

MOST_MICRO_BATCHES = 10_000
"""Largest number of micro-batches; the simulation walks through every one."""
MOST_COPIES = 1_000
"""Largest number of copies of the parameters."""


@dataclass(frozen=True)
class StageTimes:
    """Seconds of each stage for one micro-batch, and of its all-reduce for one step.

    Attributes:
        forward: (..., 2S-1) float64; transfers stand at the odd places.
        backward: (..., 2S-1) float64.
        all_reduce: (..., 2S-1) float64, zero for transfers and stages of one device.
    """

    forward: np.ndarray
    backward: np.ndarray
    all_reduce: np.ndarray


def core_and_tail(times: StageTimes, micro_batches: int) -> tuple[np.ndarray, np.ndarray]:
    """The two parts of the pipeline length, seconds, each of shape (...).

    ``core = max_j [sum_{s<=j} x_s + (M-1) x_j]`` with ``x = F + B``; the arg max is the pivot
    stage. ``tail = max(0, max_s [AR_s - sum_{a<s} B_a])``: an all-reduce overlaps the backward
    passes of the stages before it.
    """
    x = times.forward + times.backward
    core = (np.cumsum(x, axis=-1) + (micro_batches - 1) * x).max(axis=-1)
    before = np.cumsum(times.backward, axis=-1) - times.backward
    tail = np.maximum((times.all_reduce - before).max(axis=-1), 0.0)
    return core, tail


def pipeline_length(times: StageTimes, micro_batches: int) -> np.ndarray:
    """Closed-form seconds of one training step, shape (...): ``core + tail``."""
    core, tail = core_and_tail(times, micro_batches)
    return core + tail


def stages_on(cluster: Cluster, stages: int | None = None) -> int:
    """The number of stages given, or the default: one stage a server, at least two."""
    return max(cluster.servers, 2) if stages is None else stages


@dataclass(frozen=True)
class Pipeline:
    """A chain to be cut into S stages on a cluster: everything about a problem except the plan.

    Arrays of cuts may have any number of stages; ``stages`` is the number that solvers, search
    spaces and the judge ask for.

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
        sync: how gradients are synchronised, see ``Cluster.sync_seconds``.
        instance: name or path that plans carry (default: the profile's name).
    """

    profile: StageProfile
    cluster: Cluster
    stages: int = None  # type: ignore[assignment]  # resolved in __post_init__
    micro_batches: int = MICRO_BATCHES
    copies: float = COPIES
    recompute: str = RECOMPUTE[0]
    sync: str = SYNC_METHODS[0]
    instance: str = ""

    def __post_init__(self) -> None:
        """Fill in defaults and refuse settings that no plan can have."""
        fill = object.__setattr__
        fill(self, "cluster", Cluster.parse(self.cluster))
        fill(self, "instance", self.instance or self.profile.name)
        made_for = self.profile.device
        device = self.cluster.device
        if made_for is not None and (made_for.peak_flops, made_for.memory_bw) != (
            device.peak_flops,
            device.memory_bw,
        ):
            raise ProfileError(
                f"profile {self.profile.name}: its seconds are those of a {made_for.name}, but "
                f"{self.cluster} has {device.name} devices; make the chain anew with "
                "StageProfile.from_graph(graph, cluster.device) or Graph.pipeline(cluster)"
            )
        if not 1 <= self.micro_batches <= MOST_MICRO_BATCHES:
            raise InfeasibleError(
                f"micro_batches must be from 1 to {MOST_MICRO_BATCHES}, not {self.micro_batches}"
            )
        if self.recompute not in RECOMPUTE:
            raise InfeasibleError(
                f"recompute must be one of {', '.join(RECOMPUTE)}, not {self.recompute!r}"
            )
        if self.recompute == "none" and self.profile.resident_bytes is None:
            raise InfeasibleError(
                f"profile {self.profile.name} has no resident_bytes: recompute='none' needs them"
            )
        if self.sync not in SYNC_METHODS:
            raise InfeasibleError(
                f"sync must be one of {', '.join(SYNC_METHODS)}, not {self.sync!r}"
            )
        if not 0 <= self.copies <= MOST_COPIES:
            raise InfeasibleError(f"copies must be from 0 to {MOST_COPIES}, not {self.copies}")
        if self.cluster.devices < 2:
            raise InfeasibleError("a pipeline needs at least two devices")
        if self.stages is None:
            fill(self, "stages", stages_on(self.cluster))
        if not isinstance(self.stages, int) or isinstance(self.stages, bool) or self.stages < 2:
            raise InfeasibleError(
                f"{self.profile.name}: a pipeline needs at least 2 stages, not {self.stages!r}"
            )

    def with_stages(self, stages: int) -> Pipeline:
        """The same problem with another number of stages; prefix sums are shared."""
        other = replace(self, stages=stages)
        for name, value in vars(self).items():
            vars(other).setdefault(name, value)  # what cached properties have computed so far
        return other

    @property
    def options(self) -> dict[str, Any]:
        """What of the cost model is a choice, by the names that plans and environments use."""
        return {"copies": self.copies, "recompute": self.recompute, "sync": self.sync}

    # Prefix sums: entry p is the sum over the pivots before p, shape (n+1,).

    @cached_property
    def forward_sum(self) -> np.ndarray:
        """(n+1,) prefix sum of forward seconds."""
        return _prefix(self.profile.forward)

    @cached_property
    def backward_sum(self) -> np.ndarray:
        """(n+1,) prefix sum of backward seconds."""
        return _prefix(self.profile.backward)

    @cached_property
    def seconds_sum(self) -> np.ndarray:
        """(n+1,) prefix sum of forward plus backward seconds."""
        return self.forward_sum + self.backward_sum

    @cached_property
    def parameter_sum(self) -> np.ndarray:
        """(n+1,) prefix sum of parameter bytes."""
        return _prefix(self.profile.parameter_bytes)

    @cached_property
    def variable_sum(self) -> np.ndarray:
        """(n+1,) number of pivots with variables before each."""
        return np.concatenate([[0], np.cumsum(self.profile.parameter_bytes > 0)])

    @cached_property
    def resident_sum(self) -> np.ndarray:
        """(n+1,) prefix sum of resident activation bytes (zeros where unknown)."""
        resident = self.profile.resident_bytes
        return _prefix(np.zeros(len(self.profile)) if resident is None else resident)

    @cached_property
    def cut_before(self) -> np.ndarray:
        """(n+1,) bytes that cross a cut right before pivot p; zero at both ends."""
        cut = np.concatenate([[0.0], self.profile.cut_bytes])
        cut[-1] = 0.0
        return cut

    @cached_property
    def _range_max(self) -> np.ndarray:
        """Sparse table of ``cut_bytes``: row j holds maxima of 2**j consecutive pivots."""
        rows = [self.profile.cut_bytes.copy()]
        rows[0][-1] = 0.0
        while (width := 2 ** len(rows)) <= len(self.profile):
            row = rows[-1].copy()
            row[: len(row) - width // 2] = np.maximum(row[: -(width // 2)], row[width // 2 :])
            rows.append(row)
        return np.stack(rows)

    @property
    def bubble_free(self) -> float:
        """Seconds of a step if every device computed all the time: ``M sum(F+B) / D``."""
        return float(self.micro_batches * self.seconds_sum[-1] / self.cluster.devices)

    @property
    def memory_limit(self) -> float:
        """Bytes that a stage may hold on each of its devices."""
        return self.cluster.memory_limit

    def largest_cut(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Largest ``cut_bytes`` of the pivots ``[first, end)``, elementwise; ``first < end``."""
        first, end = np.asarray(first), np.asarray(end)
        level = np.frexp(end - first)[1] - 1
        width = 1 << level
        return np.maximum(self._range_max[level, first], self._range_max[level, end - width])

    def stage_times(self, cuts: np.ndarray, device_cuts: np.ndarray) -> StageTimes:
        """Seconds of every stage and transfer of the plans, arrays of shape (..., 2S-1)."""
        p, d = self._bounds(cuts, device_cuts)
        first, end = d[..., :-1], d[..., 1:]
        group = end - first
        shape = (*group.shape[:-1], 2 * group.shape[-1] - 1)
        forward, backward, all_reduce = np.empty(shape), np.empty(shape), np.zeros(shape)
        forward[..., ::2] = np.diff(self.forward_sum[p]) / group
        backward[..., ::2] = np.diff(self.backward_sum[p]) / group
        weights = np.diff(self.parameter_sum[p])
        all_reduce[..., ::2] = self.cluster.sync_seconds(weights, first, end, self.sync)
        link = self.cluster.bandwidth(first[..., :-1], end[..., 1:])
        forward[..., 1::2] = backward[..., 1::2] = self.cut_before[p[..., 1:-1]] / link
        return StageTimes(forward, backward, all_reduce)

    def stage_memory(self, cuts: np.ndarray, device_cuts: np.ndarray) -> np.ndarray:
        """Bytes on each device of every compute stage, shape (..., S).

        ``copies W_s + (live_s + K_s A_in) / R_s`` with ``K_s = min(2(S-s)-1, M)`` micro-batches in
        flight, ``A_in`` the bytes that enter the stage and ``live_s`` the largest cut inside it;
        with ``recompute="none"``, ``K_s resident_s / R_s`` instead of the activations.
        """
        p, d = self._bounds(cuts, device_cuts)
        stages = p.shape[-1] - 1
        in_suffix = np.arange(stages, 0, -1)
        return self.memory_of(p[..., :-1], p[..., 1:], np.diff(d), in_suffix)

    def memory_of(
        self, first: np.ndarray, end: np.ndarray, group: np.ndarray, stages_left: np.ndarray
    ) -> np.ndarray:
        """Bytes on a device of the stage ``[first, end)`` over ``group`` devices, elementwise.

        Args:
            first: first pivot of the stage.
            end: one past its last pivot.
            group: number of devices that share the stage.
            stages_left: stages from this one to the last, itself included (S - s).
        """
        flight = np.minimum(2 * stages_left - 1, self.micro_batches)
        weights = self.copies * (self.parameter_sum[end] - self.parameter_sum[first])
        if self.recompute == "none":
            return weights + flight * (self.resident_sum[end] - self.resident_sum[first]) / group
        entering = flight * self.cut_before[first]
        return weights + (self.largest_cut(first, end) + entering) / group

    def length(self, cuts: np.ndarray, device_cuts: np.ndarray) -> np.ndarray:
        """Closed-form seconds per step of the plans, shape (...), whether they fit or not."""
        return pipeline_length(self.stage_times(cuts, device_cuts), self.micro_batches)

    def excess_bytes(self, cuts: np.ndarray, device_cuts: np.ndarray) -> np.ndarray:
        """Bytes by which the fullest stage exceeds the memory limit, shape (...); <= 0 fits."""
        return self.stage_memory(cuts, device_cuts).max(axis=-1) - self.memory_limit

    def values(self, cuts: np.ndarray, device_cuts: np.ndarray) -> np.ndarray:
        """Value of well-formed plans, shape (...): ``1/L``, or -1 where memory is exceeded.

        L is in units of the bubble-free time ``M sum(F+B) / D``, so that the value lies in (0, 1]
        and reads as the share of time that the devices compute.
        """
        share = self.bubble_free / self.length(cuts, device_cuts)
        return np.where(self.excess_bytes(cuts, device_cuts) <= 0, share, ILLEGAL)

    def plan(self, cuts: np.ndarray, device_cuts: np.ndarray) -> PipelinePlan:
        """The plan object of one pair of cuts.

        Args:
            cuts: (S-1,) int, first pivot of each stage but the first.
            device_cuts: (S-1,) int, first device of each stage but the first.
        """
        positions = [int(p) for p in cuts]
        return PipelinePlan(
            instance=self.instance,
            fingerprint=self.profile.fingerprint,
            cluster=self.cluster,
            cuts=tuple(positions),
            device_cuts=tuple(int(d) for d in device_cuts),
            micro_batch=self.profile.micro_batch,
            micro_batches=self.micro_batches,
            **self.options,
            cut_after=tuple(str(self.profile.names[p - 1]) for p in positions),
        )

    def report(self, plan: PipelinePlan) -> Report:
        """What the judge says of a plan of this problem."""
        from parenvs.pipeline.judge import judge_pipeline

        return judge_pipeline(plan, self)

    def cut_features(
        self,
        cuts: np.ndarray,
        device_cuts: np.ndarray,
        pivots: np.ndarray,
        pivot_devices: np.ndarray,
    ) -> np.ndarray:
        """What each candidate for the next cut would do, the rest being one last stage.

        Args:
            cuts: (k,) pivots cut so far.
            device_cuts: (k,) their device cuts.
            pivots: (c,) candidates, each after the last cut.
            pivot_devices: (c,) device cut of each.

        Returns:
            (c, 3) float64: longest all-reduce, seconds; longest transfer, seconds; least over
            greatest seconds of a compute stage.
        """
        p = np.concatenate([[0], cuts]).astype(np.int64)
        d = np.concatenate([[0], device_cuts]).astype(np.int64)
        devices = np.array(self.cluster.devices)
        bandwidth, sync = self.cluster.bandwidth, self.cluster.sync_seconds
        total, weight = self.seconds_sum, self.parameter_sum
        # Settled stages are scalars; the new stage and the last one are arrays over candidates.
        compute_new = (total[pivots] - total[p[-1]]) / (pivot_devices - d[-1])
        compute_last = (total[-1] - total[pivots]) / (devices - pivot_devices)
        new = weight[pivots] - weight[p[-1]]
        reduce_new = sync(new, d[-1], pivot_devices, self.sync)
        reduce_last = sync(weight[-1] - weight[pivots], pivot_devices, devices, self.sync)
        transfer = self.cut_before[pivots] / bandwidth(d[-1], np.full_like(pivots, devices))
        least, most = np.minimum(compute_new, compute_last), np.maximum(compute_new, compute_last)
        reduce = np.maximum(reduce_new, reduce_last)
        if len(p) > 1:
            settled = np.diff(total[p]) / np.diff(d)
            least, most = np.minimum(least, settled.min()), np.maximum(most, settled.max())
            reduce = np.maximum(reduce, sync(np.diff(weight[p]), d[:-1], d[1:], self.sync).max())
            before = self.cut_before[p[1:]]
            if len(p) > 2:
                transfer = np.maximum(transfer, (before[:-1] / bandwidth(d[:-2], d[2:])).max())
            transfer = np.maximum(transfer, before[-1] / bandwidth(d[-2], pivot_devices))
        return np.stack([reduce, transfer, least / most], axis=-1)

    def _bounds(self, cuts: np.ndarray, device_cuts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(..., S+1) stage boundaries in pivots and in devices, both ends included."""
        return (
            _with_ends(np.asarray(cuts), len(self.profile)),
            _with_ends(np.asarray(device_cuts), self.cluster.devices),
        )


def check_stages(pipeline: Pipeline) -> None:
    """Refuse a problem that asks for a number of stages that no plan can have.

    Raises:
        InfeasibleError: more stages than devices or pivots with variables.
    """
    name, stages = pipeline.profile.name, pipeline.stages
    holders = int(pipeline.variable_sum[-1])
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


def _prefix(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values)])


def _with_ends(cuts: np.ndarray, end: int) -> np.ndarray:
    bounds = np.empty((*cuts.shape[:-1], cuts.shape[-1] + 2), dtype=np.int64)
    bounds[..., 0], bounds[..., 1:-1], bounds[..., -1] = 0, cuts, end
    return bounds
