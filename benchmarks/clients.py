"""Reinforcement-learning libraries on two environments: steps a second, and lines of glue.

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
    "parenvs": ("`parenvs train`", "PPO, 64 environments"),
    "fused": ("`parenvs train --distribution fused`", "PPO, 64 environments on tensors"),
    "rllib": ("RLlib", "PPO, new stack, 64 environments; on rows the network of `parenvs train`"),
    "cleanrl": ("CleanRL's style", "PPO, 64 environments"),
    "native": ("sb3-contrib on the native batch", "MaskablePPO, 64 environments"),
    "sb3": ("Stable-Baselines3", "PPO or MaskablePPO, 8 environments"),
    "subproc": ("Stable-Baselines3, SubprocVecEnv", "the same, in 8 processes"),
    "torchrl": ("TorchRL", "PPO, one environment"),
    "tianshou": ("tianshou", "DQN, 8 environments"),
    "rl_zoo3": ("rl_zoo3", "PPO without masks, 8 environments"),
    "minari": ("Minari", "records and reads random legal episodes"),
}
"""Script -> the client, and what it does."""
ENVS: dict[str, dict[str, Any]] = {"CartPole-v1": {}, "PipelinePlan-v1": {}}
"""Environment -> arguments."""
RLLIB = "rllib"
OTHERS = (
    "PufferLib 3.0.0, which has no wheel and whose build did not end within 500 s, and Sample "
    "Factory 2.1.1, which wants Gymnasium below 1.0, where batches cannot say how they begin anew."
)
PARTS = ("environment", "inference", "gradients")
"""Parts of a training that are timed; the rest is bookkeeping."""


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


COLUMNS: list[Column] = [
    ("client", lambda row: CLIENTS[row["client"]][0]),
    ("version", "{package} {version}"),
    ("what", lambda row: CLIENTS[row["client"]][1]),
    ("glue", "{glue}"),
    ("masks", lambda row: "yes" if row["masks"] else "no"),
    ("start-up, s", "{startup:.1f}"),
    ("steps", "{steps:,}"),
    ("steps/s", lambda row: f"{row['rate']:,.0f}"),
    ("of all rounds", lambda row: ", ".join(f"{rate:,.0f}" for rate in row["rates"])),
    ("of wall time", lambda row: f"{row['steps'] / row['wall']:,.0f}"),
    ("times RLlib's", lambda row: f"{row['times']:.2f}" if row["times"] else ""),
]


@clients.page
def page(rows: list[Row], seconds: float) -> list[str]:
    found = [row for row in rows if not row["error"]]
    sections = [
        "Each client trains (Minari records) until it has taken "
        f"{seconds:g} processor seconds or more behind its start-up, all processes and learning "
        "included. "
        "Every PPO has batches of 1,024 turns, 4 passes, 256 turns a step of the optimiser, and "
        "hidden layers of 64 and 64; TorchRL, tianshou, SB3 and CleanRL's style take "
        "PipelinePlan-v1's rows as one vector, `parenvs train` and RLlib rate each row by the same "
        "network, imported from here. `parenvs train` plays CartPole-v1 as single environments, "
        "RLlib in Gymnasium's native batch, which it asks for by `vector_entry_point`; "
        "PipelinePlan-v1, with its default rows, both play in its native batch. "
        "Start-up: processor seconds until 2,048 steps are done, which no rate counts. Rates are "
        "the mean of the rounds; wall time is that of a machine that others used. `glue`: lines "
        "that are there because the environment is of this suite. Rates tell what a client costs, "
        "not how well it learns.",
        f"Not measured: {OTHERS}",
    ]
    for env_id in ENVS:
        here = _joined([row for row in found if row["env"] == env_id])
        if here:
            sections += [f"## {env_id}", columns(here, COLUMNS, left=3), *_where(here)]
    left_out = dict.fromkeys(
        f"* {CLIENTS[row['client']][0]} on {row['env']}: {row['error']}"
        for row in rows if row["error"]
    )  # fmt: skip
    return [*sections, "\n".join(left_out)] if left_out else sections


def _joined(rows: list[Row]) -> list[Row]:
    """One row for each client: sums of its rounds, and its rates."""
    result = []
    for client in dict.fromkeys(row["client"] for row in rows):
        mine = [row for row in rows if row["client"] == client]
        sums = {key: sum(row[key] for row in mine) for key in ("steps", "seconds", "wall")}
        rates = [row["steps"] / row["seconds"] for row in mine]
        parts = {name: sum(row["parts"].get(name, 0.0) for row in mine) for name in PARTS}
        startup = sum(row["startup"] for row in mine) / len(mine)
        result.append(
            {
                **mine[0], **sums, "startup": startup, "rates": rates, "parts": parts,
                "rate": sum(rates) / len(rates), "times": None,
            }
        )  # fmt: skip
    rate = next((row["rate"] for row in result if row["client"] == RLLIB), None)
    return [{**row, "times": row["rate"] / rate if rate else None} for row in result]


def _where(rows: list[Row]) -> list[str]:
    """Where the time of the clients goes whose parts are timed."""
    lines = []
    for row in rows:
        if any(row["parts"].values()):
            each = {name: 1e6 * row["parts"][name] / row["steps"] for name in PARTS}
            whole = 1e6 * row["seconds"] / row["steps"]
            lines.append({**row, **each, "whole": whole, "rest": whole - sum(each.values())})
    if not lines:
        return []
    names: list[Column] = [("client", lambda row: CLIENTS[row["client"]][0])]
    names += [(name, f"{{{name}:,.0f}}") for name in (*PARTS, "rest", "whole")]
    return [
        "Processor microseconds of a step: the environment's `step`; the network's call for "
        "actions; forward passes, gradients and steps of the optimiser; and the rest: batches, "
        "advantages, episodes, connectors.",
        columns(lines, names, left=1),
        *(
            f"Without its rest RLlib would do {1e6 / (row['whole'] - row['rest']):,.0f} steps a "
            f"second here, {row['whole'] / (row['whole'] - row['rest']):.1f} times its own."
            for row in lines if row["client"] == RLLIB
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(clients)
