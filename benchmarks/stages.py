"""Plans of many stages on many devices: the search beside lower bounds and an earlier search.

git worktree add /tmp/earlier c6148722
python benchmarks/stages.py --against /tmp/earlier

The earlier search is that of a checkout that has ``by_corridor``. Seconds are the processor's.
"""

import json
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from subprocess import PIPE, run

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
LIMITS, EARLY = ("0.2", "1", "5"), ("0.05", "0.1", "0.2", "0.5", "1")
"""Seconds of both searches, and those at which the length of the last is looked for."""
HEADS = "problems, limit s, number, most s, mean ratio, largest, median gap, largest gap"
CHAIN = ("forward", "backward", "cut_bytes", "parameter_bytes")
OTHER = """
import json, pickle, sys, time
import numpy as np
from parenvs.agents.pipeline.corridor import prepare
from parenvs.agents.pipeline.exact import by_corridor
from parenvs.cluster import Cluster
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import StageProfile
chain, cluster, settings, limits = pickle.load(sys.stdin.buffer)
chain = StageProfile("chain", np.arange(len(chain["forward"])).astype(str).astype(object), **chain)
pipeline = Pipeline(chain, Cluster.parse(cluster), **settings)
prepare()
time.perf_counter = time.process_time
print(json.dumps({limit: by_corridor(pipeline, float(limit)).cost for limit in limits}))
"""


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


def earlier(pipeline: Pipeline, folder: str, limits: list[str]) -> dict[str, float]:
    """Return the length that a checkout's search finds within each limit."""
    chain = {name: getattr(pipeline.profile, name) for name in CHAIN}
    settings = {name: getattr(pipeline, name) for name in ("stages", "micro_batches", "copies")}
    given = pickle.dumps((chain, pipeline.cluster.to_json(), settings, limits))
    words = [sys.executable, "-c", OTHER]
    return json.loads(run(words, input=given, cwd=folder, stdout=PIPE, check=True).stdout)


def measure(pipeline: Pipeline, against: str) -> Row:
    """Plan a problem at each limit, by both searches."""
    search: Row = {limit: {} for limit in dict.fromkeys(EARLY + LIMITS)}
    limits = [*EARLY[: pipeline.stages <= 16], *LIMITS]  # the shortest where stages are few
    with processor_clock():
        for limit, row in search.items():
            with spent(row):
                answer = by_search(pipeline, float(limit))
            row |= {"length": answer.cost, "bound": answer.bound}
    other = earlier(pipeline, against, limits) if against else {}
    return {"search": search, "earlier": other}


@measurement(key="group problem", title="Many stages on thousands of devices")
def stages(count: int = 8, against: str = "") -> list[Case]:
    """Plan problems of many stages at several limits."""
    prepare()
    return [
        ({"group": group, "problem": name}, partial(measure, pipeline, against))
        for group, name, pipeline in problems(count)
    ]


@stages.page
def page(rows: list[Row]) -> list[str]:
    lines = []
    for group, limit in product(dict.fromkeys(row["group"] for row in rows), EARLY[:1] + LIMITS):
        mine = [row for row in rows if row["group"] == group and limit in row["earlier"]]
        if mine:
            found = np.array([list(row["search"][limit].values()) for row in mine]).T
            ratio = found[1] / [row["earlier"][limit] for row in mine]
            gaps = [percent(x(found[1] / found[2] - 1), 1) for x in (np.median, max)]
            numbers = [f"{x:.3f}" for x in (max(found[0]), np.mean(ratio), max(ratio))]
            lines.append([group, limit, len(mine), *numbers, *gaps])
    return [
        "Step times over those of the search of commit c6148722, and gaps to the lower bound. Its "
        f"length of {LIMITS[-1]} s takes {np.median([*map(first, rows)]):g} s in the median.",
        table(HEADS.split(", "), lines),
    ]


def first(row: Row) -> float:
    """Seconds at which the search first has the length of the other one at its last limit."""
    least = row["earlier"][LIMITS[-1]] * (1 + 1e-9)
    found = [float(limit) for limit, x in row["search"].items() if x["length"] <= least]
    return min(found, default=np.inf)


if __name__ == "__main__":
    main(stages)
