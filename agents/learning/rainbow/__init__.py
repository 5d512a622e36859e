"""Rainbow DQN with action masks: the algorithm; needs the extra ``agents``."""

from parenvs.agents.learning.rainbow.algorithm import Rainbow

__all__ = ["Rainbow"]
