"""Problems of ``PipelinePlan-v0`` as its game plays them: what is observed, and what is legal.

``observe`` computes the part of the observation that describes a problem; networks that plan
without an environment get their input from it, too. ``PlanTables`` looks up which choices are
legal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np

from parenvs.datasets.pipeline.optima import optimum_of
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.batch import BOUNDARIES, CUTS, PointBatch, stacked
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS, PointSpace
from parenvs.tasks.pipeline.problem import Pipeline

MICRO_BATCHES = 64
"""Largest number of micro-batches that the observation tells apart."""
OCTAVES = 16
"""Largest logarithm to base 2 in the observation, which divides logarithms by it."""
NUMBERS = (
    "stages", "micro_batches", "units", "devices", "memory", "backward", "link", "recompute",
)  # fmt: skip
"""Names of the observation's ``numbers``."""
ROWS = 1 + (STAGES - 2) * BOUNDARIES
"""Rows of a problem in ``reach``: one for the first stage, then those of the stages from each
point, for each number of stages to the last from 2 to S-1."""
SEEN = "observed_"
"""What the names of the arrays of ``observe`` begin with, beside others."""
Slots = Any
"""The slot of each episode's problem, (k,) int64, or one for all."""

_first, _end, _unit = np.ogrid[:CUTS, :CUTS, :UNITS]
SPANS = ((_first <= _unit) & (_unit < _end)).reshape(-1, UNITS)
"""(65 * 65, 64) bool; row ``65 * first + end`` is true for the units ``[first, end)``."""


def observe(space: PointSpace) -> dict[str, np.ndarray]:
    """Compute the constant part of an episode's observation.

    Returns:
        ``chain``, ``topology`` and ``numbers``, float32; ``PipelinePlan`` specifies them.
    """
    pipeline, cluster = space.pipeline, space.pipeline.cluster
    ends, point_count = space.pivots[1:], len(space.pivots) - 1
    seconds = np.stack(
        [
            pipeline.seconds_sum[ends],
            formulas.transfer_seconds(pipeline.cut_before[ends], cluster.inter_bw),
            2.0 * pipeline.parameter_sum[ends] / cluster.inter_bw,
        ]
    )
    longest_seconds = seconds.max()
    chain = np.zeros((4, POINTS), dtype=np.float32)
    chain[:3, :point_count], chain[3, :point_count] = seconds / longest_seconds, 1.0
    unit_count = len(space.devices) - 1
    first_device, end_device = space.devices[:-1], space.devices[1:]
    # The bandwidth between two units, or inside one, is that of the group that spans both.
    group_first = np.minimum.outer(first_device, first_device)
    group_end = np.maximum.outer(end_device, end_device)
    topology = np.zeros((UNITS, UNITS), dtype=np.float32)
    fastest = max(cluster.intra_bw, cluster.inter_bw)
    topology[:unit_count, :unit_count] = cluster.bandwidth(group_first, group_end) / fastest
    bandwidth_ratio = max(cluster.intra_bw / cluster.inter_bw, 1.0)
    memory_seconds = 2.0 * pipeline.memory_limit / cluster.inter_bw
    numbers = [
        space.stages / STAGES,
        pipeline.micro_batches / MICRO_BATCHES,
        unit_count / UNITS,
        np.log2(end_device[0]) / OCTAVES,
        memory_seconds / (memory_seconds + longest_seconds * pipeline.copies),
        pipeline.backward_sum[-1] / pipeline.seconds_sum[-1],
        np.log2(bandwidth_ratio) / OCTAVES,
        float(pipeline.recompute == "full"),
    ]
    return {
        "chain": chain,
        "topology": topology,
        # A planner may have more stages than the environment.
        "numbers": np.append(numbers[:1], np.minimum(numbers[1:], 1.0)).astype(np.float32),
    }


def playable(pipeline: Pipeline) -> PointSpace:
    """Build the search space of a problem that the environment has room for.

    Raises:
        InfeasibleError: it has more than ``STAGES`` stages, or no plan.
    """
    if pipeline.stages > STAGES:
        raise InfeasibleError(
            f"{pipeline.profile.name} on {pipeline.cluster}: {pipeline.stages} stages asked for; "
            f"PipelinePlan-v0 has at most {STAGES} (planners take more)"
        )
    return PointSpace.build(pipeline.with_fractions())


