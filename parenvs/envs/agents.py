"""``Agents``: what a task offers to agents who take turns, by PettingZoo's interfaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parenvs.envs.env import GameEnv

if TYPE_CHECKING:
    from pettingzoo import AECEnv

    from parenvs.envs.pettingzoo import AllAtOnceEnv


@dataclass(frozen=True)
class Agents:
    """The agents of an environment, with the functions of a module of PettingZoo's environments.

    Attributes:
        name: of the environment of several agents.
        single: the environment of one agent that takes all turns.
    """

    name: str
    single: type[GameEnv]

    def env(self, instance: Any = None, **arguments: Any) -> AECEnv:
        """Return the turn-taking environment with PettingZoo's checks of its use.

        ``instance`` None leaves out that argument of the environment of one agent.
        """
        # PettingZoo is an extra, which the environment of one agent does without.
        from parenvs.envs.pettingzoo import TurnsEnv  # it says what to install

        from pettingzoo.utils.wrappers import OrderEnforcingWrapper  # isort: skip

        return OrderEnforcingWrapper(TurnsEnv(self.name, self._make(instance, arguments)))

    def parallel_env(self, instance: Any = None, **arguments: Any) -> AllAtOnceEnv:
        """Return the environment whose agents all act at once; arguments as of ``env``."""
        from parenvs.envs.pettingzoo import AllAtOnceEnv

        return AllAtOnceEnv(self.name, self._make(instance, arguments))

    def _make(self, instance: Any, arguments: dict[str, Any]) -> GameEnv:
        return self.single(**arguments if instance is None else {"instance": instance, **arguments})
