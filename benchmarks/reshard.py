"""A state that moves: trained on 4 processes, resharded, trained on by 2; bytes as predicted.

Needs the extra ``torch``. Every plan of 4 processes goes to every plan of 2.

    python benchmarks/reshard.py
    python benchmarks/reshard.py --old "T2 P2" "P2 D2" --kills 4    # of these plans

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
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.framework import (
    ROOT,
    Case,
    Column,
    Row,
    Rows,
    columns,
    main,
    measurement,
    progress,
)
from parenvs.exports.checkpoint import reshard as resharding
from parenvs.exports.checkpoint.folder import Checkpoint
from parenvs.files import write_text
from resharding import FOUR, STEPS, TWO, example, job, plan_of, train
from resharding import alone as alone_losses

TOLERANCE = 1e-4
KILLS = 6
BUILD = Path("build/reshard")


def kill(folder: Path, plan: Path, number: int) -> dict[str, int]:
    """Kill the command at times spread over its run; the checkpoint is as it was or new, whole."""
    command = [sys.executable, "-m", "parenvs", "reshard", "state", "--new", str(plan)]
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


def moved(folder: Path, olds: tuple[str, ...], rows: Rows) -> Iterator[Case]:
    """Train, reshard and train on, for every pair of plans that is missing."""
    graph = example.read()
    graph.save(folder / "net.npz")
    name = str(folder / "net.npz")
    plans = [
        {key: plan_of(graph, name, n, *x) for key, x in some.items()}
        for n, some in ((4, FOUR), (2, TWO))
    ]
    pairs = [(old, new) for old in olds for new in plans[1] if not rows.of(old=old, new=new)]
    trained(folder, 4, {
        old: {"plan": plans[0][old], "save": folder / old} for old, _ in pairs
    })  # fmt: skip
    found, jobs = {}, {}
    for old, new in pairs:
        out = folder / f"{old} {new}"
        shutil.rmtree(out, ignore_errors=True)
        found[old, new] = resharding.reshard(folder / old, plans[1][new], plans[0][old], out, graph)
        # of the old plan's files, and of the new one's
        for kind, source in (("direct", folder / old), ("after", out)):
            jobs[f"{old} {new} {kind}"] = {"plan": plans[1][new], "load": source}
    trained(folder, 2, jobs)
    single = alone(folder) if pairs else []
    for old, new in pairs:
        told = {kind: read(folder / f"{old} {new} {kind}.told") for kind in ("direct", "after")}
        curve = read(folder / f"{old}.told")["losses"] + told["after"]["losses"]
        row = found[old, new].to_json()
        row["worst"] = max(abs(a / b - 1) for a, b in zip(curve, single, strict=True))
        row["same"] = told["after"]["losses"] == told["direct"]["losses"]
        row["read_by_process"] = [sum(n for _, n in x) for x in told["direct"]["read"]]
        row["agrees"] &= all(
            abs(a - b) < 1
            for a, b in zip(row["read_by_process"], row["rank_predicted_bytes"], strict=True)
        )
        row["last"] = curve[-1]
        yield {"old": old, "new": new}, partial(dict, row)


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


@measurement(
    title="A state that is resharded",
    key=lambda row: (row.get("old", "kills"), row.get("new")),
    wrong=lambda rows: [row for row in rows if "old" in row and not is_good(row)],
    among={"old": FOUR},
    about={"old": "plans of 4 processes", "build": "folder of the trainings"},
)
def reshard(
    rows: Rows, old: tuple[str, ...] = tuple(FOUR), kills: int = KILLS, build: Path = BUILD
) -> Iterator[Case]:
    folder = build.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    yield from moved(folder, old, rows)
    if kills:
        yield {"kills": kills}, partial(killed, folder, old[0], kills)


def killed(folder: Path, old: str, number: int) -> Row:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copytree(folder / old, place / "state")
        return {"kills": kill(place, folder / f"{old} D2" / "plan.json", number)}


def is_good(row: Row) -> bool:
    return row["agrees"] and row["same"] and row["worst"] < TOLERANCE


COLUMNS: list[Column] = [
    ("4 processes", "{old}"),
    ("2 processes", "{new}"),
    ("bytes read", lambda row: ", ".join(f"{n:,}" for n in row["read_by_process"])),
    ("predicted", lambda row: ", ".join(f"{n:,.0f}" for n in row["rank_predicted_bytes"])),
    ("last loss", "{last:.4f}"),
    ("difference", "{worst:.1e}"),
]


@reshard.page
def page(rows: list[Row], old: tuple[str, ...]) -> list[str]:
    moves = [row for row in rows if row.get("old") in old]
    sections = [
        f"The transformer of `examples/torch_transformer.py`, float32 with Adam: "
        f"{STEPS} steps on 4 processes, then {STEPS} on 2 that read the "
        "state under another plan. Bytes: what each process of the new plan reads of the old "
        "plan's files, counted where it reads, and predicted by "
        "`parenvs/tasks/elastic/movement.py`. "
        "Difference: largest relative one to the losses of 40 steps on one device without a "
        "break. The losses after `parenvs reshard` and after reading the old plan's files "
        f"directly are the same numbers. As predicted, the same and within {TOLERANCE:g}: "
        f"{sum(map(is_good, moves))} of {len(moves)}.",
        columns(moves, COLUMNS, left=2),
    ]
    for found in [row["kills"] for row in rows if "kills" in row]:
        sections += [
            f"`parenvs reshard` ended by SIGKILL {found['old'] + found['new']} times, spread "
            "over the second half of its run: the checkpoint was the old one, whole, "
            f"{found['old']} times and the new one, whole, {found['new']} times; "
            f"{found['left']} left something under a temporary name."
        ]
    return sections


if __name__ == "__main__":
    main(reshard)
