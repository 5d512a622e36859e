"""Descriptions of the leaderboard's entries by agents that train on the problem itself."""

from parenvs.agents.names import TRAINED
from parenvs.core.leaderboard import Description

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
