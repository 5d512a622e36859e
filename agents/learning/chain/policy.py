"""Policies on ``ChainExtractor``: ``ChainPolicy`` for MaskablePPO, ``ChainQPolicy`` for Rainbow."""

from __future__ import annotations

from typing import Any

from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from parenvs.agents.learning.chain.extractor import ChainExtractor, PlaceHead, WholeHead
from parenvs.agents.learning.rainbow.policy import NoisyLinear, RainbowNetwork, RainbowPolicy


class ChainPolicy(MaskableMultiInputActorCriticPolicy):
    """``MaskablePPO(ChainPolicy, env)``: places give the logits, the pooled places the value.

    Args:
        *args: arguments of sb3-contrib's ``MaskableMultiInputActorCriticPolicy``.
        **options: further arguments of it; ``features_extractor_kwargs`` has ``width``.
    """

    features_extractor: ChainExtractor

    def __init__(self, *args: Any, **options: Any) -> None:
        own = {"features_extractor_class": ChainExtractor, "net_arch": []}
        # Orthogonal layers have a gain of sqrt(2), by which residual sums would grow.
        super().__init__(*args, **{"ortho_init": False, **options, **own})

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)  # the heads that it makes are replaced
        width = self.features_extractor.width
        places = PlaceHead(width)
        for layer in (places.points, places.units):
            self.init_weights(layer, gain=0.01)  # at first all legal actions are equally likely
        self.action_net, self.value_net = places, WholeHead(width)
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )


class ChainNetwork(RainbowNetwork):
    """``RainbowNetwork`` on a ``ChainExtractor``; the arguments are the same.

    The stream of the advantages rates each place, that of the value rates the pooled places.
    """

    def _layers(self, inputs: int, outputs: int, hidden: list[int]) -> nn.Sequential:
        """A head for ``outputs``; no layer in front of the streams, where ``outputs`` is -1."""
        if outputs == -1:
            return nn.Sequential()
        linear = NoisyLinear if self.noisy else nn.Linear
        assert isinstance(self.features_extractor, ChainExtractor)
        width = self.features_extractor.width
        if outputs == self.atoms:
            return nn.Sequential(WholeHead(width, outputs, linear))
        return nn.Sequential(PlaceHead(width, self.atoms, linear))


class ChainQPolicy(RainbowPolicy):
    """``Rainbow(ChainQPolicy, env)``: ``RainbowPolicy`` on a ``ChainExtractor``, same arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        own = {"features_extractor_class": ChainExtractor, "net_arch": []}
        super().__init__(*args, **{**options, **own})

    def make_q_net(self) -> ChainNetwork:
        """Make a network with a features extractor of its own."""
        arguments = self._update_features_extractor(self.net_args, features_extractor=None)
        return ChainNetwork(**self.switches, **arguments).to(self.device)
