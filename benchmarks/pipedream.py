"""PipeDream's objective by our planner and by PipeDream's own optimizer, on its own profiles."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator

from benchmarks.framework import Column, Row, columns, main, measurement, numbers
from benchmarks.pipelines import PROFILES
from parenvs import load_profile
from parenvs.agents.pipeline.pipedream import pipedream_objective
from parenvs.cluster import PRESETS
from parenvs.errors import ParenvsError

ANSWERS = PROFILES / "pipedream_optimizer.csv"
DIGITS = 6
"""Digits behind the point in the published answers."""


@measurement()
def pipedream() -> Iterator[Row]:
    if not ANSWERS.exists():
        raise ParenvsError(f"{ANSWERS}: not there; this needs PipeDream's published answers")
    with ANSWERS.open(encoding="utf-8") as stream:
        for line in csv.DictReader(line for line in stream if not line.startswith("#")):
            yield compare(line)


def compare(line: dict[str, str]) -> Row:
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


def difference(row: Row, which: str = "") -> float:
    return row[f"ours{which}"] - row[f"theirs{which}"]


COLUMNS: list[Column] = [
    ("profile", "{profile}"),
    ("machines", "{devices}"),
    ("GB/s", "{bandwidth:g/1e9}"),
    ("ours (s)", f"{{ours:.{DIGITS}f}}"),
    ("theirs (s)", f"{{theirs:.{DIGITS}f}}"),
    ("difference (s)", lambda row: f"{difference(row):+.1e}"),
    ("data parallel, ours (s)", f"{{ours_data_parallel:.{DIGITS}f}}"),
    ("theirs (s)", f"{{theirs_data_parallel:.{DIGITS}f}}"),
    ("difference (s)", lambda row: f"{difference(row, '_data_parallel'):+.1e}"),
    ("machines of each stage", lambda row: numbers(row["machines"])),
    ("first pivots", lambda row: numbers(row["cuts"])),
    ("planner (s)", "{planner_seconds:.3f}"),
]


@pipedream.page
def page(rows: list[Row]) -> list[str]:
    away = [abs(difference(row, which)) for row in rows for which in ("", "_data_parallel")]
    equal = sum(x <= 0.5000001 * 10**-DIGITS for x in away)
    return [
        "Seconds a minibatch of the slowest stage or link, machines all equally far apart, no "
        "memory limit.",
        columns(rows, COLUMNS),
        f"{equal} of {len(away)} values equal to the {DIGITS} published digits; "
        f"largest difference {max(away):.1e} s.",
    ]


if __name__ == "__main__":
    main(pipedream)
