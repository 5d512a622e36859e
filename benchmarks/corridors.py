"""Plans of many stages on many devices: the corridor search beside searches over points.

python benchmarks/corridors.py
python benchmarks/corridors.py --pivots 100 --stages 8 --devices 64 --limit 0.2 --out /tmp/try
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from benchmarks.framework import (
    Case,
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
from parenvs.agents.pipeline.bounds import least_length
from parenvs.agents.pipeline.corridor import prepare
from parenvs.agents.pipeline.exact import by_corridor, exact_full
from parenvs.agents.pipeline.points import exact_points
from parenvs.agents.pipeline.relaxation import lower_bound
from parenvs.datasets.pipeline.problems import INSIDE, draw
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import PointSpace

PIVOTS, STAGES, DEVICES = (100, 1_000, 10_000), (8, 16, 32, 64), (64, 256, 1_024, 4_096, 16_384)
SIZES = ("pivots", "stages", "devices")
OTHERS = ("exact-points",)
EXACT, SECONDS = (100, 64), 5.0
"""Most pivots and devices at which ``exact-full`` is asked for a bound, too, and its limit."""


def drawn(pivots: int, stages: int, devices: int, index: int) -> Pipeline:
    """Draw a problem of a cell, of servers of 8; one that has no plan is drawn anew."""
    sizes = {"pivots": (pivots,) * 2, "devices": (devices,) * 2, "stages": (stages,) * 2}
    ranges = replace(INSIDE, devices_per_server=(8,), **sizes)
    rng = np.random.default_rng([pivots, stages, devices, index])
    while True:
        with suppress(ParenvsError):
            return draw(rng, ranges=ranges).pipeline.with_stages(stages)


def measure(pivots: int, stages: int, devices: int, index: int, limit: float) -> Row:
    """Plan a problem by all planners, and bound it."""
    with processor_clock():
        return _measured(drawn(pivots, stages, devices, index), pivots, devices, limit)


def _measured(pipeline: Pipeline, pivots: int, devices: int, limit: float) -> Row:
    row: Row = {}
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
def page(rows: list[Row], limit: float) -> list[str]:
    summary = []
    for name in OTHERS:
        ratios = _ratios(rows, name)
        summary.append([
            name, f"{np.median(ratios):.4f}", f"{ratios.max():.4f}", f"{ratios.min():.4f}",
            int((ratios > 1 + 1e-9).sum()), int((ratios < 1 - 1e-9).sum()), len(ratios),
        ])  # fmt: skip
    cells: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in SIZES), []).append(row)

    def seconds(name: str) -> Callable[[list[Row]], str]:
        return lambda cell: f"{max(row[name]['seconds'] for row in cell):.2f}"

    told: list[Column] = [
        *((name, lambda cell, name=name: cell[0][name]) for name in SIZES),
        ("problems", len),
        ("above the bound", lambda cell: _shares(over_bound(cell))),
        ("above that of the work", lambda cell: _shares(over(cell, [x["work"] for x in cell]))),
        ("s, corridor", seconds("corridor")),
        ("s, bound", seconds("bound")),
        *((f"{name} / corridor", lambda cell, name=name: _least_to_most(_ratios(cell, name), ".3f"))
          for name in OTHERS),
        *((f"s, {name}", seconds(name)) for name in OTHERS),
    ]  # fmt: skip
    gaps, before = over_bound(rows), over(rows, [row["work"] for row in rows])
    small = [row for row in rows if "exact" in row]
    proven = sum(row["exact"]["length"] <= row["exact"]["bound"] * (1 + 1e-9) for row in small)
    exact = (
        f" `exact-full` proves {proven} of the {len(small)} with at most {EXACT[0]} pivots and "
        f"{EXACT[1]} devices in {SECONDS:g} s."
    )
    return [
        f"Generated problems; searches stop after {limit:g} processor s, and the most seconds of a "
        "row's problems are shown. Ratios are lengths of a step over that of `--agent "
        "corridor`: above 1, its plan is the shorter one. `exact-points` proves the optimum of 128 "
        "points and 64 units where it ends in time. The bound is that of all cuts with a price of "
        "devices (`agents/pipeline/relaxation.py`), of `exact-full` where that is greater; beside "
        "it that of the work alone. The plans are "
        f"{percent(float(np.median(gaps)), 1)} above the bound in the median, at most "
        f"{percent(float(gaps.max()), 1)}; above that of the work "
        f"{percent(float(np.median(before)), 1)} and {percent(float(before.max()), 1)}."
        + (exact if small else ""),
        table(["planner", "median", "greatest", "least", "longer", "shorter", "of"], summary),
        columns(list(cells.values()), told, left=0),
    ]


def over(rows: list[Row], bounds: list[float]) -> np.ndarray:
    """By which shares plans are longer than bounds."""
    return np.array([row["corridor"]["length"] for row in rows]) / bounds - 1


def over_bound(rows: list[Row]) -> np.ndarray:
    """By which shares they are longer than the greatest bounds."""
    exact = [row.get("exact", {"bound": 0.0})["bound"] for row in rows]
    return over(rows, [max(row["bound"]["length"], x) for row, x in zip(rows, exact, strict=True)])


def _ratios(rows: list[Row], name: str) -> np.ndarray:
    return np.array([row[name]["length"] / row["corridor"]["length"] for row in rows])


def _least_to_most(values: np.ndarray, form: str) -> str:
    least, most = (format(value, form) for value in (values.min(), values.max()))
    return least if least == most else f"{least} to {most}"


def _shares(values: np.ndarray) -> str:
    return _least_to_most(100 * values, ".1f") + " %"


if __name__ == "__main__":
    main(corridors)
