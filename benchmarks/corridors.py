"""Plans of many stages on many devices: the corridor search beside searches over points.

python benchmarks/corridors.py
python benchmarks/corridors.py --pivots 100 --stages 8 --devices 64 --limit 0.2 --out /tmp/try
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.framework import (
    Column,
    Row,
    columns,
    main,
    measurement,
    percent,
    processor_clock,
    spent,
    table,
)
from parenvs.agents.compiled import COMPILED
from parenvs.agents.pipeline.bounds import least_length
from parenvs.agents.pipeline.corridor import prepare
from parenvs.agents.pipeline.exact import by_corridor, exact_full
from parenvs.agents.pipeline.points import exact_points
from parenvs.agents.pipeline.relaxation import lower_bound
from parenvs.datasets.pipeline.generators import INSIDE, draw
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.points import PointSpace

PIVOTS, STAGES, DEVICES = (100, 1_000, 10_000), (8, 16, 32, 64), (64, 256, 1_024, 4_096, 16_384)
OTHERS = ("exact-points",)
EXACT, SECONDS = (100, 64), 5.0
"""Most pivots and devices at which ``exact-full`` is asked for a bound, too, and its limit."""


def measure(pivots: int, stages: int, devices: int, limit: float) -> Row | None:
    """Plan one generated problem by all planners; None where none that is drawn has a plan."""
    sizes = {"pivots": (pivots,) * 2, "devices": (devices,) * 2, "stages": (stages,) * 2}
    rng = np.random.default_rng([pivots, stages, devices])
    try:
        ranges = replace(INSIDE, devices_per_server=(8,), **sizes)
        pipeline = draw(rng, ranges=ranges).pipeline.with_stages(stages)
    except ParenvsError:
        return None
    row: Row = {"pivots": pivots, "stages": stages, "devices": devices}
    for name in ("corridor", *OTHERS):
        row[name] = {}
        with spent(row[name]):
            if name == "corridor":
                answer = by_corridor(pipeline, limit)
            else:
                space = PointSpace.build(pipeline, by_network=True)
                answer = exact_points(space, time_limit=limit)
        row[name]["length"] = answer.cost
    row["work"], row["bound"] = least_length(pipeline), {}
    with spent(row["bound"]):
        row["bound"]["length"] = lower_bound(pipeline, row["corridor"]["length"])
    if pivots <= EXACT[0] and devices <= EXACT[1]:
        answer = exact_full(pipeline, time_limit=SECONDS)
        row["exact"] = {"length": answer.cost, "bound": answer.bound}
    return row


@measurement(
    title="Many stages on thousands of devices",
    about={"limit": "processor seconds of each search that takes a limit"},
)
def corridors(
    pivots: tuple[int, ...] = PIVOTS,
    stages: tuple[int, ...] = STAGES,
    devices: tuple[int, ...] = DEVICES,
    limit: float = 2.0,
) -> Iterator[Row]:
    """Plan a problem of each number of pivots, stages and devices."""
    prepare()
    for n in pivots:
        for s in stages:
            for d in devices:
                with processor_clock():
                    row = measure(n, s, d, limit) if 2 * s <= min(n, d) else None
                if row is not None:
                    yield row | {"compiled": COMPILED}


@corridors.page
def page(rows: list[Row], limit: float) -> list[str]:
    summary = []
    for name in OTHERS:
        ratios = np.array([row[name]["length"] / row["corridor"]["length"] for row in rows])
        summary.append([
            name, f"{np.median(ratios):.4f}", f"{ratios.max():.4f}", f"{ratios.min():.4f}",
            int((ratios > 1 + 1e-9).sum()), int((ratios < 1 - 1e-9).sum()), len(ratios),
        ])  # fmt: skip
    told: list[Column] = [
        ("pivots", "{pivots}"),
        ("stages", "{stages}"),
        ("devices", "{devices}"),
        ("corridor (s a step)", "{corridor[length]:.4g}"),
        ("above the bound", lambda row: percent(over_bound(row), 1)),
        ("above that of the work", lambda row: percent(over(row, row["work"]), 1)),
        ("processor s", "{corridor[seconds]:.2f}"),
        ("s, bound", "{bound[seconds]:.2f}"),
        *((f"{name} / corridor",
           lambda row, name=name: f"{row[name]['length'] / row['corridor']['length']:.4f}")
          for name in OTHERS),
        *((f"s, {name}", f"{{{name}[seconds]:.2f}}") for name in OTHERS),
    ]  # fmt: skip
    loops = "compiled (extra `fast`)" if rows[0]["compiled"] else "not compiled"
    gaps = np.array([over_bound(row) for row in rows])
    before = np.array([over(row, row["work"]) for row in rows])
    small = [
        f"{row['stages']} stages {percent(row['exact']['length'] / row['exact']['bound'] - 1, 1)}"
        for row in rows
        if "exact" in row
    ]
    exact = (
        f" `exact-full` with {SECONDS:g} s, at most {EXACT[0]} pivots and {EXACT[1]} devices: "
        f"above its bound {', '.join(small)}."
    )
    return [
        f"One generated problem a row; searches stop after {limit:g} processor s; loops of the "
        f"corridor search are {loops}. Ratios are lengths of a step over that of `--agent "
        "corridor`: above 1, its plan is the shorter one. `exact-points` proves the optimum of 128 "
        "points and 64 units where it ends in time. The bound is that of all cuts with a price of "
        "devices (`agents/pipeline/relaxation.py`), of `exact-full` where that is greater; beside "
        "it that of the work alone. The plans are "
        f"{percent(float(np.median(gaps)), 1)} above the bound in the median, at most "
        f"{percent(float(gaps.max()), 1)}; above that of the work "
        f"{percent(float(np.median(before)), 1)} and {percent(float(before.max()), 1)}."
        + (exact if small else ""),
        table(["planner", "median", "greatest", "least", "longer", "shorter", "of"], summary),
        columns(rows, told, left=0),
    ]


def over(row: Row, bound: float) -> float:
    """By which share the plan is longer than a bound."""
    return float(row["corridor"]["length"] / bound) - 1


def over_bound(row: Row) -> float:
    """By which share it is longer than the greatest bound."""
    return over(row, max(row["bound"]["length"], row.get("exact", {"bound": 0.0})["bound"]))


if __name__ == "__main__":
    main(corridors)
