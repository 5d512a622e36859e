"""The contest's problems solved blindly: cost, bound and points beside the contest's best.

``python benchmarks/iopddl.py FOLDER --seeds 1`` solves every ``*.json.gz`` of a folder at the
contest's time limit, by one call that knows nothing of the problem but the file; seconds are those
of the process, on one thread, as other work may share the machine; with ``--threads 2`` they are
those of the clock. What is there is not run again.
"""

from __future__ import annotations

import math
import os
import resource
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
    forked,
    main,
    measurement,
    percent,
    progress,
)
from parenvs.agents.sharding import solve_iopddl
from parenvs.tasks.sharding.files import load_iopddl
from parenvs.tasks.sharding.known import known

SEARCH = 2
"""Number of the search that rows are of: 2 drops what no better plan takes, by budgets of steps."""
FOLDER = Path(os.environ.get("PARENVS_IOPDDL", ROOT.parent / "shared" / "iopddl"))


def is_enough(row: Row, share: float) -> bool:
    """Whether a row needs no longer run."""
    return row["proven"] or row["share"] >= share


@measurement(
    title="The contest's problems",
    key=lambda row: (
        row["name"],
        row.get("threads", 1),
        row["seed"],
        row["share"],
        row.get("search", 1),
    ),
    positional=("problems",),
    about={
        "problems": "folder of the contest's files",
        "share": "of the contest's limits",
        "threads": "chains of moves at once",
        "only": "letters of problems (default: all)",
    },
)
def iopddl(
    rows: Rows,
    problems: Path = FOLDER,
    seeds: int = 1,
    share: float = 1.0,
    threads: int = 1,
    only: str = "",
) -> Iterator[Case]:
    paths = sorted(problems.glob("*.json.gz"), key=lambda path: path.stat().st_size)
    for seed in range(seeds):
        for path in paths:
            name = path.name.removesuffix(".json.gz")
            done = [
                x
                for x in rows.of(name=name, seed=seed, search=SEARCH)
                if x.get("threads", 1) == threads
            ]
            if any(is_enough(x, share) for x in done) or (only and name[-1] not in only):
                continue
            key = {"name": name, "seed": seed, "share": share, "threads": threads}
            run = partial(forked, partial(solved, path, **key))  # memory of one problem
            yield {**key, "search": SEARCH}, run


def solved(path: Path, name: str, seed: int, share: float, threads: int) -> Row:
    """Solve a problem and judge its plan."""
    wall, begin = time.monotonic(), time.process_time()
    problem = load_iopddl(path)
    reading = time.process_time() - begin
    limit = known(problem.name)
    seconds = share * (limit.seconds if limit else 60)
    last = [0.0]

    def tell(status: Any) -> None:
        if status.seconds - last[0] > 20:
            last[0] = status.seconds
            progress(f"{name} seed {seed}: {status}")

    alone = threads == 1
    answer = solve_iopddl(
        problem, seconds - reading, seed, threads=threads, processor=alone, tell=tell
    )
    report = answer.report
    assert report.legal and report.cost == answer.cost, report.reasons
    return {
        "limit": seconds,
        "cost": report.cost,
        "bound": round(answer.bound),
        "proven": answer.proven,
        "peak": report.peak,
        "processor": time.process_time() - begin,
        "wall": time.monotonic() - wall,
        "load": os.getloadavg()[0],
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "note": answer.notes[0],
    }


def of(row: Row, form: str) -> str:
    """What is known of a row's problem; empty if nothing is."""
    problem = known(row["name"])
    return form.format(problem) if problem else ""


def points(row: Row) -> float:
    """Those of the contest: the best team's cost over ours."""
    problem = known(row["name"])
    return problem.contest / row["cost"] if problem and problem.contest else math.nan


COLUMNS: list[Column] = [
    ("problem", lambda row: row["name"].removeprefix("asplos-2025-iopddl-")),
    ("seed", "{seed}"),
    ("threads", lambda row: row.get("threads", 1)),
    ("search", lambda row: row.get("search", 1)),
    ("cost", "{cost:,}"),
    ("bound", "{bound:,}"),
    ("gap", lambda row: percent((row["cost"] - row["bound"]) / row["cost"], 3)),
    ("contest's best", lambda row: of(row, "{0.contest:,}")),
    ("best known", lambda row: of(row, "{0.best:,}")),
    ("bound known", lambda row: of(row, "{0.bound:,}")),
    ("points", lambda row: f"{points(row):.4f}"),
    (
        "limit, of the contest's (s)",
        lambda row: f"{row['limit']:g}" + of(row, " of {0.seconds}"),
    ),
    ("processor (s)", "{processor:.0f}"),
    ("wall (s)", "{wall:.0f}"),
    ("load", "{load:.1f}"),
    ("MB", "{megabytes:,.0f}"),
]


@iopddl.page
def page(rows: list[Row]) -> list[str]:
    def of_problem(row: Row) -> tuple[Any, ...]:
        return row["name"], row.get("threads", 1), row["share"], row.get("search", 1), row["seed"]

    rows = sorted(rows, key=of_problem)
    now = [row for row in rows if row.get("search", 1) == SEARCH]
    return [
        "One thread of search within the stated limit, in seconds of the process, reading "
        "and reduction included; other work shared the machine (load). With two threads the "
        "limit is by the clock. The contest's limits are for 8 cores. Rows of search 1 are of the "
        "search before strategies that no better plan can take left it, and before budgets of "
        "steps. Compiled loops were on the disk: numba's first compilation, some seven seconds, is "
        "in no limit of search 2. Points are "
        f"the contest's: best team's cost / cost; of search {SEARCH} "
        f"{sum(map(points, now)):.4f} of {len(now)}.",
        columns(rows, COLUMNS),
    ]


if __name__ == "__main__":
    main(iopddl)
