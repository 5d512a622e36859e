"""The contest's problems solved blindly: cost, bound and points beside the contest's best.

``python benchmarks/iopddl.py FOLDER --seeds 1`` solves every ``*.json.gz`` of a folder at the
contest's time limit, by one call that knows nothing of the problem but the file; seconds are those
of the process, on one thread, as other work may share the machine; with ``--threads 2`` they are
those of the clock. What is there is not run again.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.framework import Case, Row, forked, main, measurement, percent, table
from intra_op_files import FOLDER
from parenvs.agents.sharding.planners import solve_iopddl
from parenvs.tasks.sharding.files import contest_record, load_iopddl

SEARCH = 2
"""Number of the search that rows are of: 2 drops what no better plan takes, by budgets of steps."""


def is_enough(row: Row, share: float) -> bool:
    """Whether a row needs no longer run."""
    return row["proven"] or row["share"] >= share


@measurement(
    title="The contest's problems",
    key="name threads seed share search",
    positional=("problems",),
    about={
        "problems": "folder of the contest's files",
        "share": "of the contest's limits",
        "threads": "chains of moves at once",
        "only": "letters of problems (default: all)",
    },
)
def iopddl(
    known: list[Row],
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
                for x in known
                if (x["name"], x["seed"], x["search"]) == (name, seed, SEARCH)
                if x.get("threads", 1) == threads
            ]
            if any(is_enough(x, share) for x in done) or (only and name[-1] not in only):
                continue
            key = {"name": name, "seed": seed, "share": share, "threads": threads}
            run = partial(forked, partial(solved, path, **key))  # memory of one problem
            yield {**key, "search": SEARCH}, run


def solved(path: Path, name: str, seed: int, share: float, threads: int) -> Row:
    """Solve a problem and judge its plan."""
    begin = time.process_time()
    problem = load_iopddl(path)
    reading = time.process_time() - begin
    limit = contest_record(problem.name)
    seconds = share * (limit.seconds if limit else 60)
    alone = threads == 1
    answer = solve_iopddl(problem, seconds - reading, seed, threads=threads, processor=alone)
    report = answer.report
    assert report.legal and report.cost == answer.cost, report.reasons
    return {
        "limit": seconds,
        "cost": report.cost,
        "bound": round(answer.bound),
        "proven": answer.proven,
        "processor": time.process_time() - begin,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def points(row: Row) -> float:
    """Those of the contest: the best team's cost over ours."""
    problem = contest_record(row["name"])
    return problem.contest / row["cost"] if problem and problem.contest else math.nan


@iopddl.page
def page(rows: list[Row]) -> list[str]:
    rows = [row for row in rows if row.get("search", 1) == SEARCH]
    lines = []
    for threads, share in sorted({(row.get("threads", 1), row["share"]) for row in rows}):
        mine = [x for x in rows if (x.get("threads", 1), x["share"]) == (threads, share)]
        gaps = sorted((row["cost"] - row["bound"]) / row["cost"] for row in mine)
        best = [contest_record(row["name"]) for row in mine]
        lines.append([
            threads, f"{share:g}", len(mine), f"{sum(map(points, mine)):.4f}",
            sum(row["proven"] for row in mine),
            sum(bool(x) and row["cost"] <= x.best for row, x in zip(mine, best, strict=True)),
            percent(gaps[len(gaps) // 2], 3), percent(gaps[-1], 2),
            f"{max(row['megabytes'] for row in mine):,.0f}",
        ])  # fmt: skip
    return [
        "Points are the contest's: the best team's cost over ours, one at most as good per run. "
        "One thread has a limit in processor seconds, reading and reduction included; more threads "
        "have it by the clock. The contest's limits are for 8 cores. The gap is that to the "
        "proven lower bound.",
        table(
            ["threads", "share of the limit", "runs", "points", "proven", "best known reached",
             "median gap", "largest gap", "most MB"],
            lines,
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(iopddl)
