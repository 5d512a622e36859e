"""PipeDream's objective by our planner and by PipeDream's own optimizer, on its own profiles."""

from __future__ import annotations

import csv
import sys
import time
from typing import Any

from benchmarks.common import PROFILES, numbers, parser, publish, table
from parenvs import load_profile
from parenvs.agents.pipeline.pipedream import pipedream_objective
from parenvs.cluster import PRESETS

ANSWERS = PROFILES / "pipedream_optimizer.csv"
DIGITS = 6
"""Digits behind the point in the published answers."""


def compare(line: dict[str, str]) -> dict[str, Any]:
    """Our answer to one line of the file, and PipeDream's."""
    # A measured profile keeps its own times, so the device of any preset will do.
    profile = load_profile(PROFILES / f"{line['profile']}.csv", PRESETS["A"])
    bandwidth = float(line["bandwidth_bytes_per_s"])
    begin = time.perf_counter()
    ours = pipedream_objective(profile, int(line["devices"]), bandwidth)
    return {
        "profile": line["profile"],
        "devices": int(line["devices"]),
        "bandwidth": bandwidth,
        "planner_seconds": time.perf_counter() - begin,
        "cuts": ours.cuts,
        "machines": ours.machines,
        "ours": ours.seconds_per_minibatch,
        "theirs": float(line["seconds_per_minibatch"]),
        "ours_data_parallel": ours.data_parallel_seconds,
        "theirs_data_parallel": float(line["data_parallel_seconds"]),
    }


def row(raw: dict[str, Any]) -> list[str]:
    """The table's row of one case."""
    cells = [raw["profile"], str(raw["devices"]), f"{raw['bandwidth'] / 1e9:g}"]
    for suffix in ("", "_data_parallel"):
        ours, theirs = raw[f"ours{suffix}"], raw[f"theirs{suffix}"]
        cells += [f"{ours:.{DIGITS}f}", f"{theirs:.{DIGITS}f}", f"{ours - theirs:+.1e}"]
    return [*cells, numbers(raw["machines"]), numbers(raw["cuts"]), f"{raw['planner_seconds']:.3f}"]


def main() -> None:
    """Solve, print and write."""
    options = parser(__doc__).parse_args()
    if not ANSWERS.exists():
        sys.exit(f"{ANSWERS}: not there; this benchmark needs PipeDream's published answers")
    with ANSWERS.open(encoding="utf-8") as stream:
        lines = csv.DictReader(line for line in stream if not line.startswith("#"))
        raws = [compare(line) for line in lines]
    away = [
        abs(raw[f"ours{x}"] - raw[f"theirs{x}"]) for raw in raws for x in ("", "_data_parallel")
    ]
    equal = sum(x <= 0.5000001 * 10**-DIGITS for x in away)
    header = ["profile", "machines", "GB/s", "ours (s)", "theirs (s)", "difference (s)"]
    header += ["data parallel, ours (s)", "theirs (s)", "difference (s)"]
    header += ["machines of each stage", "first pivots", "planner (s)"]
    sections = [
        "Seconds a minibatch of the slowest stage or link, machines all equally far apart, no "
        "memory limit.",
        table(header, map(row, raws)),
        f"{equal} of {len(away)} values equal to the {DIGITS} published digits; "
        f"largest difference {max(away):.1e} s.",
    ]
    publish("pipedream", sections, raws, options.out)


if __name__ == "__main__":
    main()
