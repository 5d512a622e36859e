"""A course of events: how many nodes there are in each interval, and which of them left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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

    def window(self, first: int, count: int) -> Course:
        """Return some of its intervals, in the first of which all nodes come.

        Args:
            first: number of the first interval.
            count: how many.
        """
        nodes, joined, left, lost = (part[first : first + count].copy() for part in self)
        joined[0], left[0], lost[0] = nodes[0], 0, 0
        return Course(nodes, joined, left, lost)

    @classmethod
    def of_bits(cls, start: Any, joined: np.ndarray, gone: np.ndarray, nodes: int) -> Course:
        """Return the course of what ``bits`` says, or several, whose arrays have axes in front.

        Args:
            start: (...) nodes in the first interval.
            joined: (..., S) nodes that come before each interval; of the first it means nothing.
            gone: (..., S) of ``bits``.
            nodes: N.
        """
        lost = np.zeros((*gone.shape, nodes + 1), dtype=np.int8)
        for node in range(nodes):
            left = (gone >> np.uint64(node)) & np.uint64(1)
            np.add(lost[..., node], left.astype(np.int8), out=lost[..., node + 1])
        left, come = lost[..., -1].astype(np.int16), joined.astype(np.int16)
        come[..., 0] = start
        return cls((come - left).cumsum(axis=-1, dtype=np.int16), come, left, lost)

    def bits(self) -> np.ndarray:
        """Return which nodes of the interval before left, (S,) uint64, bit i for the i-th oldest.

        There are at most 64 nodes.
        """
        gone = np.diff(self.lost, axis=1).astype(np.uint64)
        result: np.ndarray = (gone << np.arange(gone.shape[1], dtype=np.uint64)).sum(
            axis=1, dtype=np.uint64
        )
        return result


@dataclass(frozen=True, eq=False)
class Recorded:
    """A course that is the same in every episode, as the source of a problem's nodes.

    Attributes:
        name: of the course.
        events: the course.
    """

    name: str
    events: Course

    @property
    def most(self) -> int:
        """N, nodes at most."""
        return self.events.lost.shape[1] - 1

    @property
    def is_named(self) -> bool:
        """Whether it is known which nodes leave: it is."""
        return True

    def intervals(self, seconds: float) -> int:
        """Return the number of intervals, whatever their length."""
        return len(self.events)

    def course(self, seconds: float, uniform: np.ndarray | None = None) -> Course:
        """Return the course, whatever the length of its intervals."""
        return self.events
