"""PPO whose environment, policy and updates all stay on one device; needs the extra ``agents``.

>>> from parenvs.agents.fused import Settings, train
>>> log = train(Settings(envs=64, iterations=50), "runs/fused")  # doctest: +SKIP
"""

from parenvs.agents.fused.ppo import Settings
from parenvs.agents.fused.run import train

__all__ = ["Settings", "train"]
