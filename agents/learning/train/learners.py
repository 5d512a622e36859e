"""Every agent that learns, by name, with its settings for each environment of the suite.

``Config.agent`` and ``parenvs train --agent`` take these names. PPO is MaskablePPO of sb3-contrib.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from sb3_contrib import MaskablePPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from parenvs.agents.learning.rainbow.algorithm import DEFAULTS, Rainbow
from parenvs.errors import ParenvsError, did_you_mean, shown

BUDGET = 200_000
"""Environment steps of a run of ``parenvs bench agents``."""
POLICY = "MultiInputPolicy"
"""Policy of learners; all environments of the suite have ``Dict`` observations."""
PLUGINS = "parenvs.agents"
"""Group of the entry points of packages that register agents."""
PPO_ENVS = {
    "PipelineCut-v0": 64, "OperatorPartition-v0": 8, "DataParallel-v0": 8, "PipelinePlan-v0": 64,
    "MicroBatchOrder-v0": 128, "IntraOpSharding-v0": 64,
    "PartitionPlan-v0": 16,
}  # fmt: skip
"""Environments side by side, by environment id. On pipelines many short episodes in an update keep
PPO from settling before it has seen enough cuts. On partitions an episode has hundreds of decisions
that pay one by one, which many small updates learn."""
EPISODES = 8
"""Episodes of each environment in an update of PPO on pipelines."""
_FALLING = LinearSchedule(1e-3, 1e-4, 1.0)
PPO_TUNED: dict[str, dict[str, Any]] = {
    "PipelineCut-v0": {"learning_rate": 1e-3, "gae_lambda": 1.0, "ent_coef": 0.02},
    "PipelinePlan-v0": {
        "n_steps": 32, "batch_size": 512, "n_epochs": 4,
        "learning_rate": _FALLING, "gae_lambda": 1.0, "ent_coef": 0.003,
    },
    "MicroBatchOrder-v0": {
        "batch_size": 1024, "n_epochs": 3,
        "learning_rate": LinearSchedule(1.5e-3, 2e-4, 1.0), "gae_lambda": 0.97, "ent_coef": 0.002,
    },
    "IntraOpSharding-v0": {
        "n_steps": 128, "batch_size": 1024, "n_epochs": 4,
        "learning_rate": _FALLING, "gae_lambda": 0.95, "ent_coef": 0.003,
    },
    "PartitionPlan-v0": {
        "batch_size": 256, "learning_rate": _FALLING, "gae_lambda": 0.98, "ent_coef": 0.003,
    },
}  # fmt: skip
"""What PPO's settings change for an environment. Returns are undiscounted everywhere. The worth of
a cut shows only in the last step of an episode; a decision on a class pays at once, for which the
others stand."""
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
    # A discount makes one class that pays at once better than a hundred that pay more together.
    "OperatorPartition-v0": {"gamma": 1.0},
    # An episode has hundreds of actions and few steps, and only the last one pays: explore longer.
    "PipelineCut-v0": {
        "gamma": 1.0, "learning_rate": 1e-3,
        "exploration_fraction": 0.8, "exploration_final_eps": 0.1,
    },
    # The buffer keeps two observations of 18 KB a step.
    "PipelinePlan-v0": {
        "gamma": 1.0, "learning_rate": 5e-4, "buffer_size": 20_000, "batch_size": 128,
        "learning_starts": 2_000, "gradient_steps": 2, "target_update_interval": 1_000,
        "exploration_fraction": 0.5, "exploration_final_eps": 0.05,
    },
}  # fmt: skip
"""What the preset ``tuned`` changes for an environment."""
TUNED["MicroBatchOrder-v0"] = TUNED["PipelinePlan-v0"]
RAINBOW_ENVS: dict[str, dict[str, int]] = {
    "paper": {
        "PipelineCut-v0": 1, "OperatorPartition-v0": 1, "DataParallel-v0": 1, "PipelinePlan-v0": 1,
    },
    "tuned": {
        "PipelineCut-v0": 8, "OperatorPartition-v0": 8, "DataParallel-v0": 8, "PipelinePlan-v0": 64,
        "MicroBatchOrder-v0": 64,
    },
}  # fmt: skip
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
        policies: policy by environment id, for those that are not played with ``POLICY``; a class,
            or a function without arguments that returns it.
    """

    algorithm: type[BaseAlgorithm]
    envs: Mapping[str, int]
    settings: Callable[[str, int], dict[str, Any]]
    checkpoint_every: int
    log_interval: int
    budget: int = BUDGET
    policies: Mapping[str, Any] = field(default_factory=dict)

    def side_by_side(self, env_id: str) -> int:
        """Number of environments of an id that the agent plays at once."""
        return self.envs.get(plain(env_id), 8)

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
        options = {**self.settings(plain(env_id), episode_steps), **overrides}
        return self.algorithm(self.policy(env_id), env, seed=seed, **options)

    def policy(self, env_id: str) -> Any:
        """First argument of ``algorithm`` for an environment: a name or a class."""
        policy = self.policies.get(plain(env_id), POLICY)
        return policy() if inspect.isfunction(policy) else policy


