"""PPO of ``parenvs train``, with its defaults, in one process."""

from __future__ import annotations

import contextlib
from typing import Any

from measure import main

from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.trainer import Training


def train(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Train, without the judgement that follows."""
    config = TrainConfig(env_id=env_id, env_kwargs=kwargs, agent="ppo", steps=steps)
    with contextlib.closing(Training(config)) as training:
        training.learn(False)
        return training.turns


if __name__ == "__main__":
    main("parenvs", train, __file__)
