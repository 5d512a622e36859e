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

# In a checkout, agents/, datasets/ and leaderboard/ lie beside this package; installed, inside it.
if __name__ == "parenvs" and (_Path(__file__).parent.parent / "setup.cfg").is_file():
    __path__.append(str(_Path(__file__).parent.parent))

from parenvs.cluster import Cluster, Device
from parenvs.errors import ParenvsError
from parenvs.graph import Graph
from parenvs.instances import load_graph, load_profile
from parenvs.judge import Report, judge
from parenvs.judge_partition import PartitionReport
from parenvs.partitioning import Partitioning, load_partitioning
from parenvs.pipeline import Pipeline
from parenvs.plan import BatchPlan, PartitionPlan, PipelinePlan, load_plan
from parenvs.profile import StageProfile

__all__ = [
    "BatchPlan",
    "Cluster",
    "Device",
    "Graph",
    "ParenvsError",
    "PartitionPlan",
    "PartitionReport",
    "Partitioning",
    "Pipeline",
    "PipelinePlan",
    "Report",
    "StageProfile",
    "judge",
    "load_graph",
    "load_partitioning",
    "load_plan",
    "load_profile",
]

_VECTOR = {
    "DataParallel-v0": "partition_vector:DataParallelVectorEnv",
    "OperatorPartition-v0": "partition_vector:OperatorPartitionVectorEnv",
    "PipelineCut-v0": "pipeline_cut_vector:PipelineCutVectorEnv",
    "PipelinePlan-v0": "pipeline_plan_vector:PipelinePlanVectorEnv",
}
for _id, _entry_point in (
    ("DataParallel-v0", "data_parallel:DataParallelEnv"),
    ("OperatorPartition-v0", "operator_partition:OperatorPartitionEnv"),
    ("PipelineCut-v0", "pipeline_cut:PipelineCutEnv"),
    ("PipelinePlan-v0", "pipeline_plan:PipelinePlanEnv"),
):
    _register(
        id=_id,
        entry_point=f"parenvs.envs.{_entry_point}",
        vector_entry_point=f"parenvs.envs.{_VECTOR[_id]}" if _id in _VECTOR else None,
    )
