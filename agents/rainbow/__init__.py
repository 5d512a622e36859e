"""Rainbow DQN with action masks; needs the extra ``agents``."""

from parenvs.agents.rainbow.algorithm import Rainbow

__all__ = ["Rainbow"]
