"""Time and memory of the sharding solver as problems grow from 10^3 to 10^6 nodes.

    python benchmarks/iopddl_growth.py --seconds 60

Three families. ``exported``: the partitioning of shipped graphs as ``parenvs iopddl export`` writes
it, with four fifths of the memory that copies of everything need. ``mesh``: drawn problems of the
family ``mesh`` one after another in time, half of each beside the next, joined by an edge and by
one limit. ``mesh, 4``: the same with the first four strategies of each node, as a million nodes
with all of them would exceed the size of file that is read. Each problem is written, read and
solved in a process of its own.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.framework import (
    Case,
    Column,
    Row,
    cell,
    columns,
    forked,
    main,
    measurement,
    percent,
    progress,
    spent,
)
from parenvs import Cluster
from parenvs.agents.sharding import solve_iopddl
from parenvs.datasets.sharding.drawing import drawn
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.partition.problem import load_partitioning
from parenvs.tasks.sharding.exchange import Exchange
from parenvs.tasks.sharding.files import load_iopddl, save_iopddl
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.reduction import reduce

GRAPHS = ("vgg-19", "resnet-50", "t5-base", "bert-48", "t5-11b")
SIZES = {"mesh": (1_000, 10_000, 100_000), "mesh, 4": (1_000, 10_000, 100_000, 1_000_000)}
PARTS = 24
"""Problems that are drawn; a longer chain repeats them with other costs."""
SPARE, TIGHT = 1.1, 0.8
"""The limit over the peak of the leanest plan, and over that of copies of everything."""


def exported(name: str) -> Sharding:
    """Return a shipped graph's partitioning, with less memory than whole copies need."""
    found = Exchange.of(load_partitioning(name, Cluster.parse("A")))
    whole = found.strategies(np.zeros(len(found.partitioning.classes), dtype=bool))
    return replace(found.problem, limit=int(TIGHT * found.problem.usage(whole)[0]), instance="")


def limited(problem: Sharding) -> Sharding:
    """Return a problem whose limit is ``SPARE`` times what the leanest plan uses."""
    least = np.minimum.reduceat(problem.usages, problem.offset[:-1])
    places = np.arange(len(problem.costs)) - np.repeat(problem.offset[:-1], problem.sizes)
    is_least = problem.usages == np.repeat(least, problem.sizes)
    lean = np.minimum.reduceat(np.where(is_least, places, 2**31), problem.offset[:-1])
    return replace(problem, limit=int(SPARE * problem.usage(lean)[0]), instance="")


