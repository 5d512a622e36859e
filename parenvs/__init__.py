"""Environments, exact answers and baselines for planning the parallel training of neural networks.

Importing the package registers its environments with Gymnasium:

>>> import gymnasium as gym, parenvs
>>> env = gym.make("PipelineCut-v0", instance="t5-3b", cluster="C")
>>> observation, info = env.reset(seed=0)
>>> observation["features"].shape == (env.action_space.n, 3)
True
"""

from pathlib import Path as _Path

from gymnasium.envs.registration import register as _register

__version__ = "0.1.0"

# In a checkout, agents/ and datasets/ lie beside this package; installed, they lie inside it.
if __name__ == "parenvs" and (_Path(__file__).parent.parent / "setup.cfg").is_file():
    __path__.append(str(_Path(__file__).parent.parent))

from parenvs.cluster import Cluster, Device
from parenvs.errors import ParenvsError
from parenvs.graph import Graph
from parenvs.instances import load_graph, load_profile
from parenvs.judge import Report, judge
from parenvs.pipeline import Pipeline
from parenvs.plan import PipelinePlan, load_plan
from parenvs.profile import StageProfile

__all__ = [
    "Cluster",
    "Device",
    "Graph",
    "ParenvsError",
    "Pipeline",
    "PipelinePlan",
    "Report",
    "StageProfile",
    "judge",
    "load_graph",
    "load_plan",
    "load_profile",
]

_register(
    id="PipelineCut-v0",
    entry_point="parenvs.envs.pipeline_cut:PipelineCutEnv",
)
