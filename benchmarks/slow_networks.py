"""Whether 128 points of a long chain keep the plans that a slow network wants.

python benchmarks/slow_networks.py
python benchmarks/slow_networks.py --graphs mixer-l16 --limit 5 --out /tmp/try   # a quick try
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.framework import Column, Row, columns, main, measurement, table
from parenvs import problem as problem_from
from parenvs.agents.pipeline.exact import exact_full
from parenvs.agents.pipeline.points import exact_points
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.spaces import PointSpace

GRAPHS = ("mixer-l16", "resnet-50", "unet-sd1", "vit-h14", "t5-base", "bert-48")
CLUSTERS = ("8x1:v100,1Gbps", "4x8:v100,1Gbps", "8x8:v100,0.5Gbps", "2x8:v100,0.1Gbps")
STAGES = (2, 4, 8)
COLUMNS = ("chain", "network")
"""What the points are chosen by."""


def measure(graph: str, cluster: str, stages: int, limit: float) -> Row | None:
    """Plan over both choices of points, and over all pivots and devices; None if nothing fits."""
    pipeline = problem_from(graph, cluster=cluster, stages=stages, fractions=True)
    try:
        spaces = {
            name: PointSpace.build(pipeline, by_network=name == "network") for name in COLUMNS
        }
    except InfeasibleError:
        return None
    exact = {name: exact_points(space, time_limit=limit) for name, space in spaces.items()}
    best = min(exact.values(), key=lambda answer: answer.cost)
    full = exact_full(pipeline, best, limit)
    row: Row = {
        "graph": graph, "cluster": cluster, "stages": stages, "bound": full.bound,
        "proven": full.proven, "full": full.cost,
    }  # fmt: skip
    return row | {name: {"exact": answer.cost} for name, answer in exact.items()}


@measurement(title="Points on slow networks", about={"limit": "seconds of an exact search"})
def slow_networks(graphs: tuple[str, ...] = GRAPHS, limit: float = 10.0) -> Iterator[Row]:
    for graph in graphs:
        for cluster in CLUSTERS:
            found = map(partial(measure, graph, cluster, limit=limit), STAGES)
            yield from (row for row in found if row is not None)


@slow_networks.page
def page(rows: list[Row]) -> list[str]:
    worst = []
    for name in COLUMNS:
        over = np.array([row[name]["exact"] / row["full"] for row in rows])
        worst.append([
            name, f"{np.median(over):.4f}", f"{np.quantile(over, 0.95):.4f}",
            f"{over.max():.4f}", int((over > 1.02).sum()), len(over),
        ])  # fmt: skip
    told: list[Column] = [
        ("graph", "{graph}"),
        ("cluster", "{cluster}"),
        ("stages", "{stages}"),
        ("proven", lambda row: "yes" if row["proven"] else ""),
        *((f"by {name}", lambda row, name=name: f"{row[name]['exact'] / row['full']:.4f}")
          for name in COLUMNS),
    ]  # fmt: skip
    return [
        "Length of a step over that of the shortest plan known of all pivots and devices, "
        "which is the optimum where it is `proven`. Points of a chain are spread by the chain "
        "alone, or the more of them are cheap to cut the slower the "
        "network is (as planners do).",
        table(["points by", "median", "95 %", "worst", "over 1.02", "of"], worst),
        columns(rows, told, left=2),
    ]


if __name__ == "__main__":
    main(slow_networks)
