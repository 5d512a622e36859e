"""PPO of Stable-Baselines3; sb3-contrib's asks the environment for ``action_masks`` itself."""

from __future__ import annotations

from typing import Any

from measure import BATCH, EPOCHS, MINIBATCH, WIDTHS, Tick, discount, main, masked
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

AT_ONCE = 8


class Told(BaseCallback):
    """Tells of the steps so far."""

    def __init__(self, tick: Tick) -> None:
        super().__init__()
        self.tick = tick

    def _on_rollout_start(self) -> None:
        self.tick(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def learn(env_id: str, env: Any, tick: Tick) -> None:
    """Train in environments."""
    policy: Any = "MlpPolicy"
    algorithm: type[Any] = PPO
    # glue
    if masked(env_id):
        policy, algorithm = "MultiInputPolicy", MaskablePPO
    # end
    agent = algorithm(
        policy, env, n_steps=BATCH // env.num_envs, batch_size=MINIBATCH, n_epochs=EPOCHS,
        gamma=discount(env_id), seed=0, device="cpu", policy_kwargs={"net_arch": WIDTHS},
    )  # fmt: skip
    agent.learn(10**9, callback=Told(tick))


def train(env_id: str, kwargs: dict[str, Any], tick: Tick) -> None:
    """Train."""
    learn(env_id, make_vec_env(env_id, n_envs=AT_ONCE, seed=0, env_kwargs=kwargs), tick)


if __name__ == "__main__":
    main("sb3-contrib", train, __file__)
