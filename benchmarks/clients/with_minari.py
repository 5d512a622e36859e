"""A Minari data set of random legal episodes: recorded, written, read again."""

from __future__ import annotations

import os
import tempfile
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from measure import BATCH, Tick, main

os.environ["MINARI_DATASETS_PATH"] = tempfile.mkdtemp()
import minari


def train(env_id: str, kwargs: dict[str, Any], tick: Tick) -> None:
    """Record data sets of some episodes, and read each again."""
    rng, done = np.random.default_rng(0), 0
    for number in count():
        env = minari.DataCollector(gym.make(env_id, **kwargs))
        recorded = 0
        while recorded < BATCH:
            _, info = env.reset(seed=0 if done == 0 else None)
            over = False
            while not over:
                # glue
                legal = info.get("action_mask", np.ones(env.action_space.n))
                action = int(rng.choice(np.flatnonzero(legal)))
                # end
                _, _, terminated, truncated, info = env.step(action)
                over = terminated or truncated
                recorded += 1
        name = f"parenvs/random-v{number}"
        env.create_dataset(dataset_id=name, algorithm_name="random legal")
        found = minari.load_dataset(name)
        assert found.total_steps == recorded
        assert found.recover_environment().spec.id == env_id
        done += recorded
        tick(done)


if __name__ == "__main__":
    main("minari", train, __file__)
