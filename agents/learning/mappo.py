"""MAPPO: PPO of several agents, whose critic sees what all of them see."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from parenvs.agents.learning.net import RowsNet
from parenvs.agents.learning.ppo import PPO
from parenvs.agents.learning.seen import Lens, Seen
from parenvs.errors import ParenvsError


class CentralNet(RowsNet):
    """The network of agents that act by what they see, with a critic that sees what all see."""

    def __init__(self, lens: Lens, width: int, **shape: Any) -> None:
        super().__init__(lens, width=width, **shape)
        self.value = nn.Identity()
        layers = (nn.Linear(lens.contexts + lens.joint, width), nn.Linear(width, width))
        self.critic = nn.Sequential(
            layers[0], nn.Tanh(), layers[1], nn.Tanh(), self.last_value
        )  # fmt: skip

    def forward(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """See ``RowsNet.forward``."""
        return super().forward(seen)[0], self.critic(seen.context)


class MAPPO(PPO):
    """PPO with a central critic (arXiv 2103.01955); agents share a network that knows who acts."""

    name: ClassVar[str] = "mappo"

    def network(self) -> RowsNet:
        """See ``Algorithm.network``.

        Raises:
            ParenvsError: the environment has one agent.
        """
        if not self.lens.joint:
            raise ParenvsError(
                "mappo is for environments of several agents, such as hybrid_v0; --agent ppo is "
                "for this one"
            )
        return CentralNet(self.lens, **self.shape)
