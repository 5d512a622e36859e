"""Names of planners.

They have a module of their own, as some modules need them without importing the planners.
"""

from parenvs.core.leaderboard import Description

TRAINED = ("ppo", "rainbow", "rainbow-paper")
"""Agents that train on the problem itself (``parenvs train``, with the extra ``agents``)."""
LEARNED, LEARNED_SEARCH = GENERAL = ("learned", "learned+search")
"""Planners by networks that ship, which were trained on other problems: the best of several plans
that a network makes, and a search from it."""
_LEARNERS = {
    "ppo": "MaskablePPO",
    "rainbow": "Rainbow",
    "rainbow-paper": "Rainbow with the settings of arXiv 2007.04069",
}
"""Agent -> what trained the entries of the leaderboard; PPO's are older than our own PPO."""
TRAINED_AGENTS: dict[str, Description] = {
    agent: Description(
        f"{_LEARNERS.get(agent, agent)}, trained on each problem by itself; its best plan.",
        "",
        "{steps:,} environment steps a problem",
        seeded=True,
    )
    for agent in TRAINED
}
"""Agents that train on the problem itself -> their descriptions."""
