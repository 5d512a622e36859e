"""Environments, exact answers and baselines for planning the parallel training of neural networks.

>>> import gymnasium as gym, parenvs
>>> env = gym.make("PipelineCut-v0", instance="t5-base", cluster="C")
"""

from pathlib import Path as _Path

__version__ = "0.1.0"

# In a checkout, agents/ and datasets/ lie beside this package; installed, they lie inside it.
if __name__ == "parenvs" and (_Path(__file__).parent.parent / "setup.cfg").is_file():
    __path__.append(str(_Path(__file__).parent.parent))
