"""How planners grow: seconds, memory and gap by pivots, layers and devices.

Every case is planned in a process of its own, after a small problem that loads and compiles. The
exponent of a column is the slope of log seconds over log size, from the second size on.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.framework import (
    Case,
    Row,
    columns,
    forked,
    main,
    measurement,
    processor_clock,
    progress,
    spent,
)
from parenvs.agents import planners
from parenvs.core.registry import problem
from parenvs.datasets.pipeline.problems import INSIDE, draw
from parenvs.errors import InfeasibleError, TimeLimitError

LIMIT = 10.0
"""Processor seconds of a planner."""
PIVOTS = (100, 1_000, 10_000, 100_000)
LAYERS = (10, 100, 1_000, 10_000)
DEVICES = (64, 1_024, 16_384, 131_072)


def chain(pivots: int) -> Any:
    """A drawn pipeline of 16 stages on 1,024 devices, eight a server."""
    sizes = {"pivots": (pivots,) * 2, "devices": (1_024,) * 2, "stages": (16,) * 2}
    ranges = replace(INSIDE, devices_per_server=(8,), **sizes)
    return draw(np.random.default_rng(0), ranges=ranges).pipeline


def deep(layers: int) -> Any:
    """A transformer of equal blocks, whose width falls so that it fits 1,024 devices."""
    base = problem("llama3-8b", "128x8:h100", task="hybrid", batch=1_024)
    sizes = {"hidden": 1_024, "heads": 16, "kv_heads": 16, "head_width": 64}
    shape = replace(base.model.shape, name=f"{layers}-layers", layers=layers, **sizes)
    return problem(replace(shape, feed_forward=4_096), "128x8:h100", task="hybrid", batch=1_024)


def wide(devices: int) -> Any:
    """Llama 3 70B, eight samples for every device up to 2,048 of them."""
    batch = min(8 * devices, 16_384)
    return problem("llama3-70b", f"{devices // 8}x8:h100", task="hybrid", batch=batch)


GROWS: dict[str, tuple[tuple[int, ...], Callable[[int], Any], str, Callable[[], Any]]] = {
    "pivots": (PIVOTS, chain, "search", lambda: chain(100)),
    "layers": (LAYERS, deep, "exact", lambda: deep(12)),
    "devices": (DEVICES, wide, "exact", lambda: wide(64)),
}
"""What grows -> its sizes, the problem of a size, the planner, a small problem."""


def planned(grows: str, size: int) -> Row:
    """Plan the problem of a size."""
    progress(f"{grows} {size:,}")
    return dict(forked(partial(_planned, grows, size)))


def _planned(grows: str, size: int) -> Row:
    _, make, agent, small = GROWS[grows]
    row: Row = {"planner": agent}
    with processor_clock():
        planners.plan(small(), agent=agent, time_limit=0.5)
        large = make(size)
        with spent(row):
            try:
                answer = planners.plan(large, agent=agent, time_limit=LIMIT)
            except (InfeasibleError, TimeLimitError) as error:
                return row | {"plan": type(error).__name__}
    bound = answer.bound if answer.bound is not None else answer.report.bound_seconds
    gap = answer.cost / bound - 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return row | {"plan": answer.status, "gap": gap, "peak": peak}


@measurement(title="How planners grow", key="grows size", among={"grows": GROWS})
def scaling(grows: tuple[str, ...] = tuple(GROWS)) -> list[Case]:
    return [
        ({"grows": name, "size": size}, partial(planned, name, size))
        for name in grows
        for size in GROWS[name][0]
    ]


def exponent(rows: list[Row]) -> float:
    """Slope of log seconds over log size, without the smallest size."""
    size, seconds = (np.log([row[name] for row in rows[1:]]) for name in ("size", "seconds"))
    return float(np.polyfit(size, seconds, 1)[0])


def _cell(name: str, form: str, unit: float, row: Row) -> str:
    """A figure in a unit, or nothing if there was no plan."""
    return form.format(row[name] / unit) if name in row else ""


@scaling.page
def page(rows: list[Row]) -> list[str]:
    parts = [
        f"Pipelines of 16 stages on 1,024 devices by `search`, which takes the {LIMIT:g} processor "
        "seconds that it has; shapes of equal blocks on 1,024 H100, and Llama 3 70B on up to "
        "131,072, by `exact` with its defaults. Gap: step time over the bound, less 1."
    ]
    for name in GROWS:
        mine = [row for row in rows if row["grows"] == name]
        parts.append(
            columns(mine, [
                (name, "{size:,}"), ("seconds", "{seconds:.2f}"),
                ("peak memory, GB", partial(_cell, "peak", "{:.2f}", 1e9)),
                ("gap, %", partial(_cell, "gap", "{:.1f}", 0.01)),
                ("answer", "{plan}"),
            ])
        )  # fmt: skip
        parts.append(f"Seconds grow with the {exponent(mine):.2f} power of {name}.")
    return parts


if __name__ == "__main__":
    main(scaling)
