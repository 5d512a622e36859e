"""What may happen to a plan in an interval, exactly, and how many departures to expect."""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import Any

import numpy as np

from parenvs.tasks.elastic.library import EVENTS, GONE, LOST, READY, binomial

PRIOR = (3.6, 1200.0)
"""Departures, and intervals of a node, that ``departures`` counts before any are seen.

Chosen on the bank of training jobs by ``python benchmarks/elastic_windows.py --only prior``.
"""


def departures(left: Any, there: Any, prior: tuple[float, float] = PRIOR) -> Any:
    """Return the expected probability that a node leaves, elementwise.

    It is the mean of a gamma distribution after Poisson counts, whose prior is known counts.

    Args:
        left: departures that were seen.
        there: intervals of a node in which they were seen.
        prior: the same, before any are seen; zeros give the share of departures itself.
    """
    return (left + prior[0]) / np.maximum(there + prior[1], 1.0)


@lru_cache(maxsize=4096)
def intact(groups: int, replicas: int) -> tuple[float, ...]:
    """Return the probability that a replica of every part is left, by the number of nodes lost.

    All sets of lost nodes are equally likely: those that leave a replica in each group are counted
    by the coefficients of ((1 + x)^R - x^R)^G.
    """
    one = np.array([float(comb(replicas, i)) for i in range(replicas)] + [0.0])
    sets = np.ones(1)
    for _ in range(groups):
        sets = np.convolve(sets, one)
    nodes = groups * replicas
    return tuple(float(sets[a]) / comb(nodes, a) for a in range(nodes + 1))


@lru_cache(maxsize=65536)
def plan_chances(used: int, spares: int, replicas: int, leave: float) -> np.ndarray:
    """Return the probabilities of what happens to a plan, (EVENTS, used + spares + 1).

    The second axis is the number of its nodes that leave, spares included.

    Args:
        used: nodes that train.
        spares: nodes that are kept as spares.
        replicas: nodes that hold the same part of the state.
        leave: probability that a node leaves.
    """
    result = np.zeros((EVENTS, used + spares + 1))
    mine = binomial(used, leave)
    others = binomial(spares, leave)
    whole = intact(used // replicas, replicas) if used else (1.0,)
    for a, likely in enumerate(mine.tolist()):
        for b, also in enumerate(others.tolist()):
            chance = likely * also
            event = 0 if a == 0 else READY + a if a + b <= spares else min(a, LOST)
            result[event, a + b] += chance * whole[a]
            result[GONE, a + b] += chance * (1.0 - whole[a])
    return result
