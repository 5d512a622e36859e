"""Small jobs on nodes that come and go."""

from functools import lru_cache

import numpy as np

from parenvs.tasks.elastic.library import Candidate, Library
from parenvs.tasks.elastic.movement import Costs, Degrees, State
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.problems import Markov

COSTS = Costs(join=0.5, leave=0.1, save=4.0, load=9.0, every=3)


def state(layers=4, split=8e9, whole=1e9):
    """A state of equal layers, and half of one at either end."""
    size = np.array([0.5, *[1.0] * layers, 0.5])
    return State("toy", size * split, size * whole, layers)


def sent(size, rows, devices):
    """Bytes that each of all devices sends to each other one."""
    result = np.zeros((devices, devices))
    for row in rows:
        result[row.source, row.target] += (row.end - row.begin) * size[row.atom]
    return result


@lru_cache(maxsize=4)
def library(many=False):
    """Plans of up to 3 nodes with a device each, one of them with a spare; or of up to 6 nodes."""
    rows = [((1, 1, 1), 0, 1.0), ((1, 2, 1), 0, 1.7), ((1, 1, 2), 0, 1.9), ((1, 1, 2), 1, 1.9),
            ((1, 3, 1), 0, 2.6)]  # fmt: skip
    if many:
        rows += [((1, 2, 2), 0, 3.1), ((1, 2, 2), 1, 3.1), ((1, 2, 3), 0, 4.5), ((1, 1, 3), 2, 2.5)]
    plans = tuple(Candidate(Degrees(*degrees), spares, rate) for degrees, spares, rate in rows)
    return Library("toy", state(), COSTS, 1, plans)


CHAINS = {
    "calm": Markov(3, 2, (0.1,), (0.4,)),
    "bulk": Markov(3, 3, (0.05,), (0.5,), 0.3, 0.6),
    "day": Markov(3, 1, (0.02, 0.4), (0.5, 0.2), phase=2),
    "wide": Markov(6, 4, (0.08,), (0.3,), 0.1, 0.5),
}


def problem(name="calm", intervals=5, checkpoints=False):
    """A problem on one of ``CHAINS``."""
    chain = CHAINS[name]
    plans = library(chain.nodes > 3)
    return Elastic(plans, chain, 60.0, intervals, f"toy/{name}", checkpoints)
