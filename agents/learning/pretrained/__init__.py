"""The agent ``pretrained``: a network that ships and plans any pipeline at once."""

from parenvs.agents.learning.pretrained.planner import gaps, pretrained

__all__ = ["gaps", "pretrained"]
