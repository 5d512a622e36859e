"""A pipeline problem: a chain on a cluster, and what plans of it cost.

A plan cuts a chain of n pivots into S stages and D devices into S consecutive groups. Everything
here is vectorised over plans: ``cuts`` and ``device_cuts`` have the shape (..., S-1). The formulas
are those of ``parenvs.pipeline.formulas``; this module looks up what they need of a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError
from parenvs.pipeline import formulas
from parenvs.pipeline.profile import StageProfile
from parenvs.pipeline.ranges import RangeTable

MICRO_BATCHES = 16
"""Micro-batches per step (arXiv 2007.04069)."""
MOST_MICRO_BATCHES = 10_000
"""Largest number of them; the simulation walks through every one."""
COPIES = 2
"""Copies of a stage's parameters held by each device: weight and gradient."""


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

    def length(self, micro_batches: int) -> np.ndarray:
        """Closed-form seconds of one training step, shape (...)."""
        forward, backward, all_reduce = (
            np.moveaxis(row, -1, 0) for row in (self.forward, self.backward, self.all_reduce)
        )
        seconds = formulas.StageSeconds(forward, backward, all_reduce[::2])
        return formulas.length(seconds, micro_batches)


@dataclass(frozen=True)
class Pipeline:
    """A chain on a cluster: everything about a pipeline problem except the plan.

    Attributes:
        profile: the chain.
        cluster: the devices.
        micro_batches: M, micro-batches per step.
        copies: copies of the parameters that each device of a stage holds.
        recompute: ``"full"``: activations inside a stage are recomputed in the backward pass;
            ``"none"``: they are kept (needs ``profile.resident_bytes``).
        sync: how gradients are synchronised, see ``Cluster.sync_seconds``.
    """

    profile: StageProfile
    cluster: Cluster
    micro_batches: int = MICRO_BATCHES
    copies: float = COPIES
    recompute: str = "full"
    sync: str = "allreduce"

    def __post_init__(self) -> None:
        """Raise InfeasibleError for settings out of range."""
        if not 1 <= self.micro_batches <= MOST_MICRO_BATCHES:
            raise InfeasibleError(
                f"micro_batches must be from 1 to {MOST_MICRO_BATCHES}, not {self.micro_batches}"
            )
        if self.recompute not in ("full", "none"):
            raise InfeasibleError(f"recompute must be 'full' or 'none', not {self.recompute!r}")
        if self.recompute == "none" and self.profile.resident_bytes is None:
            raise InfeasibleError(
                f"profile {self.profile.name} has no resident_bytes: recompute='none' needs them"
            )
        if self.cluster.devices < 2:
            raise InfeasibleError("a pipeline needs at least two devices")

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
    def _cuts_after(self) -> RangeTable:
        """Bytes that cross a cut right after each pivot."""
        return RangeTable(self.cut_before[1:], greatest=True)

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
        return self._cuts_after.value(np.asarray(first), np.asarray(end))

    def stage_times(self, cuts: np.ndarray, device_cuts: np.ndarray) -> StageTimes:
        """Seconds of every stage and transfer of the plans, arrays of shape (..., 2S-1)."""
        seconds = self._seconds(cuts, device_cuts)
        all_reduce = np.zeros_like(seconds.forward)
        all_reduce[::2] = seconds.all_reduce
        rows = (seconds.forward, seconds.backward, all_reduce)
        return StageTimes(*(np.moveaxis(row, 0, -1) for row in rows))

    def stage_memory(self, cuts: np.ndarray, device_cuts: np.ndarray) -> np.ndarray:
        """Bytes on each device of every compute stage, shape (..., S)."""
        return np.moveaxis(self._memory(cuts, device_cuts), 0, -1)

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
        weights, activations = self.memory_parts(first, end, stages_left)
        return formulas.stage_bytes(weights, activations, group)

    def memory_parts(
        self, first: np.ndarray, end: np.ndarray, stages_left: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of the weights, and of the activations that a stage's devices share, elementwise.

        Arguments are those of ``memory_of``.
        """
        flight = formulas.in_flight(stages_left, self.micro_batches)
        parameters = self.parameter_sum[end] - self.parameter_sum[first]
        weights = formulas.weight_bytes(parameters, self.copies)
        if self.recompute == "none":
            resident = self.resident_sum[end] - self.resident_sum[first]
            return weights, formulas.kept_bytes(resident, flight)
        largest, entering = self.largest_cut(first, end), self.cut_before[first]
        return weights, formulas.recomputed_bytes(largest, entering, flight)

    def length(self, cuts: np.ndarray, device_cuts: np.ndarray) -> np.ndarray:
        """Closed-form seconds per step of the plans, shape (...), whether they fit or not."""
        return formulas.length(self._seconds(cuts, device_cuts), self.micro_batches)

    def excess_bytes(self, cuts: np.ndarray, device_cuts: np.ndarray) -> np.ndarray:
        """Bytes by which the fullest stage exceeds the memory limit, shape (...); <= 0 fits."""
        return self._memory(cuts, device_cuts).max(axis=0) - self.memory_limit

    def _seconds(self, cuts: np.ndarray, device_cuts: np.ndarray) -> formulas.StageSeconds:
        """Seconds of every resource, the stage axis first."""
        p, d = self._boundaries(cuts, device_cuts)
        first, end = d[:-1], d[1:]
        return formulas.stage_seconds(
            self.forward_sum.take(p),
            self.backward_sum.take(p),
            self.parameter_sum.take(p),
            crossing=self.cut_before.take(p[1:-1]),
            group=end - first,
            group_bandwidth=self.cluster.bandwidth(first, end),
            link_bandwidth=self.cluster.bandwidth(d[:-2], d[2:]),
            sync=self.sync,
        )

    def _memory(self, cuts: np.ndarray, device_cuts: np.ndarray) -> np.ndarray:
        """(S, ...) bytes on each device of every compute stage."""
        p, d = self._boundaries(cuts, device_cuts)
        stages = p.shape[0] - 1
        stages_left = np.arange(stages, 0, -1).reshape(-1, *(1 for _ in p.shape[1:]))
        return self.memory_of(p[:-1], p[1:], d[1:] - d[:-1], stages_left)

    def _boundaries(
        self, cuts: np.ndarray, device_cuts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(S+1, ...) stage boundaries in pivots and in devices, both ends included."""
        return (
            _with_ends(np.asarray(cuts), len(self.profile)),
            _with_ends(np.asarray(device_cuts), self.cluster.devices),
        )


def _prefix(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values)])


def _with_ends(cuts: np.ndarray, end: int) -> np.ndarray:
    """(S+1, ...) 0, the (..., S-1) cuts, the end."""
    axes = (cuts.ndim - 1, *range(cuts.ndim - 1))
    boundaries = np.empty((cuts.shape[-1] + 2, *cuts.shape[:-1]), dtype=np.int64)
    boundaries[0], boundaries[1:-1], boundaries[-1] = 0, cuts.transpose(axes), end
    return boundaries
