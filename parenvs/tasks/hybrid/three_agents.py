"""``hybrid_v0``: three agents improve one hybrid plan in turns, by PettingZoo's interfaces.

>>> from parenvs.envs import hybrid_v0
>>> env = hybrid_v0.env("hybrid/7")          # agents take turns (AEC)
>>> env = hybrid_v0.parallel_env("hybrid/7")  # all act at once; the one whose turn it is counts
"""

from collections.abc import Mapping
from typing import ClassVar

from parenvs.envs.env import GameEnv
from parenvs.envs.pettingzoo import Agents
from parenvs.tasks.hybrid.improve import HybridImprovement
from parenvs.tasks.hybrid.moves.neighbours import SLOTS


class HybridTeam(HybridImprovement):
    """Improves a plan as ``HybridImprovement`` does, by three agents who have an axis each.

    ``data``, ``pipeline`` and ``operator`` take turns, in this order. The one on turn takes one of
    the neighbours of its axis, or passes: its action 0. An episode ends when all three have passed
    one after the other, or after 72 turns.
    """

    agents: ClassVar[Mapping[str, int]] = {axis: 1 + slots for axis, slots in SLOTS.items()}


class HybridTeamEnv(GameEnv, game=HybridTeam):
    """An environment of one agent that takes the turns of all three."""


hybrid_v0 = Agents("hybrid_v0", HybridTeamEnv)
"""Agents ``data``, ``pipeline`` and ``operator``, which have 33, 49 and 17 actions."""
