"""A state that moves: trained on 4 processes, resharded, trained on by 2; bytes as predicted.

Needs the extra ``torch``. Every plan of 4 processes goes to every plan of 2.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, parser, progress, publish, table

sys.path.insert(0, str(ROOT / "examples"))
import resharding

from parenvs.exports.checkpoint.folder import Checkpoint
from parenvs.exports.checkpoint.reshard import reshard

TOLERANCE = 1e-4
KILLS = 12


def kills(folder: Path, plan: Path, number: int) -> dict[str, int]:
    """Kill the command at times spread over its run; the checkpoint is as it was or new, whole."""
    command = [sys.executable, "-m", "parenvs", "reshard", "state", "--to", str(plan)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    state, found = folder / "state", {"old": 0, "new": 0, "left": 0}
    old = {p.name: p.read_bytes() for p in state.iterdir()}
    begin = time.perf_counter()
    options: Any = {"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL}
    subprocess.run([*command, "--out", "new"], check=True, **options)
    whole = time.perf_counter() - begin
    for turn in range(number):
        process = subprocess.Popen(command, **options)
        time.sleep(whole * (0.5 + 0.5 * turn / number))  # imports and the graph come first
        process.send_signal(signal.SIGKILL)
        process.wait()
        found["left"] += any(".new" in p.name for p in folder.iterdir())
        Checkpoint(state).verify()
        same = {p.name: p.read_bytes() for p in state.iterdir()} == old
        found["old" if same else "new"] += 1
        if not same:  # it was done already; begin anew
            for name, data in old.items():
                (state / name).write_bytes(data)
            for path in state.iterdir():
                if path.name not in old:
                    path.unlink()
    return found


def moved(folder: Path) -> list[dict[str, Any]]:
    """Train, reshard and train on, for every pair of plans."""
    graph = resharding.example.read()
    graph.save(folder / "net.npz")
    name = str(folder / "net.npz")
    plans = [
        {key: resharding.plan_of(graph, name, n, *x) for key, x in some.items()}
        for n, some in ((4, resharding.FOUR), (2, resharding.TWO))
    ]
    progress("training on 4 processes")
    resharding.example.start(
        4,
        {
            key: resharding.job(plan, folder / f"{key}.told", save=folder / key)
            for key, plan in plans[0].items()
        },
        resharding.train,
    )
    rows, jobs = [], {}
    for key, old in plans[0].items():
        for other, new in plans[1].items():
            out = folder / f"{key} {other}"
            found = reshard(folder / key, new, old, out, graph)
            rows.append({**found.to_json(), "old": key, "new": other})
            # of the old plan's files, and of the new one's
            for kind, source in (("direct", folder / key), ("after", out)):
                told = folder / f"{key} {other} {kind}.told"
                jobs[told.name] = resharding.job(new, told, load=source)
    progress(f"training on 2 processes, {len(jobs)} runs")
    resharding.example.start(2, jobs, resharding.train)
    single = resharding.alone()
    for row in rows:
        told = {
            kind: json.loads((folder / f"{row['old']} {row['new']} {kind}.told").read_text())
            for kind in ("direct", "after")
        }
        first = json.loads((folder / f"{row['old']}.told").read_text())["losses"]
        curve = first + told["after"]["losses"]
        row["worst"] = max(abs(a / b - 1) for a, b in zip(curve, single, strict=True))
        row["same"] = told["after"]["losses"] == told["direct"]["losses"]
        row["read_by_process"] = [sum(n for _, n in x) for x in told["direct"]["read"]]
        row["last"] = curve[-1]
    return rows


def main() -> int:
    """Train, count and write; the status is 1 if losses or bytes differ."""
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=KILLS)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = moved(folder)
        (folder / "T2 P2").rename(folder / "state")
        plan = folder / "T2 P2 D2" / "plan.json"
        progress("killing")
        killed = kills(folder, plan, chosen.kills)
    for row in rows:
        read = row["read_by_process"]
        row["agrees"] &= all(
            abs(a - b) < 1 for a, b in zip(read, row["rank_predicted_bytes"], strict=True)
        )
    good = [x for x in rows if x["agrees"] and x["same"] and x["worst"] < TOLERANCE]
    sections = [
        f"The transformer of `examples/torch_transformer.py`, float32 with Adam: "
        f"{resharding.STEPS} steps on 4 processes, then {resharding.STEPS} on 2 that read the "
        "state under another plan. Bytes: what each process of the new plan reads of the old "
        "plan's files, counted where it reads, and predicted by `parenvs/elastic/movement.py`. "
        "Difference: largest relative one to the losses of 40 steps on one device without a "
        "break. The losses after `parenvs reshard` and after reading the old plan's files "
        f"directly are the same numbers. As predicted, the same and within {TOLERANCE:g}: "
        f"{len(good)} of {len(rows)}.",
        table(
            ["4 processes", "2 processes", "bytes read", "predicted", "last loss", "difference"],
            [
                [
                    x["old"],
                    x["new"],
                    ", ".join(f"{n:,}" for n in x["read_by_process"]),
                    ", ".join(f"{n:,.0f}" for n in x["rank_predicted_bytes"]),
                    f"{x['last']:.4f}",
                    f"{x['worst']:.1e}",
                ]
                for x in rows
            ],
            left=2,
        ),
        f"`parenvs reshard` ended by SIGKILL {chosen.kills} times, spread over the second half of "
        f"its run: the checkpoint was the old one, whole, {killed['old']} times and the new one, "
        f"whole, {killed['new']} times; {killed['left']} left something under a temporary name.",
    ]
    publish("reshard", sections, {"moves": rows, "kills": killed}, chosen.out)
    return int(len(good) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
