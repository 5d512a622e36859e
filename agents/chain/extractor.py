"""The observation of ``PipelinePlan-v0`` as planes over the chain and over the units.

Seconds, bytes and units are set in relation to those of a perfectly balanced plan, so that a large
model on a fast cluster looks like a small one on a slow cluster. Nothing is looked ahead: that is
what ``plan_features`` does, for the network that imitates optima.


JOINED: A features extractor for ``PipelinePlan-v0`` that sees arrays along a chain, and its heads.

Layers share their weights over all points, and over all units; what is computed of a point is rated
as that point's logit or Q-value, so that a plan moves along with the chain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import TensorDict
from torch import nn

from parenvs.agents.pretrained.situation import CONTEXT, Situation
from parenvs.pipeline.points import POINTS, UNITS

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


WIDTH = 32
"""Channels of a point, and of a unit."""
DILATIONS = (1, 4, 16)
"""Of the convolutions over three places each: 22 places on either side are seen directly."""
PLACES = POINTS + UNITS


class Trunk(nn.Module):
    """Residual convolutions along one axis, with the whole and the pooled places added in between.

    Args:
        planes: channels that come in; the first is 1 for places that exist, 0 beyond the end.
        width: channels that go out.
    """

    def __init__(self, planes: int, width: int) -> None:
        super().__init__()
        self.enter = _convolution(planes, width, 1)
        self.whole = nn.Linear(WHOLE, width)
        self.blocks = nn.ModuleList(_convolution(width, width, far) for far in DILATIONS)
        self.common = nn.Linear(2 * width, width)
        self.last = nn.Linear(width, width)

    def forward(self, planes: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """(b, n, width) of (b, planes, n) and (b, WHOLE); 0 beyond the end."""
        # As a picture of one row with the channels last, it takes a third of Conv1d's time.
        x = planes.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        present = x[:, :1]
        h = (self.enter(x) + self.whole(whole)[:, :, None, None]).relu() * present
        for block in self.blocks:
            h = (h + block(h)).relu() * present
        places, present = h.squeeze(2).transpose(1, 2), planes[:, 0, :, None]
        common = self.common(pooled(places, present))
        return (self.last(places) + common[:, None]).relu() * present


def _convolution(inputs: int, outputs: int, far: int) -> nn.Conv2d:
    """Over three places of a row, ``far`` from each other."""
    return nn.Conv2d(inputs, outputs, (1, 3), padding=(0, far), dilation=(1, far))


def pooled(h: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """(b, 2 width) mean and maximum of (b, n, width) >= 0 where (b, n, 1) ``present`` is 1."""
    return torch.cat([h.sum(dim=1) / present.sum(dim=1), h.amax(dim=1)], dim=1)


class ChainExtractor(BaseFeaturesExtractor):
    """(b, 192 width + 2 width + WHOLE): channels of each action's place, then what is pooled.

    At the points' turn only those of points are computed, at the units' only those of units; the
    others, whose actions are illegal, are 0.

    Args:
        observation_space: that of ``PipelinePlan-v0``.
        width: channels of a place.
    """

    def __init__(self, observation_space: spaces.Dict, width: int = WIDTH) -> None:
        super().__init__(observation_space, (PLACES + 2) * width + WHOLE)
        self.width = width
        self.points = Trunk(POINT_PLANES, width)
        self.units = Trunk(UNIT_PLANES, width)

    def forward(self, observation: TensorDict) -> torch.Tensor:
        """The features; ``step`` one-hot, (b, 15) or (b, 1, 15), as SB3 gives it."""
        step = observation["step"].flatten(1).argmax(dim=1)
        numbered = {**observation, "step": step}
        result = observation["chain"].new_zeros((len(step), self.features_dim))
        for turn in (0, 1):
            rows = (step % 2 == turn).nonzero()[:, 0]
            if len(rows):
                seen = Planes({key: value[rows] for key, value in numbered.items()})
                result[rows] = self._of(seen, turn)
        return result

    def _of(self, seen: Planes, turn: int) -> torch.Tensor:
        """(b, features) of observations at the points' turn, 0, or the units', 1."""
        planes, trunk = (seen.units(), self.units) if turn else (seen.points(), self.points)
        h = trunk(planes, seen.whole)
        places = h.flatten(1)
        none = h.new_zeros((len(h), (POINTS if turn else UNITS) * self.width))
        order = [none, places] if turn else [places, none]
        return torch.cat([*order, pooled(h, planes[:, 0, :, None]), seen.whole], dim=1)


class PlaceHead(nn.Module):
    """(b, 192 outputs) of each action's own channels.

    Args:
        width: channels of a place.
        outputs: numbers of an action.
        linear: kind of layer.
    """

    def __init__(self, width: int, outputs: int = 1, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.width = width
        self.points, self.units = linear(width, outputs), linear(width, outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Of the extractor's features."""
        places = features[:, : PLACES * self.width].view(-1, PLACES, self.width)
        rated = [self.points(places[:, :POINTS]), self.units(places[:, POINTS:])]
        return torch.cat(rated, dim=1).flatten(1)


class WholeHead(nn.Module):
    """(b, outputs) of what is pooled, by one hidden layer.

    Args:
        width: channels of a place.
        outputs: numbers.
        linear: kind of layer.
    """

    def __init__(self, width: int, outputs: int = 1, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.pooled = 2 * width + WHOLE
        self.layers = nn.Sequential(linear(self.pooled, 64), nn.ReLU(), linear(64, outputs))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Of the extractor's features."""
        return self.layers(features[:, -self.pooled :])
