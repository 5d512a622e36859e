"""Trained agents as policies, such as rules are: in simulations, tables and jobs that run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.elastic.rules import POLICIES
from parenvs.agents.learning.network import Network, shipped
from parenvs.agents.names import LEARNED
from parenvs.core.game import EVERY, Stream
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.elastic.choice import ElasticChoice
from parenvs.tasks.elastic.problem import Elastic, Moment
from parenvs.tasks.elastic.run import Policy

ENV_ID = "ElasticPlan-v1"
"""Environment of the agents."""
Best = Callable[[Any, np.ndarray], int]
"""Gives the best action of an observation and a mask, (65,) bool."""


class Trained:
    """Chooses what an agent rates highest of what ``ElasticPlan-v1`` would show it.

    Args:
        name: of the agent.
        best: the agent.
        **settings: arguments of the environment.
    """

    saves = True
    """Whether it may choose ``CHECKPOINT``."""

    def __init__(self, name: str, best: Best, **settings: Any) -> None:
        self.name, self.best, self.settings = name, best, settings

    def start(self, problem: Elastic) -> None:
        """See ``Policy``."""
        self.game = ElasticChoice(problem=replace(problem, checkpoints=True), **self.settings)
        stream = Stream()
        stream.reseed(0)
        self.game.deal(EVERY, [stream])

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        self.game.meet(0, moment, joined, left)
        seen = {key: values[0] for key, values in self.game.observation(EVERY).items()}
        return self.best(seen, self.game.legal[0])


def of_network(network: Network, name: str = LEARNED) -> Trained:
    """Return a network as a policy."""

    def best(seen: Any, mask: np.ndarray) -> int:
        batch = {**{key: seen[key][None] for key in seen}, "action_mask": mask[None]}
        return int(network.rate(batch)[0].argmax())

    return Trained(name, best)


def policy_of(source: str) -> Callable[[], Policy]:
    """Return what makes the policy of a name.

    Args:
        source: a rule or a system (``POLICIES``), the network that ships (``learned``), an ``.npz``
            file of another one, or the folder of a training of ``ElasticPlan-v1`` by ``parenvs
            train``.

    Raises:
        ParenvsError: it is none of these, or damaged; the line says which.
    """
    if source in POLICIES:
        return POLICIES[source]
    if source == LEARNED:
        return partial(of_network, shipped(ENV_ID))
    if source.endswith(".npz"):
        return partial(of_network, Network.load(Path(source)), Path(source).stem)
    if not Path(source).is_dir():
        known = [*POLICIES, LEARNED]
        raise ParenvsError(
            f"--policy {shown(source)} is unknown{did_you_mean(source, known)}; known: "
            f"{', '.join(known)}, an .npz file of a network, a folder of parenvs "
            f"train {ENV_ID}"
        )
    from parenvs.agents.learning.config import load_config
    from parenvs.agents.learning.trainer import player, rules_of

    config = load_config(source)
    if config.env_id.removeprefix("parenvs/") != ENV_ID:
        raise ParenvsError(
            f"--policy {shown(source)}: was trained in {config.env_id}; policies are of {ENV_ID}"
        )
    agent = player(source)

    def best(seen: Any, mask: np.ndarray) -> int:
        return int(agent.predict(seen, mask)[0])

    return lambda: Trained(Path(source).name, best, **rules_of(config))
