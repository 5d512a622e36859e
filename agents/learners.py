"""Every agent that learns, by name: what ``Config.agent`` and ``parenvs train --agent`` take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sb3_contrib import MaskablePPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from parenvs.agents import ppo, rainbow_settings
from parenvs.agents.rainbow import Rainbow
from parenvs.agents.request import STEPS
from parenvs.errors import ParenvsError, did_you_mean

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
    "ppo": Learner(MaskablePPO, ppo.ENVS, ppo.settings, checkpoint_every=10, log_interval=1),
    **{
        name: Learner(
            Rainbow,
            rainbow_settings.ENVS[preset],
            partial(rainbow_settings.settings, preset),
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
