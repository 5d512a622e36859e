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

# isort: off
if _TYPE_CHECKING:  # a name as itself is exported, for those who check types
    from parenvs.agents.evaluation.evaluate import evaluate as evaluate
    from parenvs.agents.evaluation.evaluate_set import evaluate_set as evaluate_set
    from parenvs.agents.learning.algorithm import register_agent as register_agent
    from parenvs.agents.planners import compare as compare, plan as plan
    from parenvs.agents.policies import load as load
    from parenvs.cluster import Cluster as Cluster, Device as Device
    from parenvs.core.plan import explain as explain, judge as judge, load_plan as load_plan
    from parenvs.core.registry import problem as problem, tune as tune
    from parenvs.errors import ParenvsError as ParenvsError
    from parenvs.exports.formats import export as export
    from parenvs.graph.graph import Graph as Graph
    from parenvs.graph.sources import (
        from_hlo as from_hlo,
        from_jax as from_jax,
        from_torch as from_torch,
        in_parts as in_parts,
    )
    from parenvs.instances import load_graph as load_graph
    from parenvs.shardy.verify import verify as verify
    from parenvs.tasks.hybrid.plan import HybridPlan as HybridPlan, HybridStage as HybridStage
    from parenvs.tasks.hybrid.problem import Hybrid as Hybrid
    from parenvs.tasks.hybrid.report import HybridReport as HybridReport
    from parenvs.tasks.hybrid.shape import TransformerShape as TransformerShape
    from parenvs.tasks.partition.problem import (
        Partitioning as Partitioning,
        PartitionPlan as PartitionPlan,
        PartitionReport as PartitionReport,
    )
    from parenvs.tasks.pipeline.plan import PipelinePlan as PipelinePlan
    from parenvs.tasks.pipeline.problem import Pipeline as Pipeline, Report as Report
    from parenvs.tasks.pipeline.profile import (
        StageProfile as StageProfile,
        load_profile as load_profile,
    )
    from parenvs.view import show as show
# isort: on

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
__all__ = sorted(_LAZY)


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
