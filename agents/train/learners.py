"""Every agent that learns, by name, with its settings for each environment of the suite.

``Config.agent`` and ``parenvs train --agent`` take these names. PPO is MaskablePPO of sb3-contrib.
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

POLICY = "MultiInputPolicy"
"""Policy of every learner; all environments of the suite have ``Dict`` observations."""
PPO_ENVS = {"PipelineCut-v0": 64, "OperatorPartition-v0": 8, "DataParallel-v0": 8}
"""Environments side by side, by environment id. On pipelines many short episodes in an update keep
PPO from settling before it has seen enough cuts. On partitions an episode has hundreds of decisions
that pay one by one, which many small updates learn."""
EPISODES = 8
"""Episodes of each environment in an update of PPO on pipelines."""
PRESETS: dict[str, dict[str, Any]] = {
    # arXiv 2007.04069, section 5; it does not say how fast epsilon falls, nor how often to train.
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
"""Keyword arguments of ``Rainbow``, by preset."""
TUNED: dict[str, dict[str, Any]] = {
    # An episode has hundreds of actions and few steps, and only the last one pays: explore longer.
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
"""Environments side by side, by preset and environment id."""


@dataclass(frozen=True)
class Learner:
    """How to make an agent that learns.

    Attributes:
        algorithm: class of the agent.
        envs: number of environments side by side, by environment id.
        settings: gives the arguments of ``algorithm`` for an environment id and the number of
            steps of an episode.
        checkpoint_every: rollouts between two checkpoints.
        log_interval: rollouts (on-policy) or episodes (off-policy) between two lines of the log.
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
        """Make a fresh agent.

        Args:
            env: the environments that it plays.
            env_id: their id, which decides the settings.
            episode_steps: number of steps of an episode, which decides the settings too.
            seed: seed of everything random.
            **overrides: settings that replace the learner's own.
        """
        options = {**self.settings(env_id, episode_steps), **overrides}
        return self.algorithm(POLICY, env, seed=seed, **options)


def learner_of(name: str) -> Learner:
    """The learner of a name.

    Raises:
        ParenvsError: the name is unknown.
    """
    if name not in LEARNERS:
        raise ParenvsError(
            f"unknown agent {name!r}{did_you_mean(name, LEARNERS)}; agents that train: "
            f"{', '.join(LEARNERS)}"
        )
    return LEARNERS[name]


def ppo_settings(env_id: str, episode_steps: int) -> dict[str, Any]:
    """Keyword arguments of MaskablePPO for an environment.

    Returns are undiscounted. The worth of a cut shows only in the last step of an episode; a
    decision on a class pays at once.

    Args:
        env_id: id of the environment.
        episode_steps: number of steps of an episode.
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


def preset(name: str, **overrides: Any) -> dict[str, Any]:
    """Keyword arguments of ``Rainbow`` for a preset.

    Args:
        name: a key of ``PRESETS``.
        **overrides: arguments that replace those of the preset.

    Raises:
        ParenvsError: the preset is unknown.
    """
    if name not in PRESETS:
        raise ParenvsError(
            f"unknown preset {name!r}{did_you_mean(name, PRESETS)}; known: {', '.join(PRESETS)}"
        )
    return {**PRESETS[name], **overrides}


def rainbow_settings(name: str, env_id: str, episode_steps: int) -> dict[str, Any]:
    """Keyword arguments of ``Rainbow`` for a preset and an environment.

    Args:
        name: a key of ``PRESETS``.
        env_id: id of the environment.
        episode_steps: unused; every ``Learner.settings`` is called with it.
    """
    tuned = TUNED.get(env_id, {}) if name == "tuned" else {}
    return preset(name, device="cpu", **tuned)


def _rainbow(preset_name: str, budget: int) -> Learner:
    return Learner(
        Rainbow,
        RAINBOW_ENVS[preset_name],
        partial(rainbow_settings, preset_name),
        checkpoint_every=2000,
        log_interval=100,
        budget=budget,
    )


LEARNERS: dict[str, Learner] = {
    "ppo": Learner(MaskablePPO, PPO_ENVS, ppo_settings, checkpoint_every=10, log_interval=1),
    "rainbow": _rainbow("tuned", STEPS),
    # The paper's way updates at every step of one environment, which takes ten times as long.
    "rainbow-paper": _rainbow("paper", 10_000),
}
"""Every agent that learns, by name."""
