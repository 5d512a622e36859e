"""A features extractor for ``PipelinePlan-v0`` that sees arrays along a chain, and heads on it.

Observations become planes over the points and over the units, ``Trunk`` convolves them, and heads
rate what comes out. Layers share their weights over all points, and over all units; the channels of
a point are rated as that point's logit or Q-value, so that a plan moves along with the chain.

Seconds, bytes and units are given relative to those of a perfectly balanced plan, so that a large
model on a fast cluster looks like a small one on a slow cluster. The planes do not look ahead;
``parenvs.agents.learning.pretrained.features`` does, for the network that imitates optima.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import TensorDict
from torch import nn

from parenvs.agents.learning.pretrained.situation import CONTEXT, Situation
from parenvs.tasks.pipeline.points import POINTS, UNITS

PLACES = POINTS + UNITS
"""Number of actions; each stands for a place, a point or a unit."""
POINT_PLANES, UNIT_PLANES, WHOLE = 15, 14, CONTEXT + 4
"""How many planes over points, planes over units, and numbers of the whole there are."""
WIDTH = 32
"""Channels of each place."""
DILATIONS = (1, 4, 16)
"""Dilations of the convolutions over three places each: a place sees 22 others on either side."""


class Planes:
    """Planes of b observations: arrays over the points or over the units.

    Args:
        observation: the environment's observation as tensors, with a leading axis of b; ``step``
            (b,) int64.

    Attributes:
        whole: (b, WHOLE), numbers that all points, or all units, have in common.
    """

    def __init__(self, observation: Mapping[str, torch.Tensor]) -> None:
        # ``Situation`` asks for the table of bottlenecks, which only networks that look ahead read.
        unread = observation["chain"].new_zeros((1, UNITS + 1))
        self.situation = s = Situation({**observation, "outlook": unread})
        self._plan, self._present = observation["plan"], observation["chain"][:, 3]
        self._here = s.index(s.point)
        # At the units' turn the stage's end point is chosen and its units are not. At the points'
        # turn no stage is pending, and the numbers of the pending one are 0.
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
        """(b, POINT_PLANES, 128); entry j is of a cut before point j, plane 0 is 1 if j exists."""
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
            (share * s.left).clamp(max=3) / 3,  # is 1/3 where an even stage would end
            log(s.work.diff(dim=1).clamp(min=0)),
            log(crossing) / 2,
            log(crossing * s.slow) / 2,
            log((weight - s.at(s.weight, self._here)).clamp(min=0)) / 2,
            log(s.weight.diff(dim=1).clamp(min=0)) / 2,
            (s.bytes[:, :POINTS] - s.at(s.bytes, self._here)).clamp(0, 8) / 4,
            s.held[:, :POINTS].clamp(max=8) / 4,
            # Position, within its server, of the next stage's unit if units were shared like work.
            torch.sin(angle) * behind,
            torch.cos(angle) * behind,
        ]
        return self._stacked(planes, self._present)

    def units(self) -> torch.Tensor:
        """(b, UNIT_PLANES, 64); entry u is of a stage from unit u on, plane 0 is 1 if u exists."""
        s, log = self.situation, torch.log1p
        unit = torch.arange(UNITS, dtype=s.work.dtype, device=s.work.device) + 0 * s.units
        present = (unit < s.units).to(unit.dtype)
        group, free = (unit - s.unit).clamp(min=1), (s.units - unit).clamp(min=1)
        share = ((unit - s.unit) / self._free).clamp(0, 1)
        load, rest_load = self._load / group, (self._rest - self._load) / free
        first, end = s.index(s.unit + 0 * unit), s.index(unit)
        within, across = s.link(first, end), s.link(s.index(unit - 1), end + 1)
        planes = [
            present,
            (unit > s.unit).to(unit.dtype),
            self._chosen(1, UNITS),
            unit / UNITS,
            share,
            share - self._share,
            log(load),
            log(rest_load),
            (load - rest_load) / (load + rest_load + 1e-6),
            (across >= 1).to(unit.dtype),  # the unit before is in the same server
            torch.log2(within) / 8,
            log(s.reduce(self._weight, group, first, end)) / 2,
            group / UNITS,
            free / (s.left - 1).clamp(min=1) / UNITS,
        ]
        return self._stacked(planes, present)

    def _chosen(self, row: int, size: int) -> torch.Tensor:
        """(b, size), 1 where a stage of the plan so far starts.

        Args:
            row: row of the observed plan: 0 for points, 1 for units.
            size: number of places.
        """
        start = torch.round(self._plan[:, row] * size).long()
        marks = torch.zeros((len(start), size + 1), dtype=self._plan.dtype, device=start.device)
        marks.scatter_(1, torch.where(start < 0, size, start), 1.0)  # column ``size``: not chosen
        return marks[:, :size]

    @staticmethod
    def _stacked(planes: list[torch.Tensor], present: torch.Tensor) -> torch.Tensor:
        """Stack the planes, (b, n) each, as (b, planes, n), with 0 where ``present`` is 0."""
        return torch.stack(planes, dim=1) * present[:, None]


class Trunk(nn.Module):
    """Residual convolutions along one axis, to which the whole and the pooled places are added.

    Args:
        planes: number of input planes; plane 0 is 1 for places that exist, 0 beyond the end.
        width: number of output channels.
    """

    def __init__(self, planes: int, width: int) -> None:
        super().__init__()
        self.enter = _convolution(planes, width, 1)
        self.whole = nn.Linear(WHOLE, width)
        self.blocks = nn.ModuleList(_convolution(width, width, dilation) for dilation in DILATIONS)
        self.common = nn.Linear(2 * width, width)
        self.last = nn.Linear(width, width)

    def forward(self, planes: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Convolve (b, planes, n) ``planes`` and (b, WHOLE) ``whole``.

        Returns:
            (b, n, width) channels, not negative, 0 beyond the end.
        """
        # Conv2d on one row with the channels last takes a third of Conv1d's time.
        x = planes.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        present = x[:, :1]
        h = (self.enter(x) + self.whole(whole)[:, :, None, None]).relu() * present
        for block in self.blocks:
            h = (h + block(h)).relu() * present
        places, present = h.squeeze(2).transpose(1, 2), planes[:, 0, :, None]
        common = self.common(pooled(places, present))
        return (self.last(places) + common[:, None]).relu() * present


