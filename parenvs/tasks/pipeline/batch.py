"""Plans of many problems over points and units at once, as pure functions of arrays."""

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
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import POINTS, STAGES, UNITS, PointSpace

BOUNDARIES, CUTS = POINTS + 1, UNITS + 1
"""Number of entries of arrays over the boundaries of points, and of units."""


@dataclass(frozen=True)
class PointBatch:
    """b problems, padded to 128 points, 64 units and as many stages (8, or more if one has more).

    The arrays are NumPy arrays, or torch tensors on any device (``map`` converts them). All methods
    work on both, by the formulas of ``parenvs.tasks.pipeline.formulas`` in float64. Masks and
    lengths equal those of ``PointSpace`` and ``Pipeline`` to the last bit; in torch, lengths may
    differ in the last bits, as a device chooses the order in which it sums at most 15 numbers. With
    tensors, no method waits for the device or copies a number from it.

    Arrays over points have 129 entries, one for each boundary; entries beyond the end of the chain
    repeat the last one. Arrays over units have 65 entries. Methods take ``rows``, (k,) int64, the
    problem of each of k episodes; by default there is one episode of each problem, in their order.

    Attributes:
        stages: (b,) int64, S.
        micro_batches: (b,) float64, M.
        points: (b,) int64, m, the number of points.
        units: (b,) int64, u, the number of units.
        intra, inter: (b,) float64, bytes/s inside a server and between servers.
        copies: (b,) float64, copies of the parameters on each device of a stage.
        limit: (b,) float64, bytes that a device may hold.
        bubble_free: (b,) float64, seconds of a step if all devices compute all the time.
        forward, backward: (b, 129) float64, prefix sums of seconds.
        parameters: (b, 129) float64, prefix sums of parameter bytes.
        variables: (b, 129) int64, number of pivots with variables before each boundary.
        crossing: (b, 129) float64, bytes that cross each boundary.
        inside: (b, 129) float64, bytes of the largest cut inside each point, its end included.
        devices: (b, 65) float64, first device of each unit.
        server, server_before: (b, 65) int64, server of that device, and of the device before it.
        starts: (b, stages + 1, 129) int16, by the stages that all are padded to;
            ``starts[:, k, i]`` is the last unit from which k stages that start at point i can run,
            -1 if they cannot.
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
        """Stack the problems of ``spaces``, in their order, into NumPy arrays.

        Raises:
            ParenvsError: a problem has another cost model than recomputation and all-reduce.
        """
        for space in spaces:
            if not computes(space.pipeline):
                raise ParenvsError(
                    f"{space.pipeline.profile.name}: problems side by side need recompute='full' "
                    "and sync='allreduce', and no frozen or tied weights (tied='once' counts tied "
                    "ones once)"
                )
        return cls(**stacked(spaces))

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.stages)

    @property
    def seconds(self) -> Array:
        """(b, 129) float64, prefix sums of forward plus backward seconds."""
        return self.forward + self.backward

    def map(self, convert: Callable[[Array], Array]) -> PointBatch:
        """Return the batch with ``convert`` applied to every array."""
        return PointBatch(**{f.name: convert(getattr(self, f.name)) for f in fields(self)})

    def take(self, index: Array) -> PointBatch:
        """Return a batch of the problems that an index array names."""
        return self.map(lambda values: values[index])

    def put(self, index: Array | slice, other: PointBatch) -> None:
        """Replace the problems at ``index`` by those of ``other``.

        Args:
            index: k problems of this batch.
            other: k problems, or one that replaces all k.
        """
        for f in fields(self):
            getattr(self, f.name)[index] = getattr(other, f.name)

    def legal_points(
        self, stage: Array, point: Array, unit: Array, rows: Array | None = None
    ) -> Array:
        """Return before which points the stage of each episode may end, (k, 128) bool.

        Args:
            stage: number of the stage, from 0: one for all episodes, or (k,) int64.
            point: (k,) int64, first point of the stage.
            unit: (k,) int64, first unit of the stage.
            rows: see the class.
        """
        # A stage that ends before point j ends with point j - 1; no stage ends before point 0.
        inside, parameters, variables = self._of(rows, self.inside, self.parameters, self.variables)
        rows = self._rows(rows)
        start = rows * BOUNDARIES + point
        left = self.stages[rows] - stage
        reach = as_index(self.starts[rows, at_least(left - 1, 0)])[:, 1:POINTS]
        end_device = entries(self.devices, rows, at_least(reach, 0))
        group = at_least(end_device - entries(self.devices, rows, unit[:, None]), 1.0)
        is_inside = counting(inside, POINTS - 1) >= point[:, None]
        largest = running_max(masked(is_inside, inside[:, : POINTS - 1]))
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
        """Return before which units the stage of the points [point, end) may end, (k, 64) bool.

        Args:
            stage: as in ``legal_points``.
            point: as in ``legal_points``.
            unit: as in ``legal_points``.
            end: (k,) int64, point before which the stage ends; ``legal_points`` allows it.
            rows: see the class.
        """
        inside, devices = self._of(rows, self.inside, self.devices)
        rows = self._rows(rows)
        left = self.stages[rows] - stage
        group = at_least(devices - entries(self.devices, rows, unit[:, None]), 1.0)
        indices = counting(inside, BOUNDARIES)
        is_free = (indices >= point[:, None]) & (indices < end[:, None])
        largest = namespace(inside).max(masked(is_free, inside), axis=1)
        start, end_index = rows * BOUNDARIES + point, rows * BOUNDARIES + end
        weights = formulas.weight_bytes(
            self.parameters.take(end_index) - self.parameters.take(start), self.copies[rows]
        )
        activations = self._activations(largest, start, left, rows)
        needed = formulas.stage_bytes(weights[:, None], activations[:, None], group)
        fits = needed <= self.limit[rows][:, None]
        last_unit = self.starts[rows, at_least(left - 1, 0), end][:, None]
        fits &= (indices[:CUTS] > unit[:, None]) & (indices[:CUTS] <= last_unit)
        return fits[:, :UNITS]

    def lengths(self, cuts: Array, units: Array, rows: Array | None = None) -> Array:
        """Return L in units of the bubble-free time, (k,) float64.

        Args:
            cuts: (k, 7) int64, first point of each stage but the first; entries beyond the last
                stage of a problem are ignored.
            units: (k, 7) int64, first unit of each stage but the first, likewise.
            rows: see the class.
        """
        rows = self._rows(rows)
        return self._seconds(cuts, units, rows) / self.bubble_free[rows]

    def values(self, cuts: Array, units: Array, rows: Array | None = None) -> Array:
        """Return 1/L, the judge's values of plans that fit the memory, (k,) float64.

        Arguments are those of ``lengths``.
        """
        rows = self._rows(rows)
        return formulas.value(self._seconds(cuts, units, rows), self.bubble_free[rows])

    def figures(
        self, cuts: np.ndarray, units: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return seconds of a step, excess bytes and 1/L of plans that fit, (k,) float64 each.

        Excess bytes are those by which the fullest stage exceeds the memory of a device. NumPy
        only; arguments are those of ``lengths``.
        """
        rows = self._rows(rows)
        points, unit_ends = self._all_boundaries(cuts, units, rows)
        seconds = step_seconds(self, points, unit_ends, rows)
        excess = excess_bytes(self, points, unit_ends, rows)
        return seconds, excess, np.asarray(formulas.value(seconds, self.bubble_free[rows]))

    def _rows(self, rows: Array | None) -> Array:
        """Return the problem of each episode, (k,) int64."""
        return counting(self.stages, len(self)) if rows is None else rows

    def _of(self, rows: Array | None, *arrays: Array) -> tuple[Array, ...]:
        """Return ``arrays`` with a row for each episode; without ``rows`` they are not copied."""
        return arrays if rows is None else tuple(values[rows] for values in arrays)

    def _activations(self, largest: Array, start: Array, left: Array, rows: Array) -> Array:
        """Return the bytes of activations of stages, which their devices share, elementwise.

        Args:
            largest: bytes of the largest cut inside each stage.
            start: int64, index of the first point of each stage in ``crossing``, flattened.
            left: int64, stages from each stage to the last, itself included.
            rows: int64, the problem of each stage.
        """
        flight = formulas.in_flight(left, self.micro_batches[rows])
        return formulas.recomputed_bytes(largest, self.crossing.take(start), flight)

    def _seconds(self, cuts: Array, units: Array, rows: Array) -> Array:
        """Return the seconds of a step of plans, (k,); arguments are those of ``lengths``."""
        return step_seconds(self, *self._all_boundaries(cuts, units, rows), rows)

    def _all_boundaries(self, cuts: Array, units: Array, rows: Array) -> tuple[Array, Array]:
        """Return the boundaries of stages as ``step_seconds`` takes them, (stages + 1, k) each.

        All plans get as many stages: those beyond the last stage of a problem are empty.
        """
        where = namespace(self.stages).where
        stage = counting(self.stages, cuts.shape[1])[:, None]
        is_beyond = stage >= self.stages[rows] - 1
        points = _boundaries(where(is_beyond, self.points[rows], cuts.T), self.points[rows])
        unit_ends = _boundaries(where(is_beyond, self.units[rows], units.T), self.units[rows])
        return points + rows * BOUNDARIES, unit_ends + rows * CUTS


