"""Clusters whose nodes leave and come by chance: families of Markov chains.

In every interval each node that is there leaves with one probability, and each node that is missing
comes with another. In an interval of bulk preemption nodes leave with a larger probability. The
probabilities may change with the time of day, so that the number of nodes and the time determine
what may happen next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.fields import check, number, read, whole
from parenvs.tasks.elastic.course import MAX_INTERVALS, MAX_NODES, Course, Source
from parenvs.tasks.elastic.library import binomial
from parenvs.tasks.elastic.problem import INTERVALS

CHAINS = ("independent", "bulk", "daynight", "growth")
"""Names of the families."""

_Bounds = number(0, 1, "a probability from 0 to 1")
_Probability = Annotated[int, _Bounds] | Annotated[float, _Bounds]


@dataclass(frozen=True)
class Markov(Source):
    """Nodes that leave and come by chance.

    Attributes:
        nodes: N, nodes at most.
        start: nodes in the first interval.
        leave: probability that a node leaves before the next interval, for each phase of the day.
        join: probability that a missing node comes, for each phase.
        bulk: probability of a bulk preemption in an interval.
        severity: probability that a node leaves in a bulk preemption.
        phase: intervals of a phase; phases follow each other over and over.
    """

    nodes: Annotated[int, whole(1, MAX_NODES)]
    start: Annotated[int, whole(0, MAX_NODES)]
    leave: tuple[_Probability, ...]
    join: tuple[_Probability, ...]
    bulk: _Probability = 0.0
    severity: _Probability = 0.0
    phase: Annotated[int, whole(1, MAX_INTERVALS)] = 1

    name: ClassVar[str] = "markov"
    is_named: ClassVar[bool] = False
    is_chain: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raise errors for numbers that no cluster has."""
        check(self)
        if self.start > self.nodes:
            raise ParenvsError(f"start must be at most {self.nodes}, the nodes, not {self.start}")
        if not 1 <= len(self.leave) == len(self.join) <= 64:
            raise ParenvsError("leave and join must be lists of equal length, 1 to 64 phases")

    def phase_of(self, interval: int) -> int:
        """Return the phase of the day in which nodes leave and come before an interval."""
        return (interval // self.phase) % len(self.leave)

    def modes(self, phase: int) -> tuple[tuple[float, float], ...]:
        """Return (probability, probability that a node leaves) with and without a bulk one."""
        calm = (1.0 - self.bulk, self.leave[phase])
        return (calm,) if self.bulk == 0.0 else (calm, (self.bulk, self.severity))

    def rates(self, intervals: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the probabilities before each interval, (S,) float32: leave, join, severity."""
        phase = (np.arange(intervals) // self.phase) % len(self.leave)
        leave, join = (np.array(x, dtype=np.float32)[phase] for x in (self.leave, self.join))
        return leave, join, np.full(intervals, self.severity, dtype=np.float32)

    @property
    def most(self) -> int:
        """N, nodes at most."""
        return self.nodes

    def intervals(self, seconds: float) -> int:
        """Return the default number of intervals, whatever their length."""
        return INTERVALS

    def draw(self, rng: np.random.Generator, seconds: float, intervals: int) -> np.ndarray:
        """See ``Source.draw``."""
        return self.uniform(rng, intervals)

    def course(self, seconds: float, uniform: np.ndarray | None = None) -> Course:
        """See ``Source.course``."""
        assert uniform is not None
        return courses([self], uniform[None]).of(0)

    def expected(self, best: np.ndarray, seconds: float, intervals: int) -> float:
        """See ``Source.expected``."""
        return float((self.distribution(intervals) @ best).sum())

    def uniform(self, rng: np.random.Generator, intervals: int) -> np.ndarray:
        """Draw what decides one course, (S, 1+N) float32: of bulk preemptions, and of each node."""
        return rng.random((intervals, self.nodes + 1), dtype=np.float32)

    def distribution(self, intervals: int) -> np.ndarray:
        """Return the probability of each number of nodes in each interval, (S, N+1)."""
        result = np.zeros((intervals, self.nodes + 1))
        result[0, self.start] = 1.0
        for t in range(1, intervals):
            phase = self.phase_of(t)
            step = sum(p * _moves(self.nodes, q, self.join[phase]) for p, q in self.modes(phase))
            result[t] = result[t - 1] @ step
        return result

    def to_json(self) -> dict[str, Any]:
        """Return the chain as an object of JSON types."""
        return {key: list(x) if isinstance(x, tuple) else x for key, x in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Any, where: str) -> Markov:
        """Make a chain of an object of JSON types.

        Raises:
            ParenvsError: a field is missing, unknown or wrong.
        """
        return read(cls, content, where)


def draw_markov(rng: np.random.Generator, family: str, nodes: int) -> Markov:
    """Draw a chain of a family; intervals are taken to be minutes.

    ``independent``: a node stays 30 minutes to 5 hours, a missing one comes after 10 to 60 minutes.
    ``bulk``: nodes stay longer, but every half an hour to 3 hours a fifth to two thirds of them
    leave together. ``daynight``: two phases, in one of which nodes leave 3 to 10 times as often.
    ``growth``: an eighth to a quarter of the nodes at first, which rarely leave, more to come.

    Raises:
        ParenvsError: there is no such family.
    """
    if family not in CHAINS:
        raise ParenvsError(
            f"unknown family {shown(family)}{did_you_mean(str(family), CHAINS)}; known: "
            f"{', '.join(CHAINS)}"
        )

    def rate(low: float, high: float) -> float:
        return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))), 6)

    start = int(rng.integers(nodes // 2, nodes + 1))
    if family == "independent":
        return Markov(nodes, start, (rate(1 / 300, 1 / 30),), (rate(1 / 60, 1 / 10),))
    if family == "bulk":
        leave, join = rate(1 / 1000, 1 / 200), rate(1 / 40, 1 / 8)
        severity = round(float(rng.uniform(0.2, 0.67)), 6)
        return Markov(nodes, start, (leave,), (join,), rate(1 / 180, 1 / 30), severity)
    if family == "daynight":
        calm, more = rate(1 / 600, 1 / 150), float(rng.uniform(3.0, 10.0))
        join = rate(1 / 60, 1 / 12)
        phase = int(rng.integers(30, 91))
        busy = round(min(calm * more, 0.2), 6)
        return Markov(nodes, start, (calm, busy), (join, round(join / 2, 6)), phase=phase)
    few = int(rng.integers(max(nodes // 8, 1), nodes // 4 + 1))
    return Markov(nodes, few, (rate(1 / 1500, 1 / 300),), (rate(1 / 240, 1 / 60),))


def courses(chains: Sequence[Markov], uniform: np.ndarray) -> Course:
    """Return the courses that drawn numbers decide.

    Args:
        chains: (B,) the chain of each course.
        uniform: (B, S, 1+N) float32, of ``Markov.uniform``; 1 for nodes that a chain does not have.

    Returns:
        A course whose arrays have an axis B in front.
    """
    count, intervals, width = uniform.shape
    nodes, joined, left = np.empty((3, count, intervals), dtype=np.int16)
    lost = np.zeros((count, intervals, width), dtype=np.int8)
    nodes[:, 0] = joined[:, 0] = [chain.start for chain in chains]
    left[:, 0] = 0
    rates = {chain: chain.rates(intervals) for chain in set(chains)}
    columns = zip(*(rates[chain] for chain in chains), strict=True)
    leave, join, severity = (np.stack(column) for column in columns)
    bulk = np.array([chain.bulk for chain in chains], dtype=np.float32)
    leave = np.where(uniform[:, :, 0] < bulk[:, None], severity, leave)
    ranks, now = np.arange(width - 1), nodes[:, 0]
    for t in range(1, intervals):
        present = ranks < now[:, None]
        happens = uniform[:, t, 1:] < np.where(present, leave[:, t, None], join[:, t, None])
        out = (happens & present).cumsum(axis=1, dtype=np.int8)
        lost[:, t, 1:] = out
        left[:, t] = out[:, -1]
        joined[:, t] = np.count_nonzero(happens, axis=1) - left[:, t]
        now = now - left[:, t] + joined[:, t]
        nodes[:, t] = now
    return Course(nodes, joined, left, lost)


@lru_cache(maxsize=256)
def _moves(nodes: int, leave: float, join: float) -> np.ndarray:
    """(N+1, N+1) probabilities of the next number of nodes, by the number now."""
    result = np.zeros((nodes + 1, nodes + 1))
    for now in range(nodes + 1):
        stay, come = binomial(now, 1.0 - leave), binomial(nodes - now, join)
        result[now] = np.convolve(stay, come)
    return result
