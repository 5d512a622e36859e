"""``PointBatch`` in torch: the dynamics of ``PipelinePlan-v0`` as tensors on one device."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from parenvs.pipeline.batch import BOUNDARIES, PointBatch
from parenvs.pipeline.points import POINTS, STAGES, UNITS


@dataclass(frozen=True)
class PlanTensors:
    """Problems stacked as ``PointBatch`` stacks them, on a device.

    Numbers are float64 there as well: what fits the memory is decided by the same operations on
    the same bits, in the same order, so that masks are equal on every device. Lengths are equal up
    to the order in which a device sums the seconds of at most 15 stages and transfers.

    Methods take the state of k episodes, and ``rows``, (k,) int64, the problem of each. They are
    operations of tensors alone: nothing waits for the device, no number comes back from it.

    Attributes are those of ``PointBatch``.
    """

    stages: torch.Tensor
    micro_batches: torch.Tensor
    points: torch.Tensor
    units: torch.Tensor
    intra: torch.Tensor
    inter: torch.Tensor
    copies: torch.Tensor
    limit: torch.Tensor
    bubble_free: torch.Tensor
    forward: torch.Tensor
    backward: torch.Tensor
    parameters: torch.Tensor
    variables: torch.Tensor
    crossing: torch.Tensor
    inside: torch.Tensor
    devices: torch.Tensor
    server: torch.Tensor
    server_before: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def of(cls, batch: PointBatch, device: torch.device) -> PlanTensors:
        """The problems of a batch, copied to a device."""
        return cls(**{f.name: on(getattr(batch, f.name), device) for f in fields(cls)})

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.stages)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.stages.device

    def put(self, first: int, batch: PointBatch) -> None:
        """Make those of ``batch`` the problems from place ``first`` on."""
        for f in fields(self):
            kept, new = getattr(self, f.name), getattr(batch, f.name)
            kept[first : first + len(batch)] = on(new, self.device)

    def legal_points(
        self, stage: torch.Tensor, point: torch.Tensor, unit: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """(k, 128) bool: before which points the stage that starts there may end.

        Args:
            stage: (k,) int64, its number, from 0.
            point: (k,) int64, where it starts.
            unit: (k,) int64, where it starts.
            rows: see the class.
        """
        left = self.stages[rows] - stage
        reach = self.starts[rows, (left - 1).clamp(min=0)].long()
        devices = self.devices[rows]
        group = devices.gather(1, reach.clamp(min=0)) - devices.gather(1, unit[:, None])
        place = torch.arange(POINTS, device=self.device)
        # Before boundary j lie the points up to j - 1.
        inside = self.inside[rows]
        held = torch.where(place >= point[:, None], inside[:, :-1], 0.0)
        largest = torch.zeros_like(inside)
        largest[:, 1:] = held.cummax(dim=1).values
        largest += self._entering(rows, point, left)[:, None]
        parameters, variables = self.parameters[rows], self.variables[rows]
        weights = parameters - parameters.gather(1, point[:, None])
        weights = weights * self.copies[rows, None]
        fits = weights + largest / group.clamp(min=1.0) <= self.limit[rows, None]
        fits &= reach > unit[:, None]
        fits &= variables > variables.gather(1, point[:, None])
        return fits[:, :POINTS]

    def legal_units(
        self,
        stage: torch.Tensor,
        point: torch.Tensor,
        unit: torch.Tensor,
        end: torch.Tensor,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        """(k, 64) bool: up to which units the stage of the points [point, end) may run.

        Args:
            stage: as in ``legal_points``.
            point: as in ``legal_points``.
            unit: as in ``legal_points``.
            end: (k,) int64, a point that is legal there.
            rows: see the class.
        """
        left = self.stages[rows] - stage
        devices = self.devices[rows]
        group = (devices - devices.gather(1, unit[:, None])).clamp(min=1.0)
        place = torch.arange(BOUNDARIES, device=self.device)
        held = (place >= point[:, None]) & (place < end[:, None])
        shared = torch.where(held, self.inside[rows], 0.0).amax(dim=1)
        shared = shared + self._entering(rows, point, left)
        weights = self.parameters[rows, end] - self.parameters[rows, point]
        weights = self.copies[rows] * weights
        fits = weights[:, None] + shared[:, None] / group <= self.limit[rows, None]
        last = self.starts[rows, (left - 1).clamp(min=0), end][:, None]
        number = place[: UNITS + 1]
        return (fits & (number > unit[:, None]) & (number <= last))[:, :UNITS]

    def lengths(self, cuts: torch.Tensor, units: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """(k,) float64 L in units of the bubble-free time.

        Args:
            cuts: (k, 7) int64, points; what lies behind the last cut of a problem does not count.
            units: (k, 7) int64.
            rows: see the class.
        """
        return self._seconds(cuts, units, rows) / self.bubble_free[rows]

    def values(self, cuts: torch.Tensor, units: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """(k,) float64, 1/L: the judge's values of plans that fit the memory; see ``lengths``."""
        return self.bubble_free[rows] / self._seconds(cuts, units, rows)

    def _entering(
        self, rows: torch.Tensor, point: torch.Tensor, left: torch.Tensor
    ) -> torch.Tensor:
        """(k,) bytes that enter stages that start at ``point``, of all in flight."""
        flight = torch.minimum((2 * left - 1).double(), self.micro_batches[rows])
        return flight * self.crossing[rows, point]

    def _seconds(self, cuts: torch.Tensor, units: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """(k,) L: ``parenvs.plan_batch.length`` with the stages along the last axis."""
        p = self._bounds(cuts, self.points[rows], rows)
        d = self._bounds(units, self.units[rows], rows)

        def at(values: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            return values[rows].gather(1, place)

        devices, weights = at(self.devices, d), at(self.parameters, p)
        group = (devices[:, 1:] - devices[:, :-1]).clamp(min=1.0)
        server, before = at(self.server, d), at(self.server_before, d)
        intra, inter = self.intra[rows, None], self.inter[rows, None]
        x, backward, reduce = devices.new_zeros(3, len(rows), 2 * STAGES - 1)
        seconds = at(self.backward, p)
        backward[:, ::2] = (seconds[:, 1:] - seconds[:, :-1]) / group
        seconds = at(self.forward, p)
        x[:, ::2] = (seconds[:, 1:] - seconds[:, :-1]) / group + backward[:, ::2]
        link = torch.where(server[:, :-2] == before[:, 2:], intra, inter)
        backward[:, 1::2] = at(self.crossing, p[:, 1:-1]) / link
        x[:, 1::2] = backward[:, 1::2] + backward[:, 1::2]
        link = torch.where(server[:, :-1] == before[:, 1:], intra, inter)
        stage = 2.0 * (weights[:, 1:] - weights[:, :-1]) * (group - 1.0)
        reduce[:, ::2] = stage / group / link
        core = x.cumsum(dim=1) + (self.micro_batches[rows, None] - 1.0) * x
        tail = reduce - (backward.cumsum(dim=1) - backward)
        return core.amax(dim=1) + tail.amax(dim=1).clamp(min=0.0)

    def _bounds(self, inner: torch.Tensor, last: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """(k, 9) boundaries: 0, the inner ones up to the last cut, then the last."""
        slot = torch.arange(STAGES - 1, device=self.device)
        inner = torch.where(slot < self.stages[rows, None] - 1, inner, last[:, None])
        return torch.cat([torch.zeros_like(last)[:, None], inner, last[:, None]], dim=1)


def on(values: np.ndarray | Any, device: torch.device) -> torch.Tensor:
    """A copy of an array on a device."""
    return torch.tensor(values, device=device)