def step_seconds(batch: PointBatch, points: Array, units: Array, rows: Array | int) -> Array:
    """Return the seconds of a step of k plans, (k,).

    Args:
        batch: the problems.
        points: (S+1, k) int64, boundaries of the stages as indices of the flattened arrays over
            points, ``row * BOUNDARIES + point``; stages may be empty.
        units: (S+1, k) int64, boundaries of the stages as indices of the flattened arrays over
            units, ``row * CUTS + unit``.
        rows: (k,) int64, the problem of each plan, or one number for all.
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


def excess_bytes(
    batch: PointBatch, points: np.ndarray, units: np.ndarray, rows: np.ndarray | int
) -> np.ndarray:
    """Return the bytes by which the fullest stage of k plans exceeds the memory, (k,).

    Arguments are those of ``step_seconds``, as NumPy arrays.
    """
    stages, count = len(points) - 1, points.shape[1]
    # The end of an empty stage is its start, so it is given the entry at its start.
    spans = np.empty((count, 2 * stages), dtype=np.int64)
    spans[:, ::2] = points[:-1].T
    spans[:, 1::2] = np.maximum(points[1:], points[:-1] + 1).T
    plan = np.arange(count)
    spans += ((plan - rows) * BOUNDARIES)[:, None]
    inside = np.append(batch.inside[plan * 0 + rows].ravel(), 0.0)
    largest = np.maximum.reduceat(inside, spans.ravel())[::2].reshape(count, stages).T
    filled = points[1:] > points[:-1]
    # A plan has S stages; the number from each to the last, itself included, is in flight.
    left = np.asarray(batch.stages)[rows] - np.arange(stages)[:, None]
    devices = batch.devices.take(units)
    weights = formulas.weight_bytes(
        batch.parameters.take(points[1:]) - batch.parameters.take(points[:-1]), batch.copies[rows]
    )
    flight = formulas.in_flight(np.maximum(left, 1), batch.micro_batches[rows])
    activations = formulas.recomputed_bytes(largest, batch.crossing.take(points[:-1]), flight)
    needed = formulas.stage_bytes(weights, activations, at_least(devices[1:] - devices[:-1], 1.0))
    return np.where(filled, needed, 0.0).max(axis=0) - batch.limit[rows]


def _boundaries(inner: Array, last: Array) -> Array:
    """Return stage boundaries, (s+2, k): 0, ``inner`` (s, k), ``last`` (k,)."""
    result = empty(last, (len(inner) + 2, len(last)))
    result[0], result[1:-1], result[-1] = 0, inner, last
    return result


def computes(pipeline: Pipeline) -> bool:
    """Return whether ``PointBatch`` computes the costs of a problem."""
    is_plain = pipeline.recompute == "full" and pipeline.sync == "allreduce"
    return is_plain and pipeline.tied_weights is None and not pipeline.frozen_sum[-1]


def stacked(spaces: Sequence[PointSpace]) -> dict[str, np.ndarray]:
    """Return the arrays of problems, (b, ...), by the names of the attributes of ``PointBatch``.

    Problems of any costs have them; ``starts`` are right for all.
    """
    stages = max(STAGES, *(space.stages for space in spaces))
    problems = [_arrays_of(space, stages) for space in spaces]
    return {name: np.array([arrays[name] for arrays in problems]) for name in problems[0]}


def _arrays_of(space: PointSpace, stages: int) -> dict[str, np.ndarray | float]:
    """Return the arrays of one problem, by the names of the attributes of ``PointBatch``.

    Args:
        space: the problem.
        stages: number of stages that it is padded to.
    """
    pipeline, cluster = space.pipeline, space.pipeline.cluster
    pivots, devices = space.pivots, space.devices
    inside = np.append(pipeline.largest_cut(pivots[:-1], pivots[1:]), 0.0)
    starts = np.full((stages + 1, BOUNDARIES), -1, dtype=np.int16)
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
    """Return the values, then the last of them repeated, up to ``length`` entries."""
    return values.take(np.arange(length), mode="clip")
