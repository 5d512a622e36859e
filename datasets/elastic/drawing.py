"""Draws courses of nodes: of Markov chains, and of regimes that no chain of two rates has.

Public traces of spot machines are quiet for hours, then lose many nodes within minutes, those that
came together among them, and now and then all. The numbers here are ours and fit no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.elastic.course import Course
from parenvs.tasks.elastic.markov import CHAINS, courses, draw_markov
from parenvs.tasks.elastic.problem import INTERVALS

NODES = 32
"""Nodes at most; as many as the measured steps go."""


@dataclass(frozen=True)
class Regime:
    """What decides a course, interval by interval.

    Attributes:
        start: nodes in the first interval.
        leave: (S,) probability that a node leaves before an interval.
        join: (S,) probability that a missing one comes.
        blocks: (S,) share of the nodes that leave before an interval together, next to each other
            in age.
    """

    start: int
    leave: np.ndarray
    join: np.ndarray
    blocks: np.ndarray


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _quiet(rng: np.random.Generator, nodes: int, count: int) -> Regime:
    """Quiet for one to three hours, then a busy spell of 10 to 60 minutes, again and again."""
    leave, join = np.full((2, count), _log(rng, 1 / 3000, 1 / 600))
    join[:] = _log(rng, 1 / 60, 1 / 8)
    at = -int(rng.integers(0, 60))
    while at < count:
        at += int(rng.integers(60, 181))
        long = int(rng.integers(10, 61))
        leave[max(at, 0) : max(at + long, 0)] = _log(rng, 1 / 60, 1 / 10)
        at += long
    return Regime(int(rng.integers(nodes // 2, nodes + 1)), leave, join, np.zeros(count))


def _bursts(rng: np.random.Generator, nodes: int, count: int) -> Regime:
    """Nodes of about one age leave together, often several times within minutes."""
    blocks = np.zeros(count)
    first, again = _log(rng, 1 / 90, 1 / 15), float(rng.uniform(0.1, 0.5))
    near = 0
    for at in range(1, count):
        if rng.random() < (again if near > 0 else first):
            blocks[at] = rng.uniform(0.03, 0.5)
            near = int(rng.integers(2, 8))
        near -= 1
    leave, join = (np.full(count, _log(rng, *x)) for x in ((1 / 3000, 1 / 400), (1 / 60, 1 / 5)))
    return Regime(int(rng.integers(nodes // 3, nodes + 1)), leave, join, blocks)


def _gone(rng: np.random.Generator, nodes: int, count: int) -> Regime:
    """One to three times all nodes leave; after 3 to 40 minutes they come back, fast."""
    leave, join = (np.full(count, _log(rng, *x)) for x in ((1 / 2000, 1 / 100), (1 / 60, 1 / 8)))
    blocks = np.zeros(count)
    for _ in range(int(rng.integers(1, 4))):
        at, long = int(rng.integers(1, count)), int(rng.integers(3, 41))
        blocks[at] = 1.0
        join[at : at + long] = 0.0
        join[at + long : at + long + 5] = rng.uniform(0.1, 0.6)
    return Regime(int(rng.integers(nodes // 3, nodes + 1)), leave, join, blocks)


REGIMES: dict[str, Callable[[np.random.Generator, int, int], Regime]] = {
    "quiet": _quiet,
    "bursts": _bursts,
    "gone": _gone,
}
"""Regimes by name."""
FAMILIES = (*CHAINS, *REGIMES)
"""Everything that courses are drawn of."""


def draw_course(
    rng: np.random.Generator, family: str, nodes: int = NODES, intervals: int = INTERVALS
) -> Course:
    """Draw a course of a family.

    Args:
        rng: the generator.
        family: one of ``FAMILIES``.
        nodes: N, at most.
        intervals: S; they are taken to be minutes.

    Raises:
        ParenvsError: there is no such family.
    """
    known_family(family)
    if family in CHAINS:
        chain = draw_markov(rng, family, nodes)
        return courses([chain], chain.uniform(rng, intervals)[None]).of(0)
    regime = REGIMES[family](rng, nodes, intervals)
    now, gone = regime.start, np.zeros(intervals, dtype=np.uint64)
    joined = np.zeros(intervals, dtype=np.int16)
    for at in range(1, intervals):
        leaves = rng.random(now) < regime.leave[at]
        if regime.blocks[at] > 0 and now:
            size = int(np.ceil(regime.blocks[at] * now))
            first = int(rng.integers(now - size + 1))
            leaves[first : first + size] = True
        joined[at] = rng.binomial(nodes - now, regime.join[at])
        which = np.flatnonzero(leaves)
        gone[at] = (np.uint64(1) << which.astype(np.uint64)).sum(dtype=np.uint64)
        now += int(joined[at]) - len(which)
    return Course.of_bits(regime.start, joined, gone, nodes)


def known_family(family: str) -> None:
    """Raise an error if there is no such family.

    Raises:
        ParenvsError: there is none; the line names those that are known.
    """
    if family not in FAMILIES:
        raise ParenvsError(
            f"unknown family {shown(family)}{did_you_mean(str(family), FAMILIES)}; known: "
            f"{', '.join(FAMILIES)}"
        )
