"""PPO and Rainbow on any chain, with convolutions along it; needs the extra ``agents``.

``ChainPolicy`` is for MaskablePPO, ``ChainQPolicy`` for ``Rainbow``.
"""

from parenvs.agents.learning.chain.policy import ChainPolicy, ChainQPolicy

__all__ = ["ChainPolicy", "ChainQPolicy"]
