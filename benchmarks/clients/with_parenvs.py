"""PPO of ``parenvs train`` in one process."""

from __future__ import annotations

import contextlib
from typing import Any

from measure import ENVS, EPOCHS, MINIBATCH, TURNS, Tick, main

from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.trainer import Training

SETTINGS = {"envs": ENVS, "turns": TURNS, "passes": EPOCHS, "turns_a_step": MINIBATCH}


def train(env_id: str, kwargs: dict[str, Any], tick: Tick, **more: Any) -> None:
    """Train, without the judgment that follows."""
    config = TrainConfig(
        env_id=env_id, env_kwargs=kwargs, agent="ppo", steps=10**9, settings=SETTINGS, **more
    )
    with contextlib.closing(Training(config)) as training:
        while True:
            training.update()
            tick(training.turns)


if __name__ == "__main__":
    main("parenvs", train, __file__)
