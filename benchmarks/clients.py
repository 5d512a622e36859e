"""Reinforcement-learning libraries on two environments: steps a second, and lines of glue.

    python benchmarks/clients.py
    python benchmarks/clients.py --only rllib --again

A client runs in a process of its own, by the Python of the virtual environment of its name in
``build/clients`` if there is one (``python -m venv build/clients/rllib``), else by this one, as
the libraries want versions of Gymnasium and others that exclude each other. One whose package is
not there is named on the page.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.framework import Case, Row, main, measurement, table

HERE = Path(__file__).parent / "clients"
VENVS = Path("build/clients")
CLIENTS = {
    "parenvs": ("`parenvs train`", "PPO, 64 environments"),
    "fused": ("`parenvs train --distribution fused`", "PPO, 64 environments on tensors"),
    "rllib": ("RLlib", "PPO, new stack, 64 environments; on rows the network of `parenvs train`"),
    "cleanrl": ("CleanRL's style", "PPO, 64 environments"),
    "native": ("sb3-contrib on the native batch", "MaskablePPO, 64 environments"),
    "sb3": ("Stable-Baselines3", "PPO or MaskablePPO, 8 environments"),
}
"""Script -> the client, and what it does."""
ENVS: dict[str, dict[str, Any]] = {"CartPole-v1": {}, "PipelinePlan-v0": {"rows": "ahead"}}
"""Environment -> arguments."""


def measured(client: str, env_id: str, python: str, seconds: float) -> Row:
    """Run a client; its record, with what it says where it fails."""
    script = HERE / f"with_{client}.py"
    command = [python, "-W", "ignore", str(script), env_id, json.dumps(ENVS[env_id]), str(seconds)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = found.stdout.strip().splitlines()
    if found.returncode == 0 and lines:
        return {**json.loads(lines[-1]), "error": ""}
    return {"error": (found.stderr.strip().splitlines() or ["no output"])[-1][:160]}


@measurement(
    title="Libraries of reinforcement learning on two environments",
    key="client env round",
    among={"only": CLIENTS},
    about={
        "seconds": "processor seconds of a training behind its start-up",
        "rounds": "of all clients, one after another",
        "venvs": "folder of environments",
    },
)
def clients(
    seconds: float = 6.0,
    rounds: int = 2,
    only: tuple[str, ...] = tuple(CLIENTS),
    venvs: Path = VENVS,
) -> Iterator[Case]:
    for number in range(rounds):
        for env_id in ENVS:
            for client in only:
                own = venvs / client / "bin" / "python"
                python = str(own.absolute()) if own.exists() else sys.executable
                key = {"client": client, "env": env_id, "round": number}
                yield key, partial(measured, client, env_id, python, seconds)


@clients.page
def page(rows: list[Row]) -> list[str]:
    lines = []
    for client, (name, words) in CLIENTS.items():
        mine = [row for row in rows if row["client"] == client and not row["error"]]
        if mine:
            rates = (
                [row["steps"] / row["seconds"] for row in mine if row["env"] == env] for env in ENVS
            )
            lines.append([
                name, words, f"{mine[0]['package']} {mine[0]['version']}",
                str(max(row["glue"] for row in mine)),
                *(f"{sum(x) / len(x):,.0f}" if x else "" for x in rates),
            ])  # fmt: skip
    return [
        "Steps per processor second of a training, all processes and learning included, start-up "
        "left out; every PPO has batches of 1,024 steps, 4 passes, 256 steps per optimizer step, "
        "and two hidden layers of 64. Glue: lines that a user writes because the environment is of "
        "this suite. Rates show what a client costs, not how well it learns.",
        table(["client", "what", "version", "glue", *ENVS], lines, 3),
    ]


if __name__ == "__main__":
    main(clients)
