"""Many pipeline problems side by side: the dynamics of ``PipelinePlan-v0`` as arrays.

JOINED: Tables of one pipeline problem, for many episodes of it: ``PointBatch`` without arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.pipeline.points import POINTS, STAGES, UNITS, PointSpace, least_devices

BOUNDARIES, CUTS = POINTS + 1, UNITS + 1
"""Entries of arrays over the boundaries of points and of units."""


@dataclass(frozen=True)
class PointBatch:
    """Problems of at most 128 points, 64 units and 8 stages, padded to that.

    Everything is computed as ``PointSpace`` and the judge compute it of one problem, to the last
    bit, in seconds and bytes. Arrays over points have 129 entries, one for each boundary; beyond
    the chain's end they repeat it. Arrays over units have 65.

    Methods take ``rows``, (k,) int64, the problem of each of k episodes; by default there is one
    episode of each problem, in their order.

    Attributes:
        stages: (b,) int64, S.
        micro_batches: (b,) float64, M.
        points: (b,) int64, m.
        units: (b,) int64, u.
        intra, inter: (b,) float64, bytes/s inside a server and between servers.
        copies: (b,) float64, copies of the parameters.
        limit: (b,) float64, bytes that a device may hold.
        bubble_free: (b,) float64, seconds of a step if all devices compute all the time.
        forward, backward: (b, 129) float64, prefix sums of seconds.
        parameters: (b, 129) float64, prefix sums of bytes.
        variables: (b, 129) int64, prefix sums.
        crossing: (b, 129) float64, bytes that cross each boundary.
        inside: (b, 129) float64, bytes of the largest cut inside each point, its end included.
        devices: (b, 65) float64, first device of each unit.
        server, server_before: (b, 65) int64, server of that device, and of the one before it.
        starts: (b, 9, 129) int16, last unit from which k stages from a point on can run; -1: none.
    """

    stages: np.ndarray
    micro_batches: np.ndarray
    points: np.ndarray
    units: np.ndarray
    intra: np.ndarray
    inter: np.ndarray
    copies: np.ndarray
    limit: np.ndarray
    bubble_free: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    parameters: np.ndarray
    variables: np.ndarray
    crossing: np.ndarray
    inside: np.ndarray
    devices: np.ndarray
    server: np.ndarray
    server_before: np.ndarray
    starts: np.ndarray

    @classmethod
    def stack(cls, spaces: Sequence[PointSpace]) -> PointBatch:
        """The problems of these spaces, in their order.

        Raises:
            ParenvsError: a problem of another cost model than recomputation and all-reduce.
        """
        rows = [_row(space) for space in spaces]
        return cls(**{f.name: np.array([row[f.name] for row in rows]) for f in fields(cls)})

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.stages)

    @property
    def seconds(self) -> np.ndarray:
        """(b, 129) float64, prefix sums of forward plus backward seconds."""
        return self.forward + self.backward

    def take(self, index: np.ndarray) -> PointBatch:
        """The problems of an index array."""
        return PointBatch(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def put(self, index: np.ndarray | int, space: PointSpace) -> None:
        """Make ``space`` the problem in these places."""
        for name, value in _row(space).items():
            getattr(self, name)[index] = value

    def legal_points(
        self,
        stage: int | np.ndarray,
        point: np.ndarray,
        unit: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:
        """(k, 128) bool: before which points the stage that starts there may end.

        Args:
            stage: number of the stage, from 0: one for all, or (k,) int64.
            point: (k,) int64, where it starts.
            unit: (k,) int64, where it starts.
            rows: see the class.
        """
        every, rows = rows is None, np.arange(len(self)) if rows is None else rows
        inside, parameters, variables = (
            x if every else x.take(rows, axis=0)
            for x in (self.inside, self.parameters, self.variables)
        )
        left = self.stages[rows] - stage
        at = rows * BOUNDARIES + point
        reach = self.starts[rows, np.maximum(left - 1, 0)].astype(np.int64)
        some = self.devices.take(np.maximum(reach, 0) + (rows * CUTS)[:, None])
        group = np.maximum(some - self.devices.take(rows * CUTS + unit)[:, None], 1.0)
        # Before boundary j lie the points up to j - 1.
        largest = np.zeros(inside.shape)
        np.multiply(inside[:, :-1], np.arange(POINTS) >= point[:, None], out=largest[:, 1:])
        np.maximum.accumulate(largest, axis=1, out=largest)
        largest += self._entering(rows, at, left)[:, None]
        weights = parameters - self.parameters.take(at)[:, None]
        weights *= self.copies[rows][:, None]
        fits = weights + largest / group <= self.limit[rows][:, None]
        fits &= reach > unit[:, None]
        fits &= variables > self.variables.take(at)[:, None]
        return fits[:, :POINTS]

    def legal_units(
        self,
        stage: int | np.ndarray,
        point: np.ndarray,
        unit: np.ndarray,
        end: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:
        """(k, 64) bool: up to which units the stage of the points [point, end) may run.

        Args:
            stage: as in ``legal_points``.
            point: as in ``legal_points``.
            unit: as in ``legal_points``.
            end: (k,) int64, a point that is legal there.
            rows: see the class.
        """
        every, rows = rows is None, np.arange(len(self)) if rows is None else rows
        inside, devices = (
            x if every else x.take(rows, axis=0) for x in (self.inside, self.devices)
        )
        left = self.stages[rows] - stage
        at, after = rows * BOUNDARIES + point, rows * BOUNDARIES + end
        group = np.maximum(devices - self.devices.take(rows * CUTS + unit)[:, None], 1.0)
        numbers = np.arange(BOUNDARIES)
        held = (numbers >= point[:, None]) & (numbers < end[:, None])
        shared = (inside * held).max(axis=1) + self._entering(rows, at, left)
        weights = self.copies[rows] * (self.parameters.take(after) - self.parameters.take(at))
        fits = weights[:, None] + shared[:, None] / group <= self.limit[rows][:, None]
        last = self.starts[rows, np.maximum(left - 1, 0), end]
        fits &= (numbers[:CUTS] > unit[:, None]) & (numbers[:CUTS] <= last[:, None])
        return fits[:, :UNITS]

    def lengths(
        self, cuts: np.ndarray, units: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """(k,) L in units of the bubble-free time.

        Args:
            cuts: (k, 7) int64, points; what lies behind the last cut of a problem does not count.
            units: (k, 7) int64.
            rows: see the class.
        """
        rows = np.arange(len(self)) if rows is None else rows
        return self._seconds(cuts.T, units.T, rows) / self.bubble_free[rows]

    def values(
        self, cuts: np.ndarray, units: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """(k,) float64, the judge's values of plans that fit the memory, 1/L.

        Args:
            cuts: (7, k) int64, points; what lies behind the last cut of a problem does not count.
            units: (7, k) int64.
            rows: see the class.
        """
        rows = np.arange(len(self)) if rows is None else rows
        return self.bubble_free[rows] / self._seconds(cuts, units, rows)

    def _entering(self, rows: np.ndarray, at: np.ndarray, left: np.ndarray) -> np.ndarray:
        """(k,) bytes that enter stages whose first boundaries are ``at``, of all in flight."""
        flight = np.minimum(2 * left - 1, self.micro_batches[rows])
        return flight * self.crossing.take(at)

    def _seconds(self, cuts: np.ndarray, units: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(k,) L of plans given as (7, k): ``parenvs.pipeline.problem``, with empty stages behind."""
        behind = np.arange(STAGES - 1)[:, None] >= self.stages[rows] - 1
        p = _bounds(np.where(behind, self.points[rows], cuts), self.points[rows])
        d = _bounds(np.where(behind, self.units[rows], units), self.units[rows])
        p, d = p + rows * BOUNDARIES, d + rows * CUTS
        return length(self, p, d, rows)


