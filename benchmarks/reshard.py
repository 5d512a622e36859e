"""A state that moves: trained on 4 processes, resharded, trained on by 2; bytes as predicted.

Needs the extra ``torch``. Every plan of 4 processes goes to every plan of 2.

    python benchmarks/reshard.py
    python benchmarks/reshard.py --old "T2 P2" "P2 D2" --kills 4    # of these plans

Every move is a line of ``reshard.jsonl``, and so are the kills; what is there is not done again.
Trainings that are done stay in ``build/reshard``, from which a run that was stopped goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, parser, progress, publish, table
from parenvs.bench import runs
from parenvs.exports.checkpoint.folder import Checkpoint
from parenvs.exports.checkpoint.reshard import reshard
from parenvs.files import write_text
from resharding import FOUR, STEPS, TWO, example, job, plan_of, train
from resharding import alone as alone_losses

TOLERANCE = 1e-4
KILLS = 6
BUILD = Path("build/reshard")


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


def moved(folder: Path, olds: list[str], done: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Train, reshard and train on, for every pair of plans that is missing."""
    graph = example.read()
    graph.save(folder / "net.npz")
    name = str(folder / "net.npz")
    plans = [
        {key: plan_of(graph, name, n, *x) for key, x in some.items()}
        for n, some in ((4, FOUR), (2, TWO))
    ]
    pairs = [(old, new) for old in olds for new in plans[1] if (old, new) not in done]
    trained(folder, 4, {
        old: {"plan": plans[0][old], "save": folder / old} for old, _ in pairs
    })  # fmt: skip
    found, jobs = {}, {}
    for old, new in pairs:
        out = folder / f"{old} {new}"
        shutil.rmtree(out, ignore_errors=True)
        found[old, new] = reshard(folder / old, plans[1][new], plans[0][old], out, graph)
        # of the old plan's files, and of the new one's
        for kind, source in (("direct", folder / old), ("after", out)):
            jobs[f"{old} {new} {kind}"] = {"plan": plans[1][new], "load": source}
    trained(folder, 2, jobs)
    single = alone(folder) if pairs else []
    for old, new in pairs:
        told = {kind: read(folder / f"{old} {new} {kind}.told") for kind in ("direct", "after")}
        curve = read(folder / f"{old}.told")["losses"] + told["after"]["losses"]
        row = {**found[old, new].to_json(), "old": old, "new": new}
        row["worst"] = max(abs(a / b - 1) for a, b in zip(curve, single, strict=True))
        row["same"] = told["after"]["losses"] == told["direct"]["losses"]
        row["read_by_process"] = [sum(n for _, n in x) for x in told["direct"]["read"]]
        row["agrees"] &= all(
            abs(a - b) < 1
            for a, b in zip(row["read_by_process"], row["rank_predicted_bytes"], strict=True)
        )
        row["last"] = curve[-1]
        yield row


def trained(folder: Path, processes: int, jobs: dict[str, dict[str, Any]]) -> None:
    """Run the trainings whose losses are not there yet, all in the same processes."""
    missing = {
        name: job(told=folder / f"{name}.told", **arguments)
        for name, arguments in jobs.items()
        if not (folder / f"{name}.told").exists()
    }
    if missing:
        progress(f"training on {processes} processes, {len(missing)} runs")
        example.start(processes, missing, train)


def alone(folder: Path) -> list[float]:
    """Losses on one device without a break."""
    path = folder / "alone.json"
    if not path.exists():
        write_text(path, json.dumps(alone_losses()))
    return read(path)


def read(path: Path) -> Any:
    """Read a file of JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a row from others."""
    return (row["old"], row["new"]) if "old" in row else ("kills",)


def main() -> int:
    """Train, count and write; the status is 1 if losses or bytes differ."""
    options = parser(__doc__)
    options.add_argument("--old", nargs="+", choices=list(FOUR), metavar="PLAN",
                         default=list(FOUR), help="plans of 4 processes")  # fmt: skip
    options.add_argument("--kills", type=int, default=KILLS)
    options.add_argument("--build", type=Path, default=BUILD, help="folder of the trainings")
    chosen = options.parse_args()
    folder, path = chosen.build.absolute(), chosen.out / "reshard.jsonl"
    for each in (folder, chosen.out):
        each.mkdir(parents=True, exist_ok=True)
    done = runs.read(path, key)
    for row in moved(folder, chosen.old, set(done)):
        runs.append(path, row)
    if ("kills",) not in done and chosen.kills:
        progress("killing")
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            shutil.copytree(folder / chosen.old[0], place / "state")
            plan = folder / f"{chosen.old[0]} D2" / "plan.json"
            runs.append(path, {"kills": kills(place, plan, chosen.kills)})
    done = runs.read(path, key)
    killed = done.pop(("kills",), {}).get("kills")
    rows = [row for row in done.values() if row["old"] in chosen.old]
    good = [x for x in rows if x["agrees"] and x["same"] and x["worst"] < TOLERANCE]
    sections = [
        f"The transformer of `examples/torch_transformer.py`, float32 with Adam: "
        f"{STEPS} steps on 4 processes, then {STEPS} on 2 that read the "
        "state under another plan. Bytes: what each process of the new plan reads of the old "
        "plan's files, counted where it reads, and predicted by `parenvs/tasks/elastic/movement.py`. "
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
    ]
    if killed:
        sections.append(
            f"`parenvs reshard` ended by SIGKILL {killed['old'] + killed['new']} times, spread "
            "over the second half of its run: the checkpoint was the old one, whole, "
            f"{killed['old']} times and the new one, whole, {killed['new']} times; "
            f"{killed['left']} left something under a temporary name."
        )
    publish("reshard", sections, None, chosen.out)
    return int(len(good) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
