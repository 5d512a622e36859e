"""Tables of one pipeline problem, for many episodes of it: ``PlanBatch`` without arithmetic."""

from __future__ import annotations

import numpy as np

from parenvs.plan_batch import PlanBatch, length
from parenvs.plan_space import UNITS, PlanSpace, least_devices
from parenvs.points import POINTS

ENDS = UNITS + 1
_first, _end, _unit = np.ogrid[:ENDS, :ENDS, :UNITS]
SPANS = ((_first <= _unit) & (_unit < _end)).reshape(-1, UNITS)
"""(65 * 65, 64) bool: row ``65 * first + end`` are the units from ``first`` to before ``end``."""


class PlanTables:
    """What ``PlanBatch`` says of k episodes of one problem, looked up.

    Methods are those of ``PlanBatch``; as there is one problem, ``rows`` does not matter.

    Args:
        space: the problem.

    Raises:
        ParenvsError: as ``PlanBatch.stack``.
    """

    def __init__(self, space: PlanSpace) -> None:
        self.stages, self.boundaries = space.stages, len(space.pivots)
        self.batch = PlanBatch.stack([space])
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
        """(k, 128) bool, see ``PlanBatch.legal_points``."""
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
        """(k, 64) bool, see ``PlanBatch.legal_units``; ``end`` must be legal."""
        place = point + (self.stages - stage) * self.boundaries
        spans = self._spans.take(place * self.boundaries + end)
        return SPANS.take(spans + unit * ENDS, axis=0, mode="clip")

    def values(
        self, cuts: np.ndarray, units: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """(k,) float64, see ``PlanBatch.values``."""
        shape = (self.stages + 1, cuts.shape[1])
        p, d = np.zeros((2, *shape), dtype=np.int64)
        p[1:-1], d[1:-1] = cuts[: self.stages - 1], units[: self.stages - 1]
        p[-1], d[-1] = self.batch.points[0], self.batch.units[0]
        return self.batch.bubble_free[0] / length(self.batch, p, d, 0)
