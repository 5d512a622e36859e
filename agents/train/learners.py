"""MaskablePPO (sb3-contrib) with settings for each environment of the suite.

JOINED: Settings of Rainbow: the paper's, and tuned ones for each environment of the suite.

JOINED: Every agent that learns, by name: what ``Config.agent`` and ``parenvs train --agent`` take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sb3_contrib import MaskablePPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from parenvs.agents.names import STEPS
from parenvs.agents.rainbow.algorithm import DEFAULTS, Rainbow
from parenvs.errors import ParenvsError, did_you_mean

EPISODES = 8
"""Episodes of each environment in an update, for pipelines."""
PPO_ENVS = {"PipelineCut-v0": 64, "OperatorPartition-v0": 8, "DataParallel-v0": 8}
"""Environments side by side. Pipelines: many short episodes an update, rather than few, keep the
policy from settling before it has seen enough cuts. Partitions: hundreds of decisions that pay one
by one are learned by many small updates."""


def ppo_settings(env_id: str, episode_steps: int) -> dict[str, Any]:
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
            "batch_size": PPO_ENVS[env_id] * steps // 4,
            "learning_rate": 1e-3,
            "gae_lambda": 1.0,
            "ent_coef": 0.02,
        }
    return {
        **common,
        "n_steps": 64,
        "batch_size": PPO_ENVS.get(env_id, 8) * 64 // 4,
        "learning_rate": 3e-3,
        "gae_lambda": 0.9,
        "ent_coef": 0.0,
    }


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
RAINBOW_ENVS: dict[str, dict[str, int]] = {
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


def rainbow_settings(name: str, env_id: str, episode_steps: int) -> dict[str, Any]:
    """Keyword arguments of a preset for an environment with episodes of this many steps."""
    tuned = TUNED.get(env_id, {}) if name == "tuned" else {}
    return preset(name, device="cpu", **tuned)


POLICY = "MultiInputPolicy"


@dataclass(frozen=True)
class Learner:
    """How to make an agent.

    Attributes:
        algorithm: its class.
        envs: environments side by side, by the environment's id.
        settings: arguments of the class, from the environment's id and the steps of an episode.
        checkpoint_every: rollouts between checkpoints.
        log_interval: rollouts (on-policy) or episodes (off-policy) between lines of the log.
        budget: environment steps of a run of ``parenvs bench agents``.
    """

    algorithm: type[BaseAlgorithm]
    envs: Mapping[str, int]
    settings: Callable[[str, int], dict[str, Any]]
    checkpoint_every: int
    log_interval: int
    budget: int = STEPS

    def make(
        self, env: VecEnv, env_id: str, episode_steps: int, seed: int, **overrides: Any
    ) -> Any:
        """A fresh agent; ``overrides`` replace single settings."""
        options = {**self.settings(env_id, episode_steps), **overrides}
        return self.algorithm(POLICY, env, seed=seed, **options)


LEARNERS: dict[str, Learner] = {
    "ppo": Learner(MaskablePPO, PPO_ENVS, ppo_settings, checkpoint_every=10, log_interval=1),
    **{
        name: Learner(
            Rainbow,
            RAINBOW_ENVS[preset],
            partial(rainbow_settings, preset),
            checkpoint_every=2000,
            log_interval=100,
            budget=budget,
        )
        # The paper's way updates at every step of one environment, which takes ten times as long.
        for name, preset, budget in (
            ("rainbow", "tuned", STEPS),
            ("rainbow-paper", "paper", 10_000),
        )
    },
}


def learner(name: str) -> Learner:
    """The learner of a name.

    Raises:
        ParenvsError: unknown name.
    """
    if name not in LEARNERS:
        raise ParenvsError(
            f"unknown agent {name!r}{did_you_mean(name, LEARNERS)}; agents that train: "
            f"{', '.join(LEARNERS)}"
        )
    return LEARNERS[name]
