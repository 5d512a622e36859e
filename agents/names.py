"""Names of planners and environments.

They have a module of their own, as some modules need them without importing the planners.
"""

TRAINED = ("ppo", "rainbow", "rainbow-paper")
"""Agents that train (``parenvs.agents.learning.train.learners`` makes them, with the extra ``agents``)."""
REFINED = "pretrained-refined"
"""The planner that searches around the answer of ``pretrained``."""
GENERAL = ("pretrained", REFINED)
"""Planners that were trained on other problems; commands report their gap to the optimum."""
ANY_STAGES = ("exact", "exact-full")
"""Planners of pipelines that can plan one stage; all others cut at least once."""
ENVIRONMENTS = {"variables": "OperatorPartition-v0", "inputs": "DataParallel-v0"}
"""Scope of partitions -> id of the environment in which agents train for it."""
