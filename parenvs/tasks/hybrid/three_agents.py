"""``hybrid_v0``: three agents make one hybrid plan in turns, by PettingZoo's interfaces.

>>> from parenvs.envs import hybrid_v0
>>> env = hybrid_v0.env("hybrid/7")          # agents take turns (AEC)
>>> env = hybrid_v0.parallel_env("hybrid/7")  # all act at once; the one whose turn it is counts
"""

from parenvs.envs.pettingzoo import Agents
from parenvs.tasks.hybrid.game import HybridPlanEnv

hybrid_v0 = Agents("hybrid_v0", HybridPlanEnv)
"""Agents ``data``, ``pipeline`` and ``operator``, see ``parenvs.tasks.hybrid.turns.actions``.

``data`` has 56 actions: global and data; ``pipeline`` 201: layers, devices and server; ``operator``
4: tp.
"""
