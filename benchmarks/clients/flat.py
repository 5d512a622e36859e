"""A wrapper for clients that want one vector beside the mask."""

from __future__ import annotations

from typing import Any

# glue
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, flatten, flatten_space


class Flat(gym.ObservationWrapper):
    """Shows the observation as one vector, and the mask beside it, under names of choice."""

    def __init__(self, env: gym.Env, seen: str, mask: str, kind: Any = np.int8) -> None:
        super().__init__(env)
        self.names, self.kind = (seen, mask), kind
        actions = Box(0, 1, (int(env.action_space.n),), kind)
        size = flatten_space(env.observation_space).shape
        self.observation_space = Dict({seen: Box(-1, 1, size, np.float32), mask: actions})

    def observation(self, observation: Any) -> dict[str, np.ndarray]:
        """Return the vector and the mask."""
        seen = flatten(self.env.observation_space, observation).astype(np.float32)
        mask = self.get_wrapper_attr("action_masks")().astype(self.kind)
        return dict(zip(self.names, (seen, mask), strict=True))


# end
