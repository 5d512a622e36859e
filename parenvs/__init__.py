"""Environments, exact answers and baselines for planning the parallel training of neural networks.

Importing the package registers its environments with Gymnasium:

>>> import gymnasium as gym, parenvs
>>> env = gym.make("PipelineCut-v0", instance="t5-3b", cluster="C")
>>> observation, info = env.reset(seed=0)
>>> observation["features"].shape == (env.action_space.n, 3)
True
"""

from importlib import import_module as _import_module
from os import environ as _environ
from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.2.0"

# In a checkout, agents/, datasets/ and leaderboard/ lie beside this package; installed, inside it.
if __name__ == "parenvs" and (_Path(__file__).parent.parent / "setup.cfg").is_file():
    __path__.append(str(_Path(__file__).parent.parent))

if _TYPE_CHECKING:
    from parenvs.agents.evaluation.evaluate import evaluate
    from parenvs.agents.evaluation.evaluate_set import evaluate_set
    from parenvs.agents.learning.algorithm import register_agent
    from parenvs.agents.planners import compare, plan
    from parenvs.agents.policies import load
    from parenvs.cluster import Cluster, Device
    from parenvs.core.plan import explain, judge, load_plan
    from parenvs.core.registry import problem, tune
    from parenvs.errors import ParenvsError
    from parenvs.exports.formats import export
    from parenvs.graph.graph import Graph
    from parenvs.graph.sources import from_hlo, from_jax, from_torch, in_parts
    from parenvs.instances import load_graph
    from parenvs.shardy.verify import verify
    from parenvs.tasks.hybrid.plan import HybridPlan, HybridStage
    from parenvs.tasks.hybrid.problem import Hybrid
    from parenvs.tasks.hybrid.report import HybridReport
    from parenvs.tasks.hybrid.shape import TransformerShape
    from parenvs.tasks.partition.problem import Partitioning, PartitionPlan, PartitionReport
    from parenvs.tasks.pipeline.plan import PipelinePlan
    from parenvs.tasks.pipeline.problem import Pipeline, Report
    from parenvs.tasks.pipeline.profile import StageProfile, load_profile
    from parenvs.view import show

__all__ = [
    "Cluster",
    "Device",
    "Graph",
    "Hybrid",
    "HybridPlan",
    "HybridReport",
    "HybridStage",
    "ParenvsError",
    "PartitionPlan",
    "PartitionReport",
    "Partitioning",
    "Pipeline",
    "PipelinePlan",
    "Report",
    "StageProfile",
    "TransformerShape",
    "compare",
    "evaluate",
    "evaluate_set",
    "explain",
    "export",
    "from_hlo",
    "from_jax",
    "from_torch",
    "in_parts",
    "judge",
    "load",
    "load_graph",
    "load_plan",
    "load_profile",
    "plan",
    "problem",
    "register_agent",
    "show",
    "tune",
    "verify",
]

_PUBLIC = {
    "parenvs.agents.evaluation.evaluate": ("evaluate",),
    "parenvs.agents.evaluation.evaluate_set": ("evaluate_set",),
    "parenvs.agents.learning.algorithm": ("register_agent",),
    "parenvs.agents.planners": ("compare", "plan"),
    "parenvs.agents.policies": ("load",),
    "parenvs.cluster": ("Cluster", "Device"),
    "parenvs.core.plan": ("explain", "judge", "load_plan"),
    "parenvs.core.registry": ("problem", "tune"),
    "parenvs.errors": ("ParenvsError",),
    "parenvs.exports.formats": ("export",),
    "parenvs.graph.graph": ("Graph",),
    "parenvs.graph.sources": ("from_hlo", "from_jax", "from_torch", "in_parts"),
    "parenvs.instances": ("load_graph",),
    "parenvs.shardy.verify": ("verify",),
    "parenvs.tasks.hybrid.plan": ("HybridPlan", "HybridStage"),
    "parenvs.tasks.hybrid.problem": ("Hybrid",),
    "parenvs.tasks.hybrid.report": ("HybridReport",),
    "parenvs.tasks.hybrid.shape": ("TransformerShape",),
    "parenvs.tasks.partition.problem": ("PartitionPlan", "PartitionReport", "Partitioning"),
    "parenvs.tasks.pipeline.plan": ("PipelinePlan",),
    "parenvs.tasks.pipeline.problem": ("Pipeline", "Report"),
    "parenvs.tasks.pipeline.profile": ("StageProfile", "load_profile"),
    "parenvs.view": ("show",),
}
"""Module -> its public names; it is imported when one of them is first asked for."""
_LAZY = {name: module for module, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'parenvs' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


if "_PARENVS_COMPLETE" not in _environ:  # a shell that completes a word wants names, at once
    from parenvs.core.registry import TASKS as _TASKS
    from parenvs.envs import register as _register
    from parenvs.envs import register_removed as _register_removed

    for _task in _TASKS.values():
        _register(_task)
    _register_removed()
