"""Plans of many stages on many devices: the search beside lower bounds; processor seconds."""

from collections.abc import Iterator
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
from parenvs.agents.pipeline.exact import by_search
from parenvs.agents.pipeline.search import prepare
from parenvs.datasets.pipeline.problems import INSIDE, draw, load_set
from parenvs.tasks.pipeline.problem import Pipeline

SETS = ("plan-s16-validation", "plan-s32-validation", "plan-s64-validation")
PIVOTS, CHAINS = 10_000, ((16, 256), (16, 4_096), (32, 1_024), (64, 1_024), (64, 16_384))
"""Pivots of chains, and their stages and devices."""
LIMITS = ("0.05", "0.2", "1", "5")
"""Seconds of the search."""
HEADS = ("problems", "limit s", "number", "most s", "median gap", "largest gap")


def problems(count: int) -> Iterator[tuple[str, str, Pipeline]]:
    """Yield a group, a name and a problem of each set, and chains on servers of 8."""
    for name in SETS:
        yield from ((name, drawn.name, drawn.pipeline) for drawn in load_set(name)[:count])
    for (stages, devices), index in product(CHAINS, range(count // 4)):
        sizes = {"pivots": (PIVOTS,) * 2, "devices": (devices,) * 2, "stages": (stages,) * 2}
        ranges = replace(INSIDE, devices_per_server=(8,), **sizes)
        rng = np.random.default_rng([PIVOTS, stages, devices, index])
        pipeline = draw(rng, ranges=ranges).pipeline.with_stages(stages)
        yield f"{PIVOTS:,} pivots", f"{stages} stages, {devices:,} devices, {index}", pipeline


def measure(pipeline: Pipeline) -> Row:
    """Plan a problem at each limit."""
    search: Row = {limit: {} for limit in LIMITS}
    with processor_clock():
        for limit, row in search.items():
            with spent(row):
                answer = by_search(pipeline, float(limit))
            row |= {"length": answer.cost, "bound": answer.bound}
    return {"search": search}


@measurement(key="group problem", title="Many stages on thousands of devices")
def stages(count: int = 8) -> list[Case]:
    """Plan problems of many stages at several limits."""
    prepare()
    return [
        ({"group": group, "problem": name}, partial(measure, pipeline))
        for group, name, pipeline in problems(count)
    ]


@stages.page
def page(rows: list[Row]) -> list[str]:
    lines = []
    for group, limit in product(dict.fromkeys(row["group"] for row in rows), LIMITS):
        mine = [row["search"][limit] for row in rows if row["group"] == group]
        gaps = [row["length"] / row["bound"] - 1 for row in mine]
        words = [percent(x(gaps), 1) for x in (np.median, max)]
        most = max(row["seconds"] for row in mine)
        lines.append([group, limit, len(mine), f"{most:.3f}", *words])
    return [
        "Step times by `search` at time limits, over the lower bound, less 1.",
        table(HEADS, lines),
    ]


if __name__ == "__main__":
    main(stages)
