"""Names and default budget of the agents that train.

They are apart from ``parenvs.agents.train``, so that whoever only names an agent needs no torch.
"""

TRAINED = ("ppo", "rainbow", "rainbow-paper")
"""Agents that train; ``parenvs.agents.train.learners`` makes them, with the extra ``agents``."""
STEPS = 60_000
"""Default environment steps of planners that learn or draw."""
