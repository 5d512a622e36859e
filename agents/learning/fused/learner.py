"""What can learn in the fused loop, chosen by its settings."""

from __future__ import annotations

from typing import TypeAlias

from parenvs.agents.learning.fused.env import FusedEnv
from parenvs.agents.learning.fused.ppo import PPO, PPOSettings
from parenvs.agents.learning.fused.rainbow import Rainbow, RainbowSettings
from parenvs.agents.learning.fused.settings import Settings

Learner: TypeAlias = PPO | Rainbow
AGENTS: dict[str, type[PPOSettings] | type[RainbowSettings]] = {
    "ppo": PPOSettings,
    "rainbow": RainbowSettings,
}
"""Name of an agent -> its settings."""


def learner_of(settings: Settings, env: FusedEnv) -> Learner:
    """The learner that settings are for, on an environment."""
    if isinstance(settings, RainbowSettings):
        return Rainbow(settings, env)
    assert isinstance(settings, PPOSettings)
    return PPO(settings, env)
