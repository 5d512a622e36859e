"""A features extractor for ``PipelinePlan-v0`` that sees arrays along a chain, and its heads.

Layers share their weights over all points, and over all units; what is computed of a point is rated
as that point's logit or Q-value, so that a plan moves along with the chain.
"""

from __future__ import annotations

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import TensorDict
from torch import nn

from parenvs.agents.chain_planes import POINT_PLANES, UNIT_PLANES, WHOLE, Planes
from parenvs.plan_space import UNITS
from parenvs.points import POINTS

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
