"""Reinforcement-learning libraries on two environments: lines of glue, and steps a second.

    python benchmarks/clients.py
    python benchmarks/clients.py --only tianshou --again

A client runs in a process of its own, by the Python of the virtual environment of its name in
``build/clients`` if there is one (``python -m venv build/clients/tianshou``), else by this one, as
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

from benchmarks.framework import Case, Column, Row, columns, main, measurement

HERE = Path(__file__).parent / "clients"
VENVS = Path("build/clients")
CLIENTS = {
    "parenvs": ("`parenvs train`", "PPO, native batch of 64"),
    "native": ("sb3-contrib on the native batch", "MaskablePPO, 64 environments"),
    "sb3": ("sb3-contrib", "MaskablePPO, 8 environments"),
    "subproc": ("sb3-contrib, SubprocVecEnv", "MaskablePPO, 8 environments in 8 processes"),
    "cleanrl": ("CleanRL's style", "PPO, native batch of 64"),
    "tianshou": ("tianshou", "DQN with masks, 8 environments"),
    "torchrl": ("TorchRL", "PPO with ActionMask, one environment"),
    "rllib": ("RLlib", "PPO with its example's masking module, one environment"),
    "rl_zoo3": ("rl_zoo3", "PPO without masks, 8 environments"),
    "minari": ("Minari", "records and reads random legal episodes"),
}
"""Script -> the client, and what it does."""
ENVS: dict[str, dict[str, Any]] = {"PipelinePlan-v1": {}, "HybridPlan-v1": {}}
"""Environment -> arguments."""


def measured(client: str, env_id: str, python: str, steps: int) -> Row:
    """Run a client; its record, with what it says where it fails."""
    script = HERE / f"with_{client}.py"
    command = [python, "-W", "ignore", str(script), env_id, json.dumps(ENVS[env_id]), str(steps)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = found.stdout.strip().splitlines()
    if found.returncode == 0 and lines:
        return {**json.loads(lines[-1]), "error": ""}
    return {"error": (found.stderr.strip().splitlines() or ["no output"])[-1][:160]}


@measurement(
    title="Libraries of reinforcement learning on two environments",
    key="client env",
    among={"only": CLIENTS},
    about={"steps": "environment steps of a client", "venvs": "folder of environments"},
)
def clients(
    steps: int = 4096, only: tuple[str, ...] = tuple(CLIENTS), venvs: Path = VENVS
) -> Iterator[Case]:
    for client in only:
        own = venvs / client / "bin" / "python"
        python = str(own.absolute()) if own.exists() else sys.executable
        for env_id in ENVS:
            key = {"client": client, "env": env_id}
            yield key, partial(measured, client, env_id, python, steps)


COLUMNS: list[Column] = [
    ("client", lambda row: CLIENTS[row["client"]][0]),
    ("version", "{package} {version}"),
    ("what", lambda row: CLIENTS[row["client"]][1]),
    ("environment", "{env}"),
    ("glue", "{glue}"),
    ("masks", lambda row: "yes" if row["masks"] else "no"),
    ("steps", "{steps:,}"),
    ("steps/s", lambda row: f"{row['steps'] / row['seconds']:,.0f}"),
]


@clients.page
def page(rows: list[Row]) -> list[str]:
    sections = [
        "Each client trains (Minari records) with its own defaults for networks, on problems of "
        "the bank. `glue`: lines that are there because the environment is of this suite, in "
        "`benchmarks/clients/`. Steps a second of processor time, of all processes, learning "
        "included, of a short training in which making environments, problems and networks counts; "
        "they tell what a client costs, not how well it learns.",
        columns([row for row in rows if not row["error"]], COLUMNS, left=4),
    ]
    left_out = [f"* {CLIENTS[row['client']][0]} on {row['env']}: {row['error']}"
                for row in rows if row["error"]]  # fmt: skip
    return [*sections, "Not measured:", "\n".join(left_out)] if left_out else sections


if __name__ == "__main__":
    main(clients)
