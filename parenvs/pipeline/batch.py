"""Many pipeline problems side by side: the dynamics of ``PipelinePlan-v0`` as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from parenvs.arrays import (
    Array,
    as_index,
    at_least,
    counting,
    empty,
    entries,
    masked,
    namespace,
    running_max,
)
from parenvs.cluster import group_bandwidth, server_of
from parenvs.errors import ParenvsError
from parenvs.pipeline import formulas
from parenvs.pipeline.points import POINTS, STAGES, UNITS, PointSpace, least_devices

BOUNDARIES, CUTS = POINTS + 1, UNITS + 1
"""Entries of arrays over the boundaries of points and of units."""


@dataclass(frozen=True)
class PointBatch:
    """Problems of at most 128 points, 64 units and 8 stages, padded to that.

    Arrays are NumPy's, or torch tensors on any device (``map`` makes one of the other): all methods
    work on both, by the formulas of ``parenvs.pipeline.formulas`` in float64. Masks and lengths are
    those of ``PointSpace`` and ``Pipeline`` to the last bit; in torch, lengths are so up to the
    order in which a device sums at most 15 numbers. With tensors, nothing waits for the device and
    no number comes back from it.

    Arrays over points have 129 entries, one for each boundary; beyond the chain's end they repeat
    it. Arrays over units have 65. Methods take ``rows``, (k,) int64, the problem of each of k
    episodes; by default there is one episode of each problem, in their order.

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

    stages: Array
    micro_batches: Array
    points: Array
    units: Array
    intra: Array
    inter: Array
    copies: Array
    limit: Array
    bubble_free: Array
    forward: Array
    backward: Array
    parameters: Array
    variables: Array
    crossing: Array
    inside: Array
    devices: Array
    server: Array
    server_before: Array
    starts: Array

    @classmethod
    def stack(cls, spaces: Sequence[PointSpace]) -> PointBatch:
        """The problems of these spaces, in their order, as NumPy arrays.

        Raises:
            ParenvsError: a problem of another cost model than recomputation and all-reduce.
        """
        rows = [_row(space) for space in spaces]
        return cls(**{f.name: np.array([row[f.name] for row in rows]) for f in fields(cls)})

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.stages)

    @property
    def seconds(self) -> Array:
        """(b, 129) float64, prefix sums of forward plus backward seconds."""
        return self.forward + self.backward

    def map(self, convert: Callable[[Array], Array]) -> PointBatch:
        """The batch with ``convert`` applied to every array."""
        return PointBatch(**{f.name: convert(getattr(self, f.name)) for f in fields(self)})

    def take(self, index: Array) -> PointBatch:
        """The problems of an index array."""
        return self.map(lambda values: values[index])

    def put(self, index: Array | slice, other: PointBatch) -> None:
        """Make the problems of ``other``, one or as many as places, those in these places."""
        for f in fields(self):
            getattr(self, f.name)[index] = getattr(other, f.name)

    def legal_points(
        self, stage: Array, point: Array, unit: Array, rows: Array | None = None
    ) -> Array:
        """(k, 128) bool: before which points the stage that starts there may end.

        Args:
            stage: number of the stage, from 0: one for all, or (k,) int64.
            point: (k,) int64, where it starts.
            unit: (k,) int64, where it starts.
            rows: see the class.
        """
        # Of a stage that ends before point j, the last point is j - 1; none ends before point 0.
        inside, parameters, variables = self._of(rows, self.inside, self.parameters, self.variables)
        rows = self._rows(rows)
        start = rows * BOUNDARIES + point
        left = self.stages[rows] - stage
        reach = as_index(self.starts[rows, at_least(left - 1, 0)])[:, 1:POINTS]
        end_device = entries(self.devices, rows, at_least(reach, 0))
        group = at_least(end_device - entries(self.devices, rows, unit[:, None]), 1.0)
        held = counting(inside, POINTS - 1) >= point[:, None]
        largest = running_max(masked(held, inside[:, : POINTS - 1]))
        weights = formulas.weight_bytes(
            parameters[:, 1:POINTS] - self.parameters.take(start)[:, None],
            self.copies[rows][:, None],
        )
        activations = self._activations(largest, start[:, None], left[:, None], rows[:, None])
        fits = formulas.stage_bytes(weights, activations, group) <= self.limit[rows][:, None]
        fits &= reach > unit[:, None]
        fits &= variables[:, 1:POINTS] > self.variables.take(start)[:, None]
        legal = empty(fits, (len(rows), POINTS))
        legal[:, 0], legal[:, 1:] = False, fits
        return legal

    def legal_units(
        self, stage: Array, point: Array, unit: Array, end: Array, rows: Array | None = None
    ) -> Array:
        """(k, 64) bool: up to which units the stage of the points [point, end) may run.

        Args:
            stage: as in ``legal_points``.
            point: as in ``legal_points``.
            unit: as in ``legal_points``.
            end: (k,) int64, a point that is legal there.
            rows: see the class.
        """
        inside, devices = self._of(rows, self.inside, self.devices)
        rows = self._rows(rows)
        left = self.stages[rows] - stage
        group = at_least(devices - entries(self.devices, rows, unit[:, None]), 1.0)
        numbers = counting(inside, BOUNDARIES)
        held = (numbers >= point[:, None]) & (numbers < end[:, None])
        largest = namespace(inside).max(masked(held, inside), axis=1)
        start, behind = rows * BOUNDARIES + point, rows * BOUNDARIES + end
        weights = formulas.weight_bytes(
            self.parameters.take(behind) - self.parameters.take(start), self.copies[rows]
        )
        activations = self._activations(largest, start, left, rows)
        needed = formulas.stage_bytes(weights[:, None], activations[:, None], group)
        fits = needed <= self.limit[rows][:, None]
        last = self.starts[rows, at_least(left - 1, 0), end][:, None]
        fits &= (numbers[:CUTS] > unit[:, None]) & (numbers[:CUTS] <= last)
        return fits[:, :UNITS]

    def lengths(self, cuts: Array, units: Array, rows: Array | None = None) -> Array:
        """(k,) float64, L in units of the bubble-free time.

        Args:
            cuts: (k, 7) int64, points; what lies behind the last cut of a problem does not count.
            units: (k, 7) int64.
            rows: see the class.
        """
        rows = self._rows(rows)
        return self._seconds(cuts, units, rows) / self.bubble_free[rows]

    def values(self, cuts: Array, units: Array, rows: Array | None = None) -> Array:
        """(k,) float64, 1/L: the judge's values of plans that fit the memory; see ``lengths``."""
        rows = self._rows(rows)
        return formulas.value(self._seconds(cuts, units, rows), self.bubble_free[rows])

    def _rows(self, rows: Array | None) -> Array:
        return counting(self.stages, len(self)) if rows is None else rows

    def _of(self, rows: Array | None, *arrays: Array) -> tuple[Array, ...]:
        """The arrays of the episodes' problems; by default they are not copied."""
        return arrays if rows is None else tuple(values[rows] for values in arrays)

    def _activations(self, largest: Array, start: Array, left: Array, rows: Array) -> Array:
        """Bytes of activations of stages with these largest cuts, that start at these places."""
        flight = formulas.in_flight(left, self.micro_batches[rows])
        return formulas.recomputed_bytes(largest, self.crossing.take(start), flight)

    def _seconds(self, cuts: Array, units: Array, rows: Array) -> Array:
        """(k,) seconds of a step of plans given as in ``lengths``; empty stages stand behind."""
        stage = counting(self.stages, STAGES - 1)[:, None]
        behind, choose = stage >= self.stages[rows] - 1, namespace(self.stages).where
        points = _boundaries(choose(behind, self.points[rows], cuts.T), self.points[rows])
        ends = _boundaries(choose(behind, self.units[rows], units.T), self.units[rows])
        return step_seconds(self, points + rows * BOUNDARIES, ends + rows * CUTS, rows)


