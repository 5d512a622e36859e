"""PPO by the command of rl_zoo3; it has no algorithm that knows masks."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import with_rl_zoo3
from measure import BATCH, EPOCHS, MINIBATCH, Tick, discount, main, masked
from with_sb3 import AT_ONCE, Told

TICK: list[Tick] = []
"""Of the module, which the command imports by its name."""


class Ticked(Told):
    """What the command makes of its file's line ``callback``."""

    def __init__(self) -> None:
        super().__init__(TICK[0])


# glue
SETTINGS = """{env_id}:
  n_envs: {envs}
  n_timesteps: !!float 1e9
  policy: '{policy}'
  n_steps: {turns}
  batch_size: {minibatch}
  n_epochs: {epochs}
  gamma: {discount}
  callback: with_rl_zoo3.Ticked
"""
# end


def train(env_id: str, kwargs: dict[str, Any], tick: Tick) -> None:
    """Train."""
    from rl_zoo3.train import train as command

    with_rl_zoo3.TICK.append(tick)
    folder = tempfile.mkdtemp()
    settings = Path(folder) / "ppo.yml"
    settings.write_text(
        SETTINGS.format(
            env_id=env_id, envs=AT_ONCE, turns=BATCH // AT_ONCE, minibatch=MINIBATCH,
            epochs=EPOCHS, policy="MultiInputPolicy" if masked(env_id) else "MlpPolicy",
            discount=discount(env_id),
        )
    )  # fmt: skip
    given = [f"{name}:{value!r}" for name, value in kwargs.items()]
    sys.argv[1:] = [
        "--algo", "ppo", "--env", env_id, "-f", folder, "--gym-packages", "parenvs",
        "--conf-file", str(settings), "--eval-freq", "-1", "--num-threads", "1",
        "--device", "cpu", "--seed", "0", "--verbose", "0",
        *(["--env-kwargs", *given] if given else []),
    ]  # fmt: skip
    command()


if __name__ == "__main__":
    main("rl_zoo3", train, __file__, masks=False)