def length(
    batch: PointBatch, points: np.ndarray, units: np.ndarray, rows: np.ndarray | int
) -> np.ndarray:
    """(k,) seconds of a step, L, by the operations of ``parenvs.pipeline.problem`` in their order.

    Args:
        batch: problems.
        points: (S+1, k) int64, boundaries of the stages, as places in the arrays over points of
            all problems, end to end.
        units: (S+1, k) int64, the same over units.
        rows: (k,) int64, the problem of each, or one for all.
    """
    devices = batch.devices.take(units)
    group = np.maximum(devices[1:] - devices[:-1], 1.0)
    server, before = batch.server.take(units), batch.server_before.take(units)
    intra, inter, more = batch.intra[rows], batch.inter[rows], batch.micro_batches[rows] - 1.0
    x, backward, reduce = np.zeros((3, 2 * len(group) - 1, points.shape[1]))
    seconds = batch.backward.take(points)
    backward[::2] = (seconds[1:] - seconds[:-1]) / group
    seconds = batch.forward.take(points)
    x[::2] = (seconds[1:] - seconds[:-1]) / group
    x[::2] += backward[::2]
    link = np.where(server[:-2] == before[2:], intra, inter)
    backward[1::2] = batch.crossing.take(points[1:-1]) / link
    x[1::2] = backward[1::2] + backward[1::2]
    weights = batch.parameters.take(points)
    link = np.where(server[:-1] == before[1:], intra, inter)
    reduce[::2] = 2.0 * (weights[1:] - weights[:-1]) * (group - 1.0) / group / link
    core = (np.cumsum(x, axis=0) + more * x).max(axis=0)
    reduce -= np.cumsum(backward, axis=0) - backward
    return core + np.maximum(reduce.max(axis=0), 0.0)


