"""A course of events: how many nodes there are in each interval, and which of them left."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Course(NamedTuple):
    """What happens to the nodes of a cluster, whatever the plans are.

    Nodes are ranked by age: the oldest is number 0. A plan runs on the oldest nodes, and its spares
    are the next ones, so which nodes a plan loses follows from ``lost`` alone. An event counts from
    the next interval on: a node that gets notice finishes its interval.

    Attributes:
        nodes: (S,) int16, nodes that are there in each interval.
        joined: (S,) int16, nodes that came since the interval before.
        left: (S,) int16, nodes of the interval before that left.
        lost: (S, N+1) int8, how many of the m oldest nodes of the interval before left, by m.
    """

    nodes: np.ndarray
    joined: np.ndarray
    left: np.ndarray
    lost: np.ndarray

    def __len__(self) -> int:
        """Return S, the number of intervals."""
        return len(self.nodes)

    def of(self, row: int) -> Course:
        """Return one of several courses, whose arrays have an axis more in front."""
        return Course(*(part[row] for part in self))
