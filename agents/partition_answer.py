"""What every planner of partitions returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
