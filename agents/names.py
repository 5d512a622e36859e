"""Names of planners.

They have a module of their own, as some modules need them without importing the planners.
"""

from __future__ import annotations

ALGORITHMS = {
    "ppo": "parenvs.agents.learning.ppo:PPO",
    "group": "parenvs.agents.learning.ppo:Group",
    "mappo": "parenvs.agents.learning.ppo:MAPPO",
    "rainbow": "parenvs.agents.learning.rainbow:Rainbow",
    "rainbow-paper": "parenvs.agents.learning.rainbow:RainbowPaper",
    "imitate": "parenvs.agents.learning.ppo:Imitate",
    "maskable-ppo": "parenvs.agents.learning.sb3:MaskablePPO",
}
"""Agent of this package that ``parenvs train`` takes -> its class."""
TRAINED = ("ppo", "rainbow", "rainbow-paper")
"""Agents that train on the problem itself (``parenvs train``, with the extra ``agents``)."""
LEARNED = "learned"
"""Planner by networks that ship, which were trained on other problems: the best of several plans
that a network makes."""
POLICIES = (
    "keep-degrees", "fastest", "myopic", "hysteresis", "look-ahead", "parcae", "varuna", "bamboo",
)  # fmt: skip
"""Policies on nodes that come and go, of ``parenvs.agents.elastic.policies``."""