def _row(space: PointSpace) -> dict[str, np.ndarray | float]:
    """The arrays of one problem."""
    pipeline, cluster = space.pipeline, space.pipeline.cluster
    if pipeline.recompute != "full" or pipeline.sync != "allreduce":
        raise ParenvsError(
            f"{pipeline.profile.name}: problems side by side need recompute='full' and "
            "sync='allreduce'"
        )
    pivots, devices = space.pivots, space.devices
    inside = np.append(pipeline.largest_cut(pivots[:-1], pivots[1:]), 0.0)
    starts = np.full((STAGES + 1, BOUNDARIES), -1, dtype=np.int16)
    starts[: space.stages + 1, : len(pivots)] = space.latest.max(axis=2)
    return {
        "stages": space.stages,
        "micro_batches": float(pipeline.micro_batches),
        "points": len(pivots) - 1,
        "units": len(devices) - 1,
        "intra": float(cluster.intra_bw),
        "inter": float(cluster.inter_bw),
        "copies": float(pipeline.copies),
        "limit": pipeline.memory_limit,
        "bubble_free": pipeline.bubble_free,
        "forward": _padded(pipeline.forward_sum[pivots], BOUNDARIES),
        "backward": _padded(pipeline.backward_sum[pivots], BOUNDARIES),
        "parameters": _padded(pipeline.parameter_sum[pivots], BOUNDARIES),
        "variables": _padded(pipeline.variable_sum[pivots], BOUNDARIES),
        "crossing": _padded(pipeline.cut_before[pivots], BOUNDARIES),
        "inside": _padded(inside, BOUNDARIES),
        "devices": _padded(devices.astype(float), CUTS),
        "server": _padded(devices // cluster.devices_per_server, CUTS),
        "server_before": _padded((devices - 1) // cluster.devices_per_server, CUTS),
        "starts": starts,
    }


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    return values.take(np.arange(length), mode="clip")  # repeats the last


def _bounds(inner: np.ndarray, last: np.ndarray) -> np.ndarray:
    """(s+2, k) boundaries: 0, the inner ones, the last."""
    return np.concatenate([np.zeros((1, len(last)), np.int64), inner, last[None]])


ENDS = UNITS + 1
_first, _end, _unit = np.ogrid[:ENDS, :ENDS, :UNITS]
SPANS = ((_first <= _unit) & (_unit < _end)).reshape(-1, UNITS)
"""(65 * 65, 64) bool: row ``65 * first + end`` are the units from ``first`` to before ``end``."""


class PointTables:
    """What ``PointBatch`` says of k episodes of one problem, looked up.

    Methods are those of ``PointBatch``; as there is one problem, ``rows`` does not matter.

    Args:
        space: the problem.

    Raises:
        ParenvsError: as ``PointBatch.stack``.
    """

    def __init__(self, space: PointSpace) -> None:
        self.stages, self.boundaries = space.stages, len(space.pivots)
        self.batch = PointBatch.stack([space])
        shape = (space.stages + 1, self.boundaries)
        latest = np.full((*shape, POINTS), -1, dtype=np.int8)
        latest[:, :, : self.boundaries - 1] = space.latest[:, :, :-1]
        self._latest = latest.reshape(-1, POINTS)
        # More devices never hurt, so that the units up to which a stage may run are a span: from
        # its own unit as many on as it needs, up to where the stages behind it start at the latest.
        size = space.devices[1] - space.devices[0]  # of all units but perhaps the last
        spans = np.zeros((*shape, self.boundaries), dtype=np.int64)
        for left in range(1, space.stages + 1):
            need = np.ceil(least_devices(space.pipeline, space.pivots, left) / size)
            end = space.latest[left - 1].max(axis=1) + 1
            spans[left] = np.minimum(need, UNITS).astype(np.int64) * ENDS + end
        self._spans = spans.ravel()

    def legal_points(
        self,
        stage: int | np.ndarray,
        point: np.ndarray,
        unit: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:
        """(k, 128) bool, see ``PointBatch.legal_points``."""
        place = point + (self.stages - stage) * self.boundaries
        # Clipping changes nothing, but is the fastest mode.
        return self._latest.take(place, axis=0, mode="clip") >= unit.astype(np.int8)[:, None]

    def legal_units(
        self,
        stage: int | np.ndarray,
        point: np.ndarray,
        unit: np.ndarray,
        end: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:
        """(k, 64) bool, see ``PointBatch.legal_units``; ``end`` must be legal."""
        place = point + (self.stages - stage) * self.boundaries
        spans = self._spans.take(place * self.boundaries + end)
        return SPANS.take(spans + unit * ENDS, axis=0, mode="clip")

    def values(
        self, cuts: np.ndarray, units: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """(k,) float64, see ``PointBatch.values``."""
        shape = (self.stages + 1, cuts.shape[1])
        p, d = np.zeros((2, *shape), dtype=np.int64)
        p[1:-1], d[1:-1] = cuts[: self.stages - 1], units[: self.stages - 1]
        p[-1], d[-1] = self.batch.points[0], self.batch.units[0]
        return self.batch.bubble_free[0] / length(self.batch, p, d, 0)
