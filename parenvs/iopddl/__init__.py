"""Intra-operator parallelism: problems in the format of the ASPLOS 2025 contest (IOPDDL)."""

from parenvs.iopddl.files import load_iopddl, load_strategies, save_iopddl
from parenvs.iopddl.problem import FORBIDDEN, IntraOp, IntraOpReport
from parenvs.iopddl.reduced import Reduced
from parenvs.iopddl.reduction import reduce

__all__ = [
    "FORBIDDEN",
    "IntraOp",
    "IntraOpReport",
    "Reduced",
    "load_iopddl",
    "load_strategies",
    "reduce",
    "save_iopddl",
]
