"""Names of planners and environments, and the default budget, for all who must not import more."""

TRAINED = ("ppo", "rainbow", "rainbow-paper")
"""Agents that train (``parenvs.agents.train.learners`` makes them, with the extra ``agents``)."""
REFINED = "pretrained-refined"
GENERAL = ("pretrained", REFINED)
"""Planners that were trained on other problems, so that one wants to know what they missed."""
STEPS = 60_000
"""Default environment steps of planners that learn or draw."""
ENVIRONMENTS = {
    "pipeline-cut": "PipelineCut-v0",
    "operator-partition": "OperatorPartition-v0",
    "data-parallel": "DataParallel-v0",
}
"""Task -> id of the environment in which agents train for it."""
