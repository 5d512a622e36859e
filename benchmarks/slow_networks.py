"""Whether 128 points of a long chain keep the plans that a slow network wants.

python benchmarks/slow_networks.py
python benchmarks/slow_networks.py --graphs mixer-l16 --limit 5 --out /tmp/try   # a quick try
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

import parenvs
from benchmarks.common import parser, progress, publish, table
from parenvs.agents.learning.pretrained.planner import pretrained
from parenvs.agents.pipeline.exact import exact_full
from parenvs.agents.pipeline.points import exact_points
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.points import PointSpace

GRAPHS = ("mixer-l16", "resnet-50", "unet-sd1", "vit-h14", "t5-base", "bert-48")
CLUSTERS = ("8x1:v100,1Gbps", "4x8:v100,1Gbps", "8x8:v100,0.5Gbps", "2x8:v100,0.1Gbps")
STAGES = (2, 4, 8)
COLUMNS = ("chain", "network")
"""What the points are chosen by."""


def measure(graph: str, cluster: str, stages: int, limit: float) -> dict[str, Any] | None:
    """Plan over both choices of points, and over all pivots and devices; None if nothing fits."""
    pipeline = parenvs.problem(graph, cluster=cluster, stages=stages)
    try:
        spaces = {
            name: PointSpace.build(pipeline, by_network=name == "network") for name in COLUMNS
        }
    except InfeasibleError:
        return None
    exact = {name: exact_points(space, time_limit=limit) for name, space in spaces.items()}
    best = min(exact.values(), key=lambda answer: answer.cost)
    full = exact_full(pipeline, best, limit)
    row: dict[str, Any] = {
        "graph": graph, "cluster": cluster, "stages": stages, "bound": full.bound,
        "proven": full.proven, "full": full.cost,
    }  # fmt: skip
    for name, space in spaces.items():
        begin = time.process_time()
        refined = pretrained(space, refine=True)
        row[name] = {
            "exact": exact[name].cost, "refined": refined.cost,
            "seconds": time.process_time() - begin,
        }  # fmt: skip
    return row


def main() -> None:
    """Plan, print and write."""
    options = parser(__doc__)
    options.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    options.add_argument("--limit", type=float, default=10.0, help="seconds of an exact search")
    chosen = options.parse_args()
    rows = []
    for graph in chosen.graphs:
        progress(graph)
        for cluster in CLUSTERS:
            found = map(partial(measure, graph, cluster, limit=chosen.limit), STAGES)
            rows += [row for row in found if row is not None]
    lines, worst = [], []
    for row in rows:
        cells = [
            f"{row[name][what] / row['full']:.4f}" for what in ("exact", "refined")
            for name in COLUMNS
        ]  # fmt: skip
        seconds = [f"{row[name]['seconds']:.2f}" for name in COLUMNS]
        proven = "yes" if row["proven"] else ""
        lines.append([row["graph"], row["cluster"], row["stages"], proven, *cells, *seconds])
    for what in ("exact", "refined"):
        for name in COLUMNS:
            over = np.array([row[name][what] / row["full"] for row in rows])
            worst.append([
                what, name, f"{np.median(over):.4f}", f"{np.quantile(over, 0.95):.4f}",
                f"{over.max():.4f}", int((over > 1.02).sum()), len(over),
            ])  # fmt: skip
    header = ("graph", "cluster", "stages", "proven")
    both = [f"{what}, by {name}" for what in ("exact", "refined") for name in COLUMNS]
    publish(
        "slow_networks",
        [
            "Length of a step over that of the shortest plan known of all pivots and devices, "
            "which is the optimum where it is `proven`. Points of a chain are spread by the chain "
            "alone (as in `PipelinePlan-v0`), or the more of them are cheap to cut the slower the "
            "network is (as planners do). `exact`: the optimum of these points; `refined`: of the "
            "network that ships, with its processor seconds.",
            table(
                ["plans", "points by", "median", "95 %", "worst", "over 1.02", "of"], worst, left=2
            ),
            table([*header, *both, "s, by chain", "s, by network"], lines, left=2),
        ],
        rows,
        chosen.out,
    )


if __name__ == "__main__":
    main()
