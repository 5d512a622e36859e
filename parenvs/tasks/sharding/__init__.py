"""Intra-operator parallelism: problems in the format of the ASPLOS 2025 contest (IOPDDL)."""

from parenvs.tasks.sharding.files import load_iopddl, load_strategies, save_iopddl
from parenvs.tasks.sharding.problem import FORBIDDEN, Sharding, ShardingReport
from parenvs.tasks.sharding.reduced import Reduced
from parenvs.tasks.sharding.reduction import reduce

__all__ = [
    "FORBIDDEN",
    "Reduced",
    "Sharding",
    "ShardingReport",
    "load_iopddl",
    "load_strategies",
    "reduce",
    "save_iopddl",
]
