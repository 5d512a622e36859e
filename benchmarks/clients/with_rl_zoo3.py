"""PPO by the command of rl_zoo3; it has no algorithm that knows masks."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import ROOT, main

# glue
SETTINGS = """{env_id}:
  n_envs: 8
  n_timesteps: !!float {steps}
  policy: 'MultiInputPolicy'
  n_steps: 128
  batch_size: 256
  gamma: 1.0
"""
# end


def train(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Train in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "ppo.yml"
        settings.write_text(SETTINGS.format(env_id=env_id, steps=steps))
        given = [f"{name}:{value!r}" for name, value in kwargs.items()]
        command = [
            sys.executable, "-m", "rl_zoo3.train", "--algo", "ppo", "--env", env_id, "-f", folder,
            "--gym-packages", "parenvs", "--conf-file", str(settings), "--eval-freq", "-1",
            "--num-threads", "1", "--device", "cpu", "--seed", "0",
        ]  # fmt: skip
        command += ["--env-kwargs", *given] if given else []
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env=_environment(), cwd=folder
        )
    rollout = 8 * 128
    return -(-steps // rollout) * rollout


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


if __name__ == "__main__":
    main("rl_zoo3", train, __file__, masks=False)
