"""A Minari data set of random legal episodes: recorded, written, read again."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import gymnasium as gym
import numpy as np
from measure import main

os.environ["MINARI_DATASETS_PATH"] = tempfile.mkdtemp()
import minari


def train(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Record episodes until there are enough steps."""
    env = minari.DataCollector(gym.make(env_id, **kwargs))
    rng, done = np.random.default_rng(0), 0
    while done < steps:
        _, info = env.reset(seed=0 if done == 0 else None)
        over = False
        while not over:
            # glue
            action = int(rng.choice(np.flatnonzero(info["action_mask"])))
            # end
            _, _, over, _, info = env.step(action)
            done += 1
    env.create_dataset(dataset_id="parenvs/random-v0", algorithm_name="random legal")
    found = minari.load_dataset("parenvs/random-v0")
    assert found.total_steps == done
    assert found.recover_environment().spec.id == env_id
    return done


if __name__ == "__main__":
    main("minari", train, __file__)
