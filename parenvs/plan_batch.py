"""Many pipeline problems side by side: the dynamics of ``PipelinePlan-v0`` as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.plan_space import STAGES, UNITS, PlanSpace
from parenvs.points import POINTS


@dataclass(frozen=True)
class PlanBatch:
    """Problems of at most 128 points, 64 units and 8 stages, padded to that.

    Seconds are in units of the bubble-free time of one micro-batch, ``sum(F+B) / D``, bytes in
    those of the memory that a device may hold. Arrays over points have 129 entries, one for each
    boundary; beyond the chain's end they repeat it. Arrays over units have 65.

    Attributes:
        stages: (b,) int64, S.
        micro_batches: (b,) float64, M.
        points: (b,) int64, m.
        units: (b,) int64, u.
        server: (b,) float64, devices per server.
        intra, inter: (b,) float64, seconds for as many bytes as a device may hold.
        copies: (b,) float64, copies of the parameters.
        seconds, backward, parameters: (b, 129) float64, prefix sums.
        variables: (b, 129) int64, prefix sums.
        crossing: (b, 129) float64, bytes that cross each boundary.
        inside: (b, 129) float64, largest cut inside each point, its end included.
        devices: (b, 65) float64, first device of each unit.
        starts: (b, 9, 129) int16, last unit from which k stages from a point on can run; -1: none.
    """

    stages: np.ndarray
    micro_batches: np.ndarray
    points: np.ndarray
    units: np.ndarray
    server: np.ndarray
    intra: np.ndarray
    inter: np.ndarray
    copies: np.ndarray
    seconds: np.ndarray
    backward: np.ndarray
    parameters: np.ndarray
    variables: np.ndarray
    crossing: np.ndarray
    inside: np.ndarray
    devices: np.ndarray
    starts: np.ndarray

    @classmethod
    def stack(cls, spaces: Sequence[PlanSpace]) -> PlanBatch:
        """The problems of these spaces, in their order."""
        rows = [_row(space) for space in spaces]
        return cls(**{f.name: np.array([row[f.name] for row in rows]) for f in fields(cls)})

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.stages)

    def take(self, index: np.ndarray) -> PlanBatch:
        """The problems of an index array."""
        return PlanBatch(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def bandwidth_seconds(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Seconds per memory's worth of bytes in the group of devices [first, end), (b, ...)."""
        server, intra, inter = (_like(x, first) for x in (self.server, self.intra, self.inter))
        return np.where(first // server == (end - 1) // server, intra, inter)

    def legal_points(self, stage: int, point: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """(b, 128) bool: before which points the stage that starts there may end."""
        left = self.stages - stage
        rows = np.arange(len(self))
        reach = self.starts[rows, np.maximum(left - 1, 0)].astype(np.int64)
        some = np.take_along_axis(self.devices, np.maximum(reach, 0), axis=1)
        group = some - self.devices[rows, unit][:, None]
        fits = self._memory(point, left, np.maximum(group, 1.0)) <= 1.0
        ahead = self.variables > self.variables[rows, point][:, None]
        return ((reach > unit[:, None]) & fits & ahead)[:, :POINTS]

    def legal_units(
        self, stage: int, point: np.ndarray, unit: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        """(b, 64) bool: up to which units the stage of the points [point, end) may run."""
        left = self.stages - stage
        rows = np.arange(len(self))
        group = np.maximum(self.devices - self.devices[rows, unit][:, None], 1.0)
        at = np.broadcast_to(end[:, None], group.shape)
        fits = self._memory(point, left, group, at) <= 1.0
        index = np.arange(UNITS + 1)
        last = self.starts[rows, np.maximum(left - 1, 0), end]
        return (fits & (index > unit[:, None]) & (index <= last[:, None]))[:, :UNITS]

    def lengths(self, cuts: np.ndarray, units: np.ndarray) -> np.ndarray:
        """(b,) L in units of the bubble-free time.

        Args:
            cuts: (b, 7) int64, points; what lies behind the last cut of a problem does not count.
            units: (b, 7) int64.
        """
        behind = np.arange(STAGES - 1) >= self.stages[:, None] - 1
        p = _ends(np.where(behind, self.points[:, None], cuts), self.points)
        d = _ends(np.where(behind, self.units[:, None], units), self.units)
        at = np.take_along_axis(self.devices, d, axis=1)
        group = np.maximum(np.diff(at), 1.0)
        shape = (len(self), 2 * STAGES - 1)
        x, b, reduce = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        x[:, ::2] = np.diff(np.take_along_axis(self.seconds, p, axis=1)) / group
        b[:, ::2] = np.diff(np.take_along_axis(self.backward, p, axis=1)) / group
        bytes_ = np.diff(np.take_along_axis(self.parameters, p, axis=1))
        link = self.bandwidth_seconds(at[:, :-1], np.maximum(at[:, 1:], at[:, :-1] + 1))
        reduce[:, ::2] = 2.0 * bytes_ * (group - 1) / group * link
        link = self.bandwidth_seconds(at[:, :-2], np.maximum(at[:, 2:], at[:, :-2] + 1))
        b[:, 1::2] = np.take_along_axis(self.crossing, p[:, 1:-1], axis=1) * link
        x[:, 1::2] = 2.0 * b[:, 1::2]
        m = self.micro_batches[:, None]
        core = (np.cumsum(x, axis=1) + (m - 1) * x).max(axis=1)
        tail = np.maximum((reduce - (np.cumsum(b, axis=1) - b)).max(axis=1), 0.0)
        return (core + tail) / self.micro_batches

    def _memory(
        self,
        point: np.ndarray,
        left: np.ndarray,
        group: np.ndarray,
        end: np.ndarray | None = None,
    ) -> np.ndarray:
        """What stages from ``point`` to ``end`` (default: each boundary) hold on each device."""
        rows = np.arange(len(self))
        inside = np.where(np.arange(POINTS + 1) >= point[:, None], self.inside, 0.0)
        # Before boundary j lie the points up to j - 1.
        largest = np.zeros_like(inside)
        np.maximum.accumulate(inside[:, :-1], axis=1, out=largest[:, 1:])
        weights = self.parameters
        if end is not None:
            largest = np.take_along_axis(largest, end, axis=1)
            weights = np.take_along_axis(weights, end, axis=1)
        weights = weights - self.parameters[rows, point][:, None]
        flight = np.minimum(2 * left - 1, self.micro_batches)
        entering = (flight * self.crossing[rows, point])[:, None]
        return self.copies[:, None] * weights + (largest + entering) / group


def _row(space: PlanSpace) -> dict[str, np.ndarray | float]:
    """The arrays of one problem."""
    pipeline, cluster = space.pipeline, space.pipeline.cluster
    if pipeline.recompute != "full" or pipeline.sync != "allreduce":
        raise ParenvsError(
            f"{pipeline.profile.name}: problems side by side need recompute='full' and "
            "sync='allreduce'"
        )
    second = pipeline.seconds_sum[-1] / cluster.devices
    byte = pipeline.memory_limit
    pivots = space.pivots
    inside = np.append(pipeline.largest_cut(pivots[:-1], pivots[1:]), 0.0)
    starts = np.full((STAGES + 1, POINTS + 1), -1, dtype=np.int16)
    starts[: space.stages + 1, : len(pivots)] = space.latest.max(axis=2)
    return {
        "stages": space.stages,
        "micro_batches": float(pipeline.micro_batches),
        "points": len(pivots) - 1,
        "units": len(space.devices) - 1,
        "server": float(cluster.devices_per_server),
        "intra": byte / cluster.intra_bw / second,
        "inter": byte / cluster.inter_bw / second,
        "copies": float(pipeline.copies),
        "seconds": _padded(pipeline.seconds_sum[pivots] / second, POINTS),
        "backward": _padded(pipeline.backward_sum[pivots] / second, POINTS),
        "parameters": _padded(pipeline.parameter_sum[pivots] / byte, POINTS),
        "variables": _padded(pipeline.variable_sum[pivots], POINTS),
        "crossing": _padded(pipeline.cut_before[pivots] / byte, POINTS),
        "inside": _padded(inside / byte, POINTS),
        "devices": _padded(space.devices.astype(float), UNITS),
        "starts": starts,
    }


def _padded(values: np.ndarray, most: int) -> np.ndarray:
    return np.pad(values, (0, most + 1 - len(values)), mode="edge")


def _like(values: np.ndarray, other: np.ndarray) -> np.ndarray:
    return values.reshape(-1, *(1,) * (other.ndim - 1))


def _ends(inner: np.ndarray, last: np.ndarray) -> np.ndarray:
    """(b, k+2) boundaries: 0, the inner ones, the last."""
    return np.concatenate([np.zeros((len(inner), 1), np.int64), inner, last[:, None]], axis=1)
