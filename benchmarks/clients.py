"""Reinforcement-learning libraries on two environments: lines of glue, and steps a second.

    python benchmarks/clients.py
    python benchmarks/clients.py --only tianshou

A client runs in a process of its own, by the Python of the virtual environment of its name in
``build/clients`` if there is one (``python -m venv build/clients/tianshou``), else by this one, as
the libraries want versions of Gymnasium and others that exclude each other. One whose package is
not there is named on the page. Rows are kept in ``clients.jsonl``; ``--only`` measures these again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import parser, progress, publish, table
from parenvs.bench.runs import append, read

HERE = Path(__file__).parent / "clients"
VENVS = Path("build/clients")
CLIENTS = {
    "native": ("sb3-contrib on the native batch", "MaskablePPO, 64 environments"),
    "sb3": ("sb3-contrib", "MaskablePPO, 8 environments"),
    "cleanrl": ("CleanRL's style", "PPO, native batch of 64"),
    "tianshou": ("tianshou", "DQN with masks, 8 environments"),
    "torchrl": ("TorchRL", "PPO with ActionMask, one environment"),
    "rllib": ("RLlib", "PPO with its example's masking module, one environment"),
    "rl_zoo3": ("rl_zoo3", "PPO without masks, 8 environments"),
    "minari": ("Minari", "records and reads random legal episodes"),
}
"""Script -> the client, and what it does."""
ENVS: dict[str, dict[str, Any]] = {"PipelinePlan-v0": {"draw": 2}, "HybridPlan-v0": {"pool": 64}}
"""Environment -> arguments."""


def measured(client: str, env_id: str, python: str, steps: int) -> dict[str, Any]:
    """Run a client; its record, with what it says where it fails."""
    script = HERE / f"with_{client}.py"
    command = [python, "-W", "ignore", str(script), env_id, json.dumps(ENVS[env_id]), str(steps)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = found.stdout.strip().splitlines()
    if found.returncode == 0 and lines:
        return {"client": client, "env": env_id, **json.loads(lines[-1]), "error": ""}
    words = (found.stderr.strip().splitlines() or ["no output"])[-1]
    return {"client": client, "env": env_id, "error": words[:160]}


def main() -> None:
    """Measure what is missing or asked for, print and write."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=4096, help="environment steps of a client")
    options.add_argument("--only", nargs="+", default=[], choices=list(CLIENTS))
    options.add_argument("--venvs", type=Path, default=VENVS, help="folder of environments")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.out / "clients.jsonl"
    rows = partial(read, path, lambda record: (record["client"], record["env"]))
    done = rows()
    for client in chosen.only or CLIENTS:
        for env_id in ENVS:
            if chosen.only or (client, env_id) not in done:
                own = chosen.venvs / client / "bin" / "python"
                python = str(own.absolute()) if own.exists() else sys.executable
                append(path, record := measured(client, env_id, python, chosen.steps))
                progress(json.dumps(record))
    lines, left_out = [], []
    for key, record in rows().items():
        name, what = CLIENTS[key[0]]
        if record["error"]:
            left_out.append(f"* {name} on {key[1]}: {record['error']}")
            continue
        lines.append([
            name, f"{record['package']} {record['version']}", what, key[1], record["glue"],
            "yes" if record["masks"] else "no", f"{record['steps']:,}",
            f"{record['steps'] / record['seconds']:,.0f}",
        ])  # fmt: skip
    sections = [
        "Each client trains (Minari records) with its own defaults for networks, on problems drawn "
        "anew (`draw=2`; hybrid problems from a pool of 64). `glue`: lines that are there because "
        "the environment is of this suite, in `benchmarks/clients/`. Steps a second of processor "
        "time on one core, of a short training in which making environments, problems and networks "
        "counts; they tell what a client costs, not how well it learns.",
        table(["client", "version", "what", "environment", "glue", "masks", "steps", "steps/s"],
              lines, left=4),
    ]  # fmt: skip
    if left_out:
        sections += ["Not measured:", "\n".join(left_out)]
    publish("clients", sections, None, chosen.out)


if __name__ == "__main__":
    main()
