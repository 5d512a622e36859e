"""Plans by the networks that ship: no training, no PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenvs.agents.learning.decode import Decoded, Rater, decode
from parenvs.agents.learning.network import shipped
from parenvs.core.game import Stream
from parenvs.core.registry import environments
from parenvs.core.sets import set_of
from parenvs.core.task import late
from parenvs.errors import InfeasibleError

SAMPLES = 16
"""Plans of a problem by the network; one more is its rule's."""
COURSES = 32
"""Courses of a problem that is not foreseen, on which policies are compared."""


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


def served(policy: Rater, env_id: str, name: str, family: str | None = None) -> np.ndarray:
    """Return shares of the best known costs of a set, of plans that are made as ``learned`` does.

    Where what happens is not foreseen, there is one play of each of ``COURSES`` courses, without
    its rule's beside it.

    Args:
        policy: the policy.
        env_id: id of the environment.
        name: of the set.
        family: of its problems; None for all.
    """
    game_class, played, stream = late(environments()[env_id]), set_of(name), Stream()
    samples, courses = (SAMPLES, 1) if game_class.foreseen else (1, COURSES)
    game = game_class(samples + game_class.foreseen, **played.env_kwargs(family))
    shares = np.zeros((len(played.of(family)), courses))
    for number, course in np.ndindex(shares.shape):
        stream.reseed(course)
        stream.number = number
        problem = game.source.draw(stream)
        found = decode(policy, game, problem, samples, game.foreseen, seed=number)
        shares[number, course] = game.known[0] / found.cost
    return shares.mean(axis=1)
