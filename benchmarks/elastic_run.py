"""An hour of a public trace in some minutes: a small GPT on local processes that come and go.

    python benchmarks/elastic_run.py

Needs the extra ``torch``. Nodes are every fourth of the trace p3, eight at a time at most; each is
a process, and is killed in the middle of a step when it leaves. A run that was stopped goes on from
``build/elastic_run``.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.framework import ROOT, Case, Row, main, measurement, progress
from parenvs.files import write_text
from parenvs.instances import data_folder
from parenvs.jobs.driver import CORE
from parenvs.jobs.journal import Job
from parenvs.jobs.run import prepare
from parenvs.view.page import write

BUILD = Path("build/elastic_run")
PICTURE = ROOT / "docs" / "elastic-run.png"
SHARE, HOUR, NODES = 4, 6, 8
NETWORK = 6e7
"""Bytes a second between nodes: half a gigabit."""
STEP_SECONDS, SPEED, BATCH = 0.8, 12.0, 24


def hour() -> str:
    """An hour of the trace as a file's text: nodes that are there come at its beginning."""
    path = data_folder() / "measured" / "aws-p3-spot.csv"
    with path.open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if int(row["node"]) % SHARE == 0]
    begin, there, lines = HOUR * 3600.0, [], []
    for row in rows:
        seconds = float(row["seconds"]) - begin
        if seconds < 0 and row["event"] == "add":
            there.append(row["node"])
        elif seconds < 0:
            there.remove(row["node"])
        elif seconds < 3600:
            lines.append(f"{seconds:g},{row['event']},{row['node']}")
    first = [f"0,add,{node}" for node in there]
    return "\n".join(["seconds,event,node", *first, *lines, "3599,add,end"]) + "\n"


def driven(policy: str, build: Path, again: bool) -> Row:
    """Run the hour, or go on with it, and compare with one process that nothing disturbs."""
    if again:
        shutil.rmtree(build / policy, ignore_errors=True)
    build.mkdir(parents=True, exist_ok=True)
    trace, cluster = build / "p3-hour.csv", build / "cluster.json"
    write_text(trace, hour())
    device = {
        key: getattr(CORE, key) for key in ("name", "peak_flops", "memory_bw", "memory_bytes")
    }
    figures = {"servers": NODES, "devices_per_server": 1, "intra_bw": NETWORK, "inter_bw": NETWORK}
    write_text(cluster, json.dumps({**figures, "device": device}))
    source = f"{ROOT / 'examples' / 'elastic_transformer.py'}:build"
    job = Job(
        str(trace), source, policy, NODES, batch=BATCH, speed=SPEED, step_seconds=STEP_SECONDS,
        cluster=str(cluster),
    )  # fmt: skip
    happened = prepare(job, build / policy).drive(progress, verify=True)
    write(PICTURE, happened.figure)
    return {**happened.to_json(), "page": happened.markdown()}


def pace(row: Row) -> str:
    """Seconds of a step outside of changes, lost ones among them, beside the predicted ones."""
    happened, predicted = row["happened"], row["predicted"]
    took = (happened["seconds"] - happened["change_seconds"]) / max(
        happened["steps"] + happened["steps_lost"], 1
    )
    known = (predicted["seconds"] - predicted["change_seconds"]) / max(predicted["steps"], 1)
    return (
        f"Outside of changes a step took {took:.2f} s on the mean, lost ones among them, where "
        f"{known:.2f} s were predicted. Up to {NODES} processes share the cores named above, with "
        "whatever else ran there, so seconds and numbers of steps say little of nodes of their own."
    )


@measurement(
    title="An hour of a trace on eight processes",
    key="policy",
    wrong=lambda rows: [
        row for row in rows if not row["samples_in_order"] or row["worst_difference"] > 1e-4
    ],
    about={"policy": "who chooses", "build": "folder of the run"},
)
def elastic_run(again: bool, policy: str = "fastest", build: Path = BUILD) -> Iterator[Case]:
    yield {"policy": policy}, partial(driven, policy, build.absolute(), again)


@elastic_run.page
def page(rows: list[Row]) -> list[str]:
    sections = [
        f"The seventh hour of the trace p3, every fourth node, {NODES} at a time at most, at "
        f"{SPEED:g} seconds of the trace a second: `examples/elastic_transformer.py`, batches of "
        f"{BATCH}, on processes of one machine. Each node that leaves is killed in the middle of "
        "a step. Processes wait until a step has lasted as long as predicted for nodes of their "
        f"own: {STEP_SECONDS:g} s on one, and in proportion to the judge's on cores with a network "
        "of half a gigabit. Predicted seconds of changes are the constants of "
        "`parenvs/jobs/driver.py`; predicted bytes those of the tables that policies see."
    ]
    for row in rows:
        sections += [f"## {row['policy']}", *row["page"], pace(row)]
    return sections


if __name__ == "__main__":
    main(elastic_run)
