"""The observation of ``PipelinePlan-v0`` as planes over the chain and over the units.

Seconds, bytes and units are set in relation to those of a perfectly balanced plan, so that a large
model on a fast cluster looks like a small one on a slow cluster. Nothing is looked ahead: that is
what ``plan_features`` does, for the network that imitates optima.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from parenvs.agents.plan_situation import CONTEXT, Situation
from parenvs.plan_space import UNITS
from parenvs.points import POINTS

POINT_PLANES, UNIT_PLANES, WHOLE = 15, 14, CONTEXT + 4
"""Planes over points, planes over units, and numbers of the whole."""


class Planes:
    """A batch of b observations as a network sees them.

    Args:
        observation: tensors as the environment gives them, with a leading axis of b; ``step``
            (b,) int64.

    Attributes:
        whole: (b, WHOLE) what all points, or units, have in common.
    """

    def __init__(self, observation: Mapping[str, torch.Tensor]) -> None:
        # The table of bottlenecks is for networks that look ahead; nothing here reads it.
        nothing = observation["chain"].new_zeros((1, UNITS + 1))
        self.situation = s = Situation({**observation, "outlook": nothing})
        self._plan, self._present = observation["plan"], observation["chain"][:, 3]
        self._here = s.index(s.point)
        # Of a stage whose end is chosen and whose units are not; nothing at the points' turn.
        odd = (observation["step"] % 2).to(s.work.dtype)[:, None]
        self._end = torch.maximum(s.index(s.pending * odd), self._here)
        self._load = s.at(s.work, self._end) - s.at(s.work, self._here)
        self._rest = s.units - s.at(s.work, self._here)
        self._free = torch.maximum(s.units - s.unit, s.left)
        self._share = self._load / self._rest.clamp(min=1e-6)
        self._weight = s.at(s.weight, self._end) - s.at(s.weight, self._here)
        pending = [
            odd,
            self._share,
            torch.log1p(s.at(s.crossing, self._end) * s.slow * odd) / 2,
            torch.log1p(self._weight) / 2,
        ]
        self.whole = torch.cat([s.context(), *pending], dim=1)

    def points(self) -> torch.Tensor:
        """(b, POINT_PLANES, 128), entry j of cutting before point j; the first says which exist."""
        s, log = self.situation, torch.log1p
        work, crossing, weight = (x[:, :POINTS] for x in (s.work, s.crossing, s.weight))
        place = torch.arange(POINTS, device=work.device)
        behind = (place > self._here).to(work.dtype)
        share = ((work - s.at(s.work, self._here)) / self._rest.clamp(min=1e-6)).clamp(0, 1)
        angle = 2 * math.pi * (s.unit + share * self._free) / s.server
        planes = [
            self._present,
            behind,
            self._chosen(0, POINTS),
            work / s.units,
            share,
            (share * s.left).clamp(max=3) / 3,  # 1/3 where an even stage ends
            log(s.work.diff(dim=1).clamp(min=0)),
            log(crossing) / 2,
            log(crossing * s.slow) / 2,
            log((weight - s.at(s.weight, self._here)).clamp(min=0)) / 2,
            log(s.weight.diff(dim=1).clamp(min=0)) / 2,
            (s.bytes[:, :POINTS] - s.at(s.bytes, self._here)).clamp(0, 8) / 4,
            s.held[:, :POINTS].clamp(max=8) / 4,
            # Where in its server the unit is that would follow, if units were shared like work.
            torch.sin(angle) * behind,
            torch.cos(angle) * behind,
        ]
        return self._stacked(planes, self._present)

    def units(self) -> torch.Tensor:
        """(b, UNIT_PLANES, 64), entry u of a stage from unit u on; the first says which exist."""
        s, log = self.situation, torch.log1p
        unit = torch.arange(UNITS, dtype=s.work.dtype, device=s.work.device) + 0 * s.units
        present = (unit < s.units).to(unit.dtype)
        group, free = (unit - s.unit).clamp(min=1), (s.units - unit).clamp(min=1)
        share = ((unit - s.unit) / self._free).clamp(0, 1)
        load, rest = self._load / group, (self._rest - self._load) / free
        here, end = s.index(s.unit + 0 * unit), s.index(unit)
        reached, beside = s.link(here, end), s.link(s.index(unit - 1), end + 1)
        planes = [
            present,
            (unit > s.unit).to(unit.dtype),
            self._chosen(1, UNITS),
            unit / UNITS,
            share,
            share - self._share,
            log(load),
            log(rest),
            (load - rest) / (load + rest + 1e-6),
            (beside >= 1).to(unit.dtype),  # the unit before is in the same server
            torch.log2(reached) / 8,
            log(s.reduce(self._weight, group, here, end)) / 2,
            group / UNITS,
            free / (s.left - 1).clamp(min=1) / UNITS,
        ]
        return self._stacked(planes, present)

    def _chosen(self, row: int, most: int) -> torch.Tensor:
        """(b, most) 1 where a stage starts by the plan so far."""
        at = torch.round(self._plan[:, row] * most).long()
        marks = torch.zeros((len(at), most + 1), dtype=self._plan.dtype, device=at.device)
        marks.scatter_(1, torch.where(at < 0, most, at), 1.0)
        return marks[:, :most]

    @staticmethod
    def _stacked(planes: list[torch.Tensor], present: torch.Tensor) -> torch.Tensor:
        """(b, planes, n), 0 beyond the ends."""
        return torch.stack(planes, dim=1) * present[:, None]
