"""Policies that rate every action by the same weights: heads of features that hold the ratings."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import Schedule
from torch import nn


class RatingPolicy(MaskableMultiInputActorCriticPolicy):
    """A policy whose extractor gives (b, a + 2 width): ratings of a actions, and of the whole.

    A subclass names the extractor, which has ``width``.

    Args:
        *args: arguments of sb3-contrib's ``MaskableMultiInputActorCriticPolicy``.
        **options: further arguments of it.
    """

    extractor: ClassVar[type[BaseFeaturesExtractor]]

    def __init__(self, *args: Any, **options: Any) -> None:
        own = {"features_extractor_class": self.extractor, "net_arch": []}
        super().__init__(*args, **{"ortho_init": False, **options, **own})

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)  # the heads that it makes are replaced
        width: Any = self.features_extractor.width
        actions = self.features_dim - 2 * width
        self.action_net: nn.Module = _Ratings(actions)
        self.value_net: nn.Module = _Value(actions, width)  # type: ignore[assignment]
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )


class _Ratings(nn.Module):
    """Takes the ratings out of the features."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.actions = actions

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(b, a)."""
        return features[:, : self.actions]


class _Value(nn.Module):
    """Rates the whole by one hidden layer."""

    def __init__(self, actions: int, width: int) -> None:
        super().__init__()
        self.actions = actions
        self.layers = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(b, 1)."""
        return self.layers(features[:, self.actions :])
