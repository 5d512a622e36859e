"""Wrappers for libraries that expect the action mask somewhere else."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class MaskInObservation(
    gym.Wrapper[dict[str, Any], int, dict[str, Any], int], gym.utils.RecordConstructorArgs
):
    """Puts the mask of legal actions into the observation, as ``action_mask`` (int8).

    Args:
        env: an environment with a ``Dict`` observation and ``action_masks()``.
    """

    def __init__(self, env: gym.Env[dict[str, Any], int]) -> None:
        """Extend the observation space."""
        gym.utils.RecordConstructorArgs.__init__(self)  # gym.make(env.spec) needs them
        gym.Wrapper.__init__(self, env)
        inner = env.observation_space
        actions = env.action_space
        if not isinstance(inner, spaces.Dict) or not isinstance(actions, spaces.Discrete):
            raise TypeError("MaskInObservation needs Dict observations and Discrete actions")
        mask = spaces.Box(0, 1, (int(actions.n),), np.int8)
        self.observation_space = spaces.Dict({**inner.spaces, "action_mask": mask})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reset, with the mask in the observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        return {**observation, "action_mask": info["action_mask"].copy()}, info

    def step(self, action: int) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Step, with the mask in the observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = {**observation, "action_mask": info["action_mask"].copy()}
        return observation, reward, terminated, truncated, info

    def action_masks(self) -> np.ndarray:
        """Return the environment's mask; Gymnasium's wrappers do not forward methods."""
        return self.env.get_wrapper_attr("action_masks")()
