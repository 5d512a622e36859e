"""What every pipeline planner returns.

JOINED: What every planner of partitions returns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Answer:
    """A plan with what its planner knows of its quality.

    Attributes:
        cuts: (S-1,) int64, first pivot of each stage but the first.
        device_cuts: (S-1,) int64.
        length: closed-form seconds per step, ``Pipeline.length``.
        method: name of the planner.
        status: ``"optimal"`` (proven over the planner's search space) or ``"feasible"``.
        bound: proven lower bound of the length over the search space, seconds; 0 if none.
        evaluations: plans or labels that were looked at.
        seconds: wall time.
    """

    cuts: np.ndarray
    device_cuts: np.ndarray
    length: float
    method: str
    status: str = "feasible"
    bound: float = 0.0
    evaluations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class PartitionAnswer:
    """Classes to partition, with what their planner knows of their quality.

    Attributes:
        chosen: (C,) bool.
        value: return of the episode that partitions them.
        reward: ``"paper"`` or ``"step_time"``.
        method: name of the planner.
        status: ``"optimal"`` (proven) or ``"feasible"``.
        bound: proven upper bound of the return over all legal choices, or None.
        evaluations: choices or search nodes that were looked at.
        seconds: wall time.
    """

    chosen: np.ndarray
    value: float
    reward: str
    method: str
    status: str = "feasible"
    bound: float | None = None
    evaluations: int = 0
    seconds: float = 0.0