def _convolution(inputs: int, outputs: int, dilation: int) -> nn.Conv2d:
    """A convolution over three places of a row that are ``dilation`` apart."""
    return nn.Conv2d(inputs, outputs, (1, 3), padding=(0, dilation), dilation=(1, dilation))


def pooled(h: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Mean and maximum over the places that exist.

    Args:
        h: (b, n, width), not negative, 0 for places that do not exist.
        present: (b, n, 1), 1 for places that exist, else 0.

    Returns:
        (b, 2 width).
    """
    return torch.cat([h.sum(dim=1) / present.sum(dim=1), h.amax(dim=1)], dim=1)


class ChainExtractor(BaseFeaturesExtractor):
    """Features of (b, 192 width + 2 width + WHOLE): channels of all places, pooled ones, the whole.

    At the points' turn only the channels of points are computed, at the units' turn only those of
    units. The others belong to illegal actions and are 0.

    Args:
        observation_space: observation space of ``PipelinePlan-v0``.
        width: channels of each place.
    """

    def __init__(self, observation_space: spaces.Dict, width: int = WIDTH) -> None:
        super().__init__(observation_space, (PLACES + 2) * width + WHOLE)
        self.width = width
        self.points = Trunk(POINT_PLANES, width)
        self.units = Trunk(UNIT_PLANES, width)

    def forward(self, observation: TensorDict) -> torch.Tensor:
        """The features; SB3 gives ``step`` one-hot, as (b, 15) or (b, 1, 15)."""
        step = observation["step"].flatten(1).argmax(dim=1)
        numbered = {**observation, "step": step}
        result = observation["chain"].new_zeros((len(step), self.features_dim))
        for turn in (0, 1):
            rows = (step % 2 == turn).nonzero()[:, 0]
            if len(rows):
                seen = Planes({key: value[rows] for key, value in numbered.items()})
                result[rows] = self._features(seen, turn)
        return result

    def _features(self, seen: Planes, turn: int) -> torch.Tensor:
        """(b, features) of observations all at the points' turn (0), or all at the units' (1)."""
        planes, trunk = (seen.units(), self.units) if turn else (seen.points(), self.points)
        h = trunk(planes, seen.whole)
        places = h.flatten(1)
        other_places = h.new_zeros((len(h), (POINTS if turn else UNITS) * self.width))
        order = [other_places, places] if turn else [places, other_places]
        return torch.cat([*order, pooled(h, planes[:, 0, :, None]), seen.whole], dim=1)


class PlaceHead(nn.Module):
    """Rates every action by the channels of its place.

    Args:
        width: channels of each place.
        outputs: numbers per action.
        linear: class of the layers.
    """

    def __init__(self, width: int, outputs: int = 1, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.width = width
        self.points, self.units = linear(width, outputs), linear(width, outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(b, 192 outputs) of the extractor's ``features``."""
        places = features[:, : PLACES * self.width].view(-1, PLACES, self.width)
        rated = [self.points(places[:, :POINTS]), self.units(places[:, POINTS:])]
        return torch.cat(rated, dim=1).flatten(1)


class WholeHead(nn.Module):
    """Rates the pooled channels and the whole, by one hidden layer.

    Args:
        width: channels of each place.
        outputs: numbers per observation.
        linear: class of the layers.
    """

    def __init__(self, width: int, outputs: int = 1, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.pooled = 2 * width + WHOLE
        self.layers = nn.Sequential(linear(self.pooled, 64), nn.ReLU(), linear(64, outputs))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(b, outputs) of the extractor's ``features``."""
        return self.layers(features[:, -self.pooled :])
