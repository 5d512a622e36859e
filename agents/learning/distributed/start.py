"""Makes the actors of a distributed training, and the agent that they serve."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sb3_contrib import MaskablePPO

from parenvs.agents.learning.distributed.distribution import (
    ASYNC,
    FUSED,
    LEARNERS,
    SINGLE,
    Distribution,
)
from parenvs.agents.learning.distributed.ppo import ActorsPPO, LearnersPPO
from parenvs.agents.learning.distributed.session import check_ray, session
from parenvs.agents.learning.distributed.workers import Workers
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.learners import Learner, learner_of
from parenvs.errors import ParenvsError


@contextlib.contextmanager
def spread(config: Config, address: str | None = None) -> Iterator[Spread]:
    """Have the processes of a distributed training in the block.

    Args:
        config: the run's configuration, which is not of ``SINGLE``.
        address: of a cluster of Ray; None starts Ray on this machine.

    Yields:
        the learner whose agents are trained so, and how they begin.

    Raises:
        ParenvsError: the agent cannot be spread so, Ray is missing, or nobody answers.
    """
    distribution, learner = check_spread(config, address), learner_of(config.agent)
    if distribution.word == ASYNC:
        from parenvs.agents.learning.distributed.rllib import AsyncPPO

        with session(address, distribution.processes):
            yield replace(learner, algorithm=AsyncPPO), lambda model: model.prepare(config)
        return
    shares = distribution.shares(learner.side_by_side(config.env_id))
    learns = distribution.word == LEARNERS
    with session(address, distribution.processes) as ray:
        workers = Workers(ray, config, shares, learns)
        agent = LearnersPPO if learns else ActorsPPO

        def attach(model: Any) -> None:
            model.workers = workers

        try:
            yield replace(learner, algorithm=agent), attach
        finally:
            workers.stop()


Spread = tuple[Learner, Callable[[Any], None]]
"""A learner, and a function that gives a fresh agent of it what the block holds."""


def check_spread(config: Config, address: str | None = None) -> Distribution:
    """Check that the agent of a run can be spread as its configuration says.

    Raises:
        ParenvsError: it cannot, Ray is missing, or nobody listens at the address.
    """
    distribution = Distribution.from_json(config.distribution)
    word, learner = distribution.word, learner_of(config.agent)
    if word == SINGLE:
        return distribution
    if word == FUSED:
        raise ParenvsError(
            f"distribution {FUSED!r} is a training of its own: "
            "python -m parenvs.agents.learning.fused"
        )
    if learner.algorithm is not MaskablePPO:
        raise ParenvsError(
            f"--distribution {word} spreads agents that are MaskablePPO, not {config.agent!r}; "
            f"take --agent ppo or --distribution {SINGLE}"
        )
    check_ray(address)
    if word != ASYNC:
        distribution.shares(learner.side_by_side(config.env_id))
    return distribution
