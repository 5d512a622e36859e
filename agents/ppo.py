"""MaskablePPO (sb3-contrib) with settings for each environment of the suite."""

from __future__ import annotations

from typing import Any

EPISODES = 8
"""Episodes of each environment in an update, for pipelines."""
ENVS = {"PipelineCut-v0": 64, "OperatorPartition-v0": 8, "DataParallel-v0": 8}
"""Environments side by side. Pipelines: many short episodes an update, rather than few, keep the
policy from settling before it has seen enough cuts. Partitions: hundreds of decisions that pay one
by one are learned by many small updates."""


def settings(env_id: str, episode_steps: int) -> dict[str, Any]:
    """Keyword arguments of MaskablePPO for an environment with episodes of this many steps.

    Returns are undiscounted. A cut's worth shows in the last step of an episode only; a decision on
    a class pays at once.
    """
    common = {"n_epochs": 6, "gamma": 1.0, "device": "cpu"}
    if env_id == "PipelineCut-v0":
        steps = EPISODES * episode_steps
        return {
            **common,
            "n_steps": steps,
            "batch_size": ENVS[env_id] * steps // 4,
            "learning_rate": 1e-3,
            "gae_lambda": 1.0,
            "ent_coef": 0.02,
        }
    return {
        **common,
        "n_steps": 64,
        "batch_size": ENVS.get(env_id, 8) * 64 // 4,
        "learning_rate": 3e-3,
        "gae_lambda": 0.9,
        "ent_coef": 0.0,
    }
