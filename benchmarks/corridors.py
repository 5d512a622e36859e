"""Plans of many stages on many devices: the corridor search beside searches over points.

python benchmarks/corridors.py
python benchmarks/corridors.py --pivots 100 --stages 8 --devices 64 --limit 0.2 --out /tmp/try
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.framework import Column, Row, columns, main, measurement, percent, spent, table
from parenvs.agents.compiled import COMPILED
from parenvs.agents.pipeline.corridor import prepare
from parenvs.agents.pipeline.exact import by_corridor
from parenvs.agents.pipeline.points import exact_points
from parenvs.datasets.pipeline.generators import INSIDE, draw
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.points import PointSpace

PIVOTS, STAGES, DEVICES = (100, 1_000, 10_000), (8, 16, 32, 64), (64, 256, 1_024, 4_096, 16_384)
OTHERS = ("exact-points",)


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
                row["bound"] = answer.bound
            else:
                space = PointSpace.build(pipeline, by_network=True)
                answer = exact_points(space, time_limit=limit)
        row[name]["length"] = answer.cost
    return row


@measurement(
    title="Many stages on thousands of devices",
    about={"limit": "seconds of each search that takes a limit"},
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
                row = measure(n, s, d, limit) if 2 * s <= min(n, d) else None
                if row is not None:
                    yield row | {"compiled": COMPILED}


@corridors.page
def page(rows: list[Row], limit: float) -> list[str]:
    summary = []
    for name in OTHERS:
        over = np.array([row[name]["length"] / row["corridor"]["length"] for row in rows])
        summary.append([
            name, f"{np.median(over):.4f}", f"{over.max():.4f}", f"{over.min():.4f}",
            int((over > 1 + 1e-9).sum()), int((over < 1 - 1e-9).sum()), len(over),
        ])  # fmt: skip
    told: list[Column] = [
        ("pivots", "{pivots}"),
        ("stages", "{stages}"),
        ("devices", "{devices}"),
        ("corridor (s a step)", "{corridor[length]:.4g}"),
        ("above the bound", lambda row: percent(row["corridor"]["length"] / row["bound"] - 1, 1)),
        ("processor s", "{corridor[seconds]:.2f}"),
        *((f"{name} / corridor",
           lambda row, name=name: f"{row[name]['length'] / row['corridor']['length']:.4f}")
          for name in OTHERS),
        *((f"s, {name}", f"{{{name}[seconds]:.2f}}") for name in OTHERS),
    ]  # fmt: skip
    loops = "compiled (extra `fast`)" if rows[0]["compiled"] else "not compiled"
    return [
        f"One generated problem a row; searches stop after {limit:g} s; loops of the corridor "
        f"search are {loops}. Ratios are lengths of a step over that of `--agent corridor`: above "
        "1, its plan is the shorter one. `exact-points` proves the optimum of 128 points and 64 "
        "units where it ends in time. The bound is that of the work alone, so that most of the "
        "distance to it is not known to be the plan's.",
        table(["planner", "median", "greatest", "least", "longer", "shorter", "of"], summary),
        columns(rows, told, left=0),
    ]


if __name__ == "__main__":
    main(corridors)
