"""The contest's problems solved blindly: cost, bound and points beside the contest's best.

``python benchmarks/iopddl.py FOLDER --seeds 1`` solves every ``*.json.gz`` of a folder at the
contest's time limit, by one call that knows nothing of the problem but the file; seconds are those
of the process, on one thread, as other work may share the machine; with ``--threads 2`` they are
those of the clock. Rows are kept in ``results/iopddl.jsonl``; what is there is not run again.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path

from benchmarks.common import ROOT, parser, percent, progress, publish, table
from parenvs.agents.sharding import solve_iopddl
from parenvs.agents.sharding.compiled import COMPILED
from parenvs.tasks.sharding.files import load_iopddl
from parenvs.tasks.sharding.known import known

FOLDER = Path(os.environ.get("PARENVS_IOPDDL", ROOT.parent / "shared" / "iopddl"))


def row(path: Path, seed: int, share: float, threads: int) -> dict:
    """Solve a problem and judge its plan."""
    wall, begin = time.monotonic(), time.process_time()
    problem = load_iopddl(path)
    reading = time.process_time() - begin
    limit = known(problem.name)
    seconds = share * (limit.seconds if limit else 60)
    last = [0.0]

    def tell(status):
        if status.seconds - last[0] > 20:
            last[0] = status.seconds
            progress(f"{problem.name} seed {seed}: {status}")

    alone = threads == 1
    answer = solve_iopddl(
        problem, seconds - reading, seed, threads=threads, processor=alone, tell=tell
    )
    report = answer.report
    assert report.legal and report.cost == answer.cost, report.reasons
    return {
        "name": problem.name,
        "seed": seed,
        "share": share,
        "threads": threads,
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
        "compiled": COMPILED,
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--share", type=float, default=1.0, help="of the contest's limits")
    arguments.add_argument("--threads", type=int, default=1, help="chains of moves at once")
    arguments.add_argument("--only", default="", help="letters of problems (default: all)")
    given = arguments.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    store = given.out / "iopddl.jsonl"
    rows = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    done = {
        (found["name"], found["seed"])
        for found in rows
        if found.get("threads", 1) == given.threads
        if found["proven"] or found["share"] >= given.share
    }
    paths = sorted(given.folder.glob("*.json.gz"), key=lambda path: path.stat().st_size)
    for seed in range(given.seeds):
        for path in paths:
            name = path.name.removesuffix(".json.gz")
            if (name, seed) in done or (given.only and name[-1] not in given.only):
                continue
            if os.fork() == 0:  # memory is that of one problem
                with store.open("a") as stream:
                    stream.write(json.dumps(row(path, seed, given.share, given.threads)) + "\n")
                os._exit(0)
            if os.wait()[1]:
                raise SystemExit(f"{name} failed")
    rows = [json.loads(line) for line in store.read_text().splitlines()]
    longest = {
        (found["name"], found.get("threads", 1), found["seed"]): found
        for found in sorted(rows, key=_share)
    }
    rows = [longest[key] for key in sorted(longest)]
    lines, points = [], 0.0
    for found in rows:
        of = known(found["name"])
        best = of.contest if of else None
        score = best / found["cost"] if best else float("nan")
        points += score
        gap = (found["cost"] - found["bound"]) / found["cost"]
        lines.append(
            [
                found["name"].removeprefix("asplos-2025-iopddl-"),
                found["seed"],
                found.get("threads", 1),
                f"{found['cost']:,}",
                f"{found['bound']:,}",
                percent(gap, 3),
                f"{best:,}" if best else "",
                f"{of.best:,}" if of else "",
                f"{of.bound:,}" if of else "",
                f"{score:.4f}",
                f"{found['limit']:g} of {of.seconds}" if of else f"{found['limit']:g}",
                f"{found['processor']:.0f}",
                f"{found['wall']:.0f}",
                f"{found['load']:.1f}",
                f"{found['megabytes']:,.0f}",
            ]
        )
    heads = [
        "problem", "seed", "threads", "cost", "bound", "gap", "contest's best", "best known",
        "bound known", "points", "limit, of the contest's (s)",
        "processor (s)", "wall (s)", "load", "MB",
    ]  # fmt: skip
    publish(
        "iopddl",
        [
            "One thread of search within the stated limit, in seconds of the process, reading "
            "and reduction included; other work shared the machine (load). With two threads the "
            "limit is by the clock. The contest's limits are for 8 cores; some rows were given "
            "less, where more changes the bound at most. Points are the contest's: best team's "
            f"cost / cost; sum {points:.4f} of {len(rows)}.",
            table(heads, lines),
        ],
        {},
        given.out,
    )


def _share(found: dict) -> float:
    """Share of the contest's limit that a row was given."""
    return found["share"]


if __name__ == "__main__":
    main()
