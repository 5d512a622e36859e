"""PPO and Rainbow that stay on one device with their environment; needs the extra ``agents``.

>>> from parenvs.agents.learning.fused import PPOSettings, train
>>> log = train(PPOSettings(envs=64, iterations=50), "runs/fused")  # doctest: +SKIP
"""

from parenvs.agents.learning.fused.ppo import PPOSettings
from parenvs.agents.learning.fused.rainbow import RainbowSettings
from parenvs.agents.learning.fused.run import train

__all__ = ["PPOSettings", "RainbowSettings", "train"]
