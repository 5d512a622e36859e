"""A policy for ``MicroBatchOrder-v0`` that rates every micro-batch with the same weights.

A micro-batch is described by its work beside that of the others, of those that are left and of
those placed last, and by the idle time that placing it next would leave on the stages. What all
have in common (the frontier, the micro-batches placed last, the loads of the stages) is added to
each, and so is the mean over those that are left. So the policy takes problems of any size.
"""

from __future__ import annotations

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import TensorDict
from torch import nn

from parenvs.agents.learning.rating import RatingPolicy
from parenvs.tasks.order.tables import MICRO_BATCHES, NUMBERS, SECONDS, STAGES

OWN = 10
"""Numbers that describe a micro-batch."""
COMMON = 3 * STAGES + len(NUMBERS) + 5
"""Numbers that all micro-batches have in common."""
DESCRIBED = ("own", "common", "left")
"""Names of what ``describe`` returns."""
WIDTH = 48
"""Width of the layers."""


def describe(observation: TensorDict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what describes the micro-batches of b observations, c of them at most.

    Returns:
        (b, c, OWN) and (b, COMMON) numbers, and (b, c) 1 for micro-batches that are left, else 0.
    """
    size = int(torch.round(observation["numbers"][:, 1] * MICRO_BATCHES).max().clamp(min=1))
    forward, backward = (observation[key][:, :size] for key in SECONDS)
    position = observation["position"][:, :size]
    passes = forward + backward
    stage = (passes[:, 0] > 0).to(passes.dtype)  # (b, 16)
    stages = stage.sum(dim=1, keepdim=True).clamp(min=1)
    work = passes.sum(dim=2) / stages
    present = (work > 0).to(work.dtype)
    count = present.sum(dim=1, keepdim=True).clamp(min=1)
    mean = (work.sum(dim=1, keepdim=True) / count).clamp(min=1e-6)
    share = (work / mean - 1) * present
    left = present * (position < 0)
    some = left.sum(dim=1, keepdim=True)
    middle = (share * left).sum(dim=1, keepdim=True) / some.clamp(min=1)
    least = torch.where(left > 0, share, 9.0).amin(dim=1, keepdim=True) * (some > 0)
    most = torch.where(left > 0, share, -9.0).amax(dim=1, keepdim=True) * (some > 0)
    placed = (count - some).long()
    # Column 16 + k holds the micro-batch at position k.
    column = torch.where(position >= 0, torch.round(position * MICRO_BATCHES) + STAGES, 0.0).long()
    sequence = share.new_zeros((len(share), size + STAGES + 1))
    sequence.scatter_(1, column, share * (position >= 0))
    sequence[:, 0] = 0.0
    last = sequence.gather(1, placed + torch.arange(STAGES, device=placed.device))
    frontier = observation["frontier"] * (2 * STAGES) / mean * stage
    scaled = forward / mean[:, :, None]
    through = scaled.cumsum(dim=2)
    reached = through + (frontier[:, None] - through + scaled).cummax(dim=2).values
    idle = (reached - scaled - frontier[:, None]) * stage[:, None]
    load = passes.sum(dim=1) / (count * mean)
    longest = load.argmax(dim=1)[:, None, None].expand(-1, size, 1)
    progress = placed / count
    newest, before = last[:, -1:], last[:, -2:-1]
    own = [
        share,
        share - middle,
        share - least,
        most - share,
        share - newest,
        share + before - 2 * newest,
        idle.sum(dim=2) / stages,
        idle[:, :, -1],
        idle.gather(2, longest)[:, :, 0],
        progress.expand(-1, size),
    ]
    common = [
        last,
        frontier / 4,
        load - stage,
        observation["numbers"],
        middle,
        least,
        most,
        progress,
        1 / (1 + some),
    ]
    return torch.stack(own, dim=2), torch.cat(common, dim=1), left


class OrderExtractor(BaseFeaturesExtractor):
    """Features of (b, 64 + 2 width): a rating of each micro-batch, and what the value is made of.

    Observations may be described already, as ``DESCRIBED`` names the parts, so that learning does
    not describe each of them again in every epoch.

    Args:
        observation_space: that of ``MicroBatchOrder-v0``, or of ``DESCRIBED``.
        width: of the layers.
    """

    def __init__(self, observation_space: spaces.Dict, width: int = WIDTH) -> None:
        super().__init__(observation_space, MICRO_BATCHES + 2 * width)
        self.width = width
        self.own, self.common = nn.Linear(OWN, width), nn.Linear(COMMON, width)
        self.inner, self.others = nn.Linear(width, width), nn.Linear(width, width)
        self.rate = nn.Linear(width, 1)
        nn.init.normal_(self.rate.weight, std=0.01)
        nn.init.zeros_(self.rate.bias)

    def forward(self, observation: TensorDict) -> torch.Tensor:
        """Return the features."""
        if "own" in observation:
            own, common, left = (observation[key] for key in DESCRIBED)
        else:
            own, common, left = describe(observation)
        shared = self.common(common)
        hidden = (self.own(own) + shared[:, None]).relu()
        mean = _mean(hidden, left)
        hidden = (hidden + self.inner(hidden) + self.others(mean)[:, None]).relu()
        ratings = self.rate(hidden)[:, :, 0]
        whole = ratings.new_zeros((len(ratings), MICRO_BATCHES))
        whole[:, : ratings.shape[1]] = ratings
        return torch.cat([whole, _mean(hidden, left), shared.relu()], dim=1)


def _mean(hidden: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """(b, width) mean of (b, c, width) over micro-batches that are left."""
    return (hidden * left[:, :, None]).sum(dim=1) / left.sum(dim=1, keepdim=True).clamp(min=1)


class OrderPolicy(RatingPolicy):
    """``MaskablePPO(OrderPolicy, env)`` for ``MicroBatchOrder-v0``; see ``RatingPolicy``."""

    extractor = OrderExtractor