def plain(env_id: str) -> str:
    """The id of an environment without the namespace ``parenvs/``."""
    return env_id.rpartition("/")[2]


def find_plugin(name: str) -> None:
    """Let the installed package that has an agent of this name, if there is one, register it."""
    if name and name not in LEARNERS:
        for entry in entry_points(group=PLUGINS, name=name):
            entry.load()()


def learner_of(name: str) -> Learner:
    """The learner of a name: one of ``LEARNERS``, or one that an installed package registers.

    A package has an entry point of the group ``parenvs.agents`` with the name, a function that
    calls ``register_agent``.

    Raises:
        ParenvsError: the name is unknown.
    """
    find_plugin(name)
    if name not in LEARNERS:
        raise ParenvsError(
            f"unknown agent {name!r}{did_you_mean(name, LEARNERS)}; agents that train: "
            f"{', '.join(LEARNERS)}"
        )
    return LEARNERS[name]


def register_agent(
    name: str,
    algorithm: type[BaseAlgorithm],
    settings: Callable[[str, int], dict[str, Any]] | Mapping[str, Any] = MappingProxyType({}),
    policy: Any = POLICY,
    envs: int = 8,
    checkpoint_every: int = 10,
    log_interval: int = 1,
    budget: int = BUDGET,
) -> None:
    """Make an agent of one's own known to ``train``, ``parenvs evaluate`` and ``parenvs bench``.

    Args:
        name: its name; one that is taken is replaced only by the same algorithm.
        algorithm: a class of Stable-Baselines3's interface.
        settings: keyword arguments of ``algorithm``, or a function that gives them for the id of an
            environment and the number of steps of an episode.
        policy: first argument of ``algorithm``: a name or a class.
        envs: number of environments side by side.
        checkpoint_every: rollouts between two checkpoints.
        log_interval: see ``learn`` of Stable-Baselines3.
        budget: environment steps of a run of ``parenvs bench agents``.

    Raises:
        ParenvsError: the name is taken by another algorithm, or ``algorithm`` is no such class.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, BaseAlgorithm)):
        raise ParenvsError(
            f"agent {name!r}: expected a subclass of Stable-Baselines3's BaseAlgorithm, not "
            f"{shown(algorithm)}"
        )
    if name in LEARNERS and LEARNERS[name].algorithm is not algorithm:
        raise ParenvsError(f"agent {name!r} is there already; choose another name")
    fixed = settings if callable(settings) else (lambda env_id, episode_steps: dict(settings))
    places = dict.fromkeys(PPO_ENVS, envs)
    policies = dict.fromkeys(PPO_ENVS, policy)
    LEARNERS[name] = Learner(
        algorithm, places, fixed, checkpoint_every, log_interval, budget, policies
    )


def ppo_settings(env_id: str, episode_steps: int) -> dict[str, Any]:
    """Keyword arguments of MaskablePPO for an environment.

    Args:
        env_id: id of the environment.
        episode_steps: number of steps of an episode.
    """
    rollouts = {"PipelineCut-v0": EPISODES * episode_steps, "MicroBatchOrder-v0": episode_steps}
    steps = rollouts.get(env_id, 64)
    return {
        "n_epochs": 6, "gamma": 1.0, "device": "cpu",
        "n_steps": steps, "batch_size": PPO_ENVS.get(env_id, 8) * steps // 4,
        "learning_rate": 3e-3, "gae_lambda": 0.9, "ent_coef": 0.0,
        **PPO_TUNED.get(env_id, {}),
    }  # fmt: skip


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
    "ppo": Learner(
        MaskablePPO,
        PPO_ENVS,
        ppo_settings,
        checkpoint_every=10,
        log_interval=1,
    ),
    "rainbow": _rainbow("tuned", BUDGET),
    # The paper's way updates at every step of one environment, which takes ten times as long.
    "rainbow-paper": _rainbow("paper", 10_000),
}
"""Every agent that learns, by name."""
