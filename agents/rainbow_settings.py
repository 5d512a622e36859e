"""Settings of Rainbow: the paper's, and tuned ones for each environment of the suite."""

from __future__ import annotations

from typing import Any

from parenvs.agents.rainbow import DEFAULTS
from parenvs.errors import ParenvsError, did_you_mean

PRESETS: dict[str, dict[str, Any]] = {
    # arXiv 2007.04069, section 5; when epsilon has fallen and how often to train are not said.
    "paper": {
        "double_q": True, "dueling": True, "prioritized": True, "alpha": 0.2, "beta": 0.6,
        "n_steps": 1, "distributional": False, "noisy": False,
        "learning_rate": 1e-3, "gamma": 0.6, "buffer_size": 2000, "batch_size": 64,
        "learning_starts": 64, "train_freq": 1, "gradient_steps": 1, "target_update_interval": 100,
        "exploration_fraction": 0.5, "exploration_initial_eps": 1.0, "exploration_final_eps": 0.1,
    },
    "tuned": {
        "double_q": True, "dueling": True, "prioritized": True, "alpha": 0.5, "beta": 0.4,
        "n_steps": 3, "distributional": False, "noisy": False, **DEFAULTS,
    },
}  # fmt: skip
"""Keyword arguments of ``Rainbow``."""
TUNED: dict[str, dict[str, Any]] = {
    # Hundreds of actions, a few steps, and only the last one pays: look around for longer.
    "PipelineCut-v0": {
        "gamma": 1.0, "learning_rate": 1e-3,
        "exploration_fraction": 0.8, "exploration_final_eps": 0.1,
    },
}  # fmt: skip
"""What the preset ``tuned`` changes for an environment."""
ENVS: dict[str, dict[str, int]] = {
    "paper": {"PipelineCut-v0": 1, "OperatorPartition-v0": 1, "DataParallel-v0": 1},
    "tuned": {"PipelineCut-v0": 8, "OperatorPartition-v0": 8, "DataParallel-v0": 8},
}
"""Environments side by side, by preset."""


def preset(name: str, **overrides: Any) -> dict[str, Any]:
    """The keyword arguments of a preset; ``overrides`` replace single ones.

    Raises:
        ParenvsError: unknown preset.
    """
    if name not in PRESETS:
        raise ParenvsError(
            f"unknown preset {name!r}{did_you_mean(name, PRESETS)}; known: {', '.join(PRESETS)}"
        )
    return {**PRESETS[name], **overrides}


def settings(name: str, env_id: str, episode_steps: int) -> dict[str, Any]:
    """Keyword arguments of a preset for an environment with episodes of this many steps."""
    tuned = TUNED.get(env_id, {}) if name == "tuned" else {}
    return preset(name, device="cpu", **tuned)