def step_seconds(batch: PointBatch, points: Array, units: Array, rows: Array | int) -> Array:
    """(k,) seconds of a step.

    Args:
        batch: problems.
        points: (S+1, k) int64, boundaries of the stages, as places in the arrays over points of
            all problems, end to end; stages may be empty.
        units: (S+1, k) int64, the same over units.
        rows: (k,) int64, the problem of each, or one for all.
    """
    devices = batch.devices.take(units)
    first_server, last_server = batch.server.take(units), batch.server_before.take(units)
    intra, inter = batch.intra[rows], batch.inter[rows]
    seconds = formulas.stage_seconds(
        batch.forward.take(points),
        batch.backward.take(points),
        batch.parameters.take(points),
        crossing=batch.crossing.take(points[1:-1]),
        group=at_least(devices[1:] - devices[:-1], 1.0),
        group_bandwidth=group_bandwidth(first_server[:-1] == last_server[1:], intra, inter),
        link_bandwidth=group_bandwidth(first_server[:-2] == last_server[2:], intra, inter),
    )
    return formulas.length(seconds, batch.micro_batches[rows])


def _boundaries(inner: Array, last: Array) -> Array:
    """(s+2, k) boundaries: 0, the inner ones, the last."""
    result = empty(last, (len(inner) + 2, len(last)))
    result[0], result[1:-1], result[-1] = 0, inner, last
    return result


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
        "server": _padded(server_of(devices, cluster.devices_per_server), CUTS),
        "server_before": _padded(server_of(devices - 1, cluster.devices_per_server), CUTS),
        "starts": starts,
    }


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    return values.take(np.arange(length), mode="clip")  # repeats the last


_first, _end, _unit = np.ogrid[:CUTS, :CUTS, :UNITS]
SPANS = ((_first <= _unit) & (_unit < _end)).reshape(-1, UNITS)
"""(65 * 65, 64) bool: row ``65 * first + end`` are the units from ``first`` to before ``end``."""


class PointTables:
    """The look-up twin of ``PointBatch``: what it says of k episodes of one problem, from tables.

    The methods are those of ``PointBatch`` on NumPy arrays; ``rows`` is ignored, as there is one
    problem. The tables are made by ``PointSpace`` and ``least_devices``.

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
            spans[left] = np.minimum(need, UNITS).astype(np.int64) * CUTS + end
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
        return SPANS.take(spans + unit * CUTS, axis=0, mode="clip")

    def values(
        self, cuts: np.ndarray, units: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """(k,) float64, see ``PointBatch.values``."""
        batch, last = self.batch, self.stages - 1
        points, ends = np.zeros((2, self.stages + 1, len(cuts)), dtype=np.int64)
        points[1:-1], points[-1] = cuts.T[:last], batch.points[0]
        ends[1:-1], ends[-1] = units.T[:last], batch.units[0]
        seconds = step_seconds(batch, points, ends, 0)
        return np.asarray(formulas.value(seconds, batch.bubble_free[0]))