def shortened(problem: Sharding, most: int) -> Sharding:
    """Return a problem with the first strategies of each node alone."""
    sizes = np.minimum(problem.sizes, most)
    kept = np.arange(len(problem.costs)) - np.repeat(problem.offset[:-1], problem.sizes) < most
    a, b = problem.ends.T
    width = np.repeat(problem.sizes[b], np.diff(problem.edge_offset))
    at = np.arange(len(problem.edge_costs)) - np.repeat(
        problem.edge_offset[:-1], np.diff(problem.edge_offset)
    )
    inside = (at // width < most) & (at % width < most)
    return replace(
        problem,
        offset=np.r_[0, np.cumsum(sizes)],
        costs=problem.costs[kept],
        usages=problem.usages[kept],
        edge_offset=np.r_[0, np.cumsum(sizes[a] * sizes[b])],
        edge_costs=problem.edge_costs[inside],
        instance="",
    )


def chain(nodes: int, most: int | None = None) -> Sharding:
    """Return drawn problems one after another, of at least so many nodes in all."""
    rng = np.random.default_rng(nodes)
    parts = [drawn("mesh", number) for number in range(PARTS)]
    parts = parts if most is None else [shortened(part, most) for part in parts]
    rows: dict[str, list[np.ndarray]] = {
        key: [] for key in ("lives", "sizes", "costs", "usages", "ends", "tables", "edge_costs")
    }
    begin = first = 0
    while begin < nodes:
        part = parts[int(rng.integers(PARTS))]
        sizes, tables = part.sizes, np.diff(part.edge_offset)
        ends, edge_costs = part.ends + begin, part.edge_costs
        if begin:  # the last node of the part before, and the first of this one
            seam = int(rows["sizes"][-1][-1] * sizes[0])
            ends = np.r_[[[begin - 1, begin]], ends]
            tables = np.r_[seam, tables]
            typical = max(int(np.median(edge_costs)), 1)
            edge_costs = np.r_[rng.integers(0, 2 * typical, seam), edge_costs]
        noise = np.exp(0.2 * rng.standard_normal(len(part.costs)))
        found = {
            "lives": part.intervals + first,
            "sizes": sizes,
            "costs": np.rint(part.costs * noise).astype(np.int64),
            "usages": part.usages,
            "ends": ends,
            "tables": tables,
            "edge_costs": edge_costs,
        }
        for key, values in found.items():
            rows[key].append(values)
        begin += len(part)
        first += int(part.intervals.max()) // 2
    joined = {key: np.concatenate(values) for key, values in rows.items()}
    problem = Sharding(
        name=f"chain-{nodes}" + (f"-{most}" if most else ""),
        limit=None,
        intervals=joined["lives"],
        offset=np.r_[0, np.cumsum(joined["sizes"])],
        costs=joined["costs"],
        usages=joined["usages"],
        ends=joined["ends"],
        edge_offset=np.r_[0, np.cumsum(joined["tables"])],
        edge_costs=joined["edge_costs"],
    )
    return limited(problem)


@measurement(
    title="Sharding problems that grow",
    key="family size",
    about={"largest": "most nodes of a chain"},
)
def iopddl_growth(seconds: float = 60.0, largest: int = 10**6) -> list[Case]:
    cases: list[tuple[str, str, Callable[[], Sharding]]] = [
        ("exported", name, partial(exported, name)) for name in GRAPHS
    ]
    for family, sizes in SIZES.items():
        most = 4 if family == "mesh, 4" else None
        some = [size for size in sizes if size <= largest]
        cases += [(family, f"{size:,}", partial(chain, size, most)) for size in some]
    return [
        ({"family": family, "size": size}, partial(forked, partial(solved, make, seconds)))
        for family, size, make in cases
    ]


def solved(make: Callable[[], Sharding], limit: float) -> Row:
    """Write, read, reduce and solve a problem."""
    row: Row = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.json.gz"
        save_iopddl(make(), path)
        row["file"] = path.stat().st_size / 1e6
        with spent(row, "reading"):
            problem = load_iopddl(path)
    with spent(row, "reduction"):
        reduced = reduce(problem)
    row |= {"nodes": len(problem), "edges": len(problem.ends),
            "edge_costs": len(problem.edge_costs), "left": len(reduced), "first": None}  # fmt: skip

    def tell(status: Any) -> None:
        if status.cost is not None and row["first"] is None:
            row["first"] = status.seconds

    row |= {"cost": None, "bound": None, "seconds": limit}
    try:
        answer = solve_iopddl(problem, limit, processor=True, tell=tell)
        assert answer.report.legal and answer.report.cost == answer.cost
        row |= {"cost": answer.cost, "bound": answer.bound, "seconds": answer.seconds}
    except (InfeasibleError, TimeLimitError) as error:
        progress(str(error))
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {**row, "megabytes": megabytes}


COLUMNS: list[Column] = [
    ("family", "{family}"),
    ("size", "{size}"),
    ("nodes", "{nodes:,}"),
    ("edges", "{edges:,}"),
    ("edge costs", "{edge_costs:,}"),
    ("file (MB)", "{file:.1f}"),
    ("reading (s)", "{reading:.1f}"),
    ("reduction (s)", "{reduction:.1f}"),
    ("nodes left", "{left:,}"),
    ("first plan (s)", lambda row: cell("{first:.1f}", row) or "none"),
    ("solved in (s)", "{seconds:.0f}"),
    ("gap", lambda row: percent(1 - row["bound"] / row["cost"], 3) if row["cost"] else "none"),
    ("MB", "{megabytes:,.0f}"),
]


@iopddl_growth.page
def page(rows: list[Row], seconds: float) -> list[str]:
    return [
        f"Seconds of the process on one thread; the solver has {seconds:g} s, reduction "
        "included and reading not. The gap is that of the best plan to the proven bound at the "
        "end; MB is the most that the process held.",
        columns(rows, COLUMNS),
    ]


if __name__ == "__main__":
    main(iopddl_growth)
