"""How likely it is what happens to a plan together with the number of nodes, exactly."""

from __future__ import annotations

import numpy as np

from parenvs.tasks.elastic.chances import plan_chances
from parenvs.tasks.elastic.library import EVENTS, Library, binomial
from parenvs.tasks.elastic.markov import Markov


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
