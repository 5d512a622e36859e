"""Plans by the networks that ship: no training, no PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenvs.agents.learning.decode import Decoded, decode
from parenvs.agents.learning.network import shipped
from parenvs.core.registry import environments
from parenvs.core.source import Stream
from parenvs.core.task import late
from parenvs.errors import InfeasibleError

SAMPLES = 16
"""Plans of a problem by the network; one more is its rule's."""


def learned(
    env_id: str, problem: Any, samples: int = SAMPLES, seed: int = 0, deadline: float = np.inf
) -> Decoded:
    """Return the best plan that the network of an environment finds in it.

    Args:
        env_id: id of the environment.
        problem: the problem, as the environment's argument ``problem`` takes it.
        samples: plans by the network.
        seed: of those that are drawn.
        deadline: ``time.perf_counter()`` at which their episodes end.

    Raises:
        InfeasibleError: it is too large for the environment, or has no plan.
    """
    game = late(environments()[env_id])(samples + 1, problem=problem)
    start = game.source.draw(Stream())
    found = decode(shipped(env_id), game, start, samples, seed=seed, deadline=deadline)
    if found.plan is None:
        raise InfeasibleError(f"{problem.instance}: no episode of {env_id} ended with a plan")
    return found