class PlanTables:
    """What a game looks up of problems; each has a slot, which is a row of every array.

    Args:
        arrays: by name, (slots, ...) each: see ``rows_of``.

    Attributes:
        arrays: the same.
        batch: those of ``PointBatch``.
        constant: those of ``observe``.
        reach: (slots, rows, 128) int8; row r of a stage's length and start, column j: the last unit
            from which the stage may start if it ends before point j, -1 if it may not.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.batch = PointBatch(**{f.name: arrays[f.name] for f in fields(PointBatch)})
        self.constant = {
            key.removeprefix(SEEN): values for key, values in arrays.items() if key.startswith(SEEN)
        }
        self.reach = arrays["reach"]

    def put(self, slots: Slots, rows: Mapping[str, np.ndarray]) -> None:
        """Write problems into slots: one for each, or the same for all.

        Args:
            slots: (k,) int64, or a slice.
            rows: by name, (k, ...) or (1, ...).
        """
        for name, values in rows.items():
            if name == "reach":
                self.reach[slots, : values.shape[1]] = values
            else:
                self.arrays[name][slots] = values

    def legal_points(
        self, slots: Slots, stage: int | np.ndarray, point: np.ndarray, unit: np.ndarray
    ) -> np.ndarray:
        """Return before which points stages may end; see ``PointBatch.legal_points``."""
        row, _ = self._of(slots, stage, point)
        # The indices are in range; "clip" is the fastest mode.
        reach = self.reach.reshape(-1, POINTS).take(row, axis=0, mode="clip")
        return reach >= unit.astype(np.int8)[:, None]

    def legal_units(
        self,
        slots: Slots,
        stage: int | np.ndarray,
        point: np.ndarray,
        unit: np.ndarray,
        end: np.ndarray,
    ) -> np.ndarray:
        """Return before which units stages may end; see ``PointBatch.legal_units``.

        More devices never hurt, and units are of one size but for the last, so the legal ones are a
        span. It ends where the later stages must start at the latest. A stage that starts as late
        as it can has none but that, so it needs as many units as lie between both, and a stage that
        starts earlier may end as much earlier.
        """
        row, left = self._of(slots, stage, point)
        starts = self.batch.starts
        last = starts.reshape(-1).take((slots * starts.shape[1] + left - 1) * BOUNDARIES + end)
        first = unit + last - self.reach.reshape(-1).take(row * POINTS + end)
        return SPANS.take(first * CUTS + last + 1, axis=0, mode="clip")

    def _of(self, slots: Slots, stage: int | np.ndarray, point: np.ndarray) -> tuple[Any, Any]:
        """Return the row of each stage in ``reach``, and the stages from it to the last."""
        left = self.batch.stages[slots] - stage
        later = (left - 2) * (self.batch.points[slots] + 1) + 1
        return slots * self.reach.shape[1] + (stage > 0) * later + point, left


class PlanProblem:
    """A problem as environments keep it.

    Args:
        space: its points and units.

    Attributes:
        pipeline: the problem.
        pivots: boundaries of the points, see ``PointSpace``.
        devices: boundaries of the units, likewise.
        optimum: the largest return, if it is a problem of a shipped set, else NaN.
    """

    def __init__(self, space: PointSpace) -> None:
        self.pipeline, self.pivots, self.devices = space.pipeline, space.pivots, space.devices
        optimum = optimum_of(space.pipeline.instance)
        self.optimum = np.nan if optimum is None else optimum
        vars(self)["tables"] = PlanTables(rows_of([space]))

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return self.pipeline.instance

    @property
    def stages(self) -> int:
        """S."""
        return self.pipeline.stages

    @property
    def space(self) -> PointSpace:
        """The points and units, made anew, as they take hundreds of kilobytes."""
        return PointSpace.build(self.pipeline)

    @cached_property
    def tables(self) -> PlanTables:
        """The problem in one slot, made anew if it was forgotten."""
        return PlanTables(rows_of([self.space]))

    def forget(self) -> None:
        """Free the tables, which can be made anew."""
        vars(self).pop("tables", None)

    def figures(
        self, cuts: np.ndarray, units: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return seconds, excess bytes and 1/L of plans that fit; see ``PointBatch.figures``."""
        inner = self.stages - 1
        plans = self.pivots[cuts[:, :inner]], self.devices[units[:, :inner]]
        seconds = self.pipeline.length(*plans)
        value = formulas.value(seconds, self.pipeline.bubble_free)
        return seconds, self.pipeline.excess_bytes(*plans), value


def rows_of(spaces: Sequence[PointSpace]) -> dict[str, np.ndarray]:
    """Return problems as ``PlanTables`` has them, (k, ...) each, with as few rows of ``reach``."""
    rows = stacked(spaces)
    seen = [observe(space) for space in spaces]
    rows.update({f"{SEEN}{key}": np.stack([one[key] for one in seen]) for key in seen[0]})
    counts = [1 + (space.stages - 2) * len(space.pivots) for space in spaces]
    rows["reach"] = np.full((len(spaces), max(counts), POINTS), -1, dtype=np.int8)
    for reach, space, count in zip(rows["reach"], spaces, counts, strict=True):
        stages, m = space.stages, len(space.pivots) - 1
        reach[0, :m] = space.latest[stages, 0, :m]
        reach[1:count, :m] = space.latest[2:stages, :, :m].reshape(-1, m)
    return rows


def reserved(
    rows: Mapping[str, np.ndarray], count: int, allocate: Callable[..., np.ndarray] = np.zeros
) -> dict[str, np.ndarray]:
    """Return arrays of ``count`` slots for problems like those of ``rows``.

    Args:
        rows: see ``rows_of``.
        count: number of slots.
        allocate: takes name, shape and type, see ``empty_array``.
    """
    arrays = {}
    for name, values in rows.items():
        shape = (ROWS, POINTS) if name == "reach" else values.shape[1:]
        arrays[name] = allocate((count, *shape), values.dtype)
    return arrays
