"""A course of events: how many nodes there are in each interval, and which of them left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

MAX_NODES = 64
"""Most nodes at a time."""
MAX_INTERVALS = 20_000
"""Most intervals of a course."""


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


class Source:
    """Where the nodes of a job come from: a trace, a Markov chain, or a recorded course.

    Attributes:
        name: of the source.
        most: N, nodes at most.
        is_named: whether it is known which nodes leave, so that nothing is random.
    """

    name: Any
    most: Any
    is_named: Any
    is_chain: ClassVar[bool] = False

    def intervals(self, seconds: float) -> int:
        """Return the number of intervals of a length; of a chain, the default.

        Raises:
            ParenvsError: there are too many.
        """
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, seconds: float, intervals: int) -> np.ndarray | None:
        """Draw the numbers that decide a course, None if nothing is random.

        Args:
            rng: the generator.
            seconds: length of an interval.
            intervals: of the episode.
        """
        if self.is_named:
            return None
        return rng.random((self.intervals(seconds), self.most), dtype=np.float32)

    def course(self, seconds: float, uniform: np.ndarray | None = None) -> Course:
        """Return the course in intervals of a length, decided by numbers of ``draw``."""
        raise NotImplementedError

    def expected(self, best: np.ndarray, seconds: float, intervals: int) -> float:
        """Return the expected sum over an episode of ``best``, (N+1,), by the number of nodes."""
        zeros = np.zeros((self.intervals(seconds), self.most))
        return float(best[self.course(seconds, zeros).nodes[:intervals]].sum())


@dataclass(frozen=True, eq=False)
class Recorded(Source):
    """A course that is the same in every episode, as the source of a problem's nodes.

    Attributes:
        name: of the course.
        events: the course.
    """

    name: str
    events: Course
    is_named: ClassVar[bool] = True

    @property
    def most(self) -> int:
        """N, nodes at most."""
        return self.events.lost.shape[1] - 1

    def intervals(self, seconds: float) -> int:
        """Return the number of intervals, whatever their length."""
        return len(self.events)

    def course(self, seconds: float, uniform: np.ndarray | None = None) -> Course:
        """Return the course, whatever the length of its intervals."""
        return self.events
