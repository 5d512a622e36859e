"""Plans of many stages on many devices: the corridor search beside lower bounds.

python benchmarks/corridors.py
python benchmarks/corridors.py --pivots 100 --stages 8 --devices 64 --limit 0.2 --out /tmp/try
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from benchmarks.framework import (
    Case,
    Row,
    main,
    measurement,
    percent,
    processor_clock,
    spent,
    table,
)
from parenvs.agents.pipeline.bounds import lower_bound
from parenvs.agents.pipeline.corridor import prepare
from parenvs.agents.pipeline.exact import by_corridor, exact_full
from parenvs.datasets.pipeline.problems import INSIDE, draw
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.problem import Pipeline

PIVOTS, STAGES, DEVICES = (100, 1_000, 10_000), (8, 16, 32, 64), (64, 256, 1_024, 4_096, 16_384)
SIZES = ("pivots", "stages", "devices")
EXACT, SECONDS = (100, 64), 5.0
"""Most pivots and devices at which ``exact`` is asked for a bound, too, and its limit."""


def drawn(pivots: int, stages: int, devices: int, index: int) -> Pipeline:
    """Draw a problem of a cell, of servers of 8; one that has no plan is drawn anew."""
    sizes = {"pivots": (pivots,) * 2, "devices": (devices,) * 2, "stages": (stages,) * 2}
    ranges = replace(INSIDE, devices_per_server=(8,), **sizes)
    rng = np.random.default_rng([pivots, stages, devices, index])
    while True:
        with suppress(ParenvsError):
            return draw(rng, ranges=ranges).pipeline.with_stages(stages)


def measure(pivots: int, stages: int, devices: int, index: int, limit: float) -> Row:
    """Plan a problem, and bound it."""
    pipeline = drawn(pivots, stages, devices, index)
    row: Row = {"corridor": {}}
    with processor_clock():
        with spent(row["corridor"]):
            row["corridor"]["length"] = by_corridor(pipeline, limit).cost
        row["bound"] = {"length": lower_bound(pipeline, row["corridor"]["length"])}
        if pivots <= EXACT[0] and devices <= EXACT[1]:
            answer = exact_full(pipeline, time_limit=SECONDS)
            row["exact"] = {"length": answer.cost, "bound": answer.bound}
    return row


@measurement(
    title="Many stages on thousands of devices",
    key="pivots stages devices problem",
    about={
        "limit": "processor seconds of each search that takes a limit",
        "problems": "of each number of pivots, stages and devices",
    },
)
def corridors(
    pivots: tuple[int, ...] = PIVOTS,
    stages: tuple[int, ...] = STAGES,
    devices: tuple[int, ...] = DEVICES,
    problems: int = 3,
    limit: float = 2.0,
) -> list[Case]:
    """Plan problems of each number of pivots, stages and devices."""
    prepare()
    return [
        (dict(zip((*SIZES, "problem"), cell, strict=True)), partial(measure, *cell, limit))
        for cell in product(pivots, stages, devices, range(problems))
        if 2 * cell[1] <= min(cell[0], cell[2])
    ]


@corridors.page
def page(rows: list[Row]) -> list[str]:
    def over(row: Row) -> float:
        bound = max(row["bound"]["length"], row.get("exact", {"bound": 0.0})["bound"])
        return float(row["corridor"]["length"] / bound - 1)

    lines = []
    for devices in sorted({row["devices"] for row in rows}):
        mine = [row for row in rows if row["devices"] == devices]
        gaps = sorted(map(over, mine))
        seconds = [row["corridor"]["seconds"] for row in mine]
        lines.append([
            f"{devices:,}", len(mine), percent(gaps[len(gaps) // 2], 1), percent(gaps[-1], 1),
            f"{np.median(seconds):.2f}", f"{max(seconds):.2f}",
        ])  # fmt: skip
    small = [row for row in rows if "exact" in row]
    proven = sum(row["exact"]["length"] <= row["exact"]["bound"] * (1 + 1e-9) for row in small)
    sizes = ", ".join(f"{name} {min(x)} to {max(x):,}" for name, x in (
        (name, [row[name] for row in rows]) for name in SIZES))  # fmt: skip
    return [
        f"{len(rows)} generated problems ({sizes}). Gaps are step times of the search over the "
        f"lower bound. The exact planner proves {proven} of the {len(small)} with at most "
        f"{EXACT[0]} pivots and {EXACT[1]} devices within {SECONDS:g} s.",
        table(["devices", "problems", "median gap", "largest gap", "median s", "most s"], lines),
    ]


if __name__ == "__main__":
    main(corridors)
