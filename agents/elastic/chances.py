"""How likely it is what happens to a plan and to the number of nodes, exactly."""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np

from parenvs.tasks.elastic.library import EVENTS, GONE, LOST, READY, Library
from parenvs.tasks.elastic.markov import Markov, binomial


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


def transitions(library: Library, chain: Markov, phase: int) -> np.ndarray:
    """Return the probability of what happens to a plan with the next number of nodes.

    Args:
        library: the plans.
        chain: of the nodes.
        phase: of the day.

    Returns:
        (N+1, K, EVENTS, N+1), by nodes, plan, event and next nodes; 0 where nodes are not enough.
    """
    max_nodes = chain.nodes
    result = np.zeros((max_nodes + 1, len(library), EVENTS, max_nodes + 1))
    for likely, leave in chain.modes(phase):
        for n in range(max_nodes + 1):
            come = binomial(max_nodes - n, chain.join[phase])
            done: dict[tuple[int, int, int], np.ndarray] = {}
            for k, (used, spares, replicas) in enumerate(library.sizes):
                nodes_held = used + spares
                if nodes_held > n:
                    continue
                if (used, spares, replicas) not in done:
                    chances = plan_chances(used, spares, replicas, leave)
                    stay = binomial(n - nodes_held, 1.0 - leave)
                    others = np.convolve(stay, come)
                    left = chances[:, ::-1]  # by nodes of the plan that stay
                    rows = np.zeros((EVENTS, max_nodes + 1))
                    for event in np.flatnonzero(chances.any(axis=1)):
                        rows[event] = np.convolve(left[event], others)
                    done[used, spares, replicas] = rows
                result[n, k] += likely * done[used, spares, replicas]
    return result
