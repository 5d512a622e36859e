"""How long proofs over 128 points take, and how far 128 points are from all pivots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.framework import (
    INSTANCES,
    Column,
    Row,
    columns,
    main,
    measurement,
    percent,
    spent,
    table,
)
from benchmarks.pipelines import CLUSTERS, gap, longer, problem, proof, solve
from parenvs.agents.pipeline.exact import exact_full
from parenvs.agents.pipeline.points import exact_points as solve_points
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.datasets.pipeline.problems import INSIDE, draw, load_set
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import POINTS, PointSpace

SHAPES = {
    "4 stages, 32 devices": (4, 32),
    "8 stages, 32 devices": (8, 32),
    "4 stages, 64 devices": (4, 64),
    "8 stages, 64 devices": (8, 64),
}
"""Stages and devices of the generated problems."""
SETS = ("plan-test", "plan-outside")
TARGETS = (
    "target: 99 % within 0.05 s at 4 stages and 32 devices, within 1 s at 8 stages and 32 devices"
)
HEADER = (
    "problems", "stages", "devices", "number", "space, mean (s)", "mean (s)", "median (s)",
    "99 % (s)", "worst (s)", "proven", "the rest: within",
)  # fmt: skip
REAL: list[Column] = [
    ("instance", lambda row: row["instance"].split("/")[-1]),
    ("cluster", "{cluster}"),
    ("stages", "{stages}"),
    ("pivots", "{pivots:,}"),
    ("points", "{points}"),
    ("points (s)", "{seconds:.4f}"),
    ("proof", lambda row: "infeasible" if "infeasible" in row else proof(row["solved"])),
    ("full (s)", "{full[seconds]:.2f}"),
    ("proof", lambda row: proof(row.get("full"))),
    ("L points (s)", "{solved[length_seconds]:.4f}"),
    ("L points / L full - 1", lambda row: longer(row.get("solved"), row.get("full"), 3)),
]


@measurement(
    title="Proofs over 128 points",
    about={
        "count": "generated problems of a shape",
        "sets": "stored sets of problems",
        "most": "problems of each set; all",
        "clusters": "of the real chains",
        "stages": "of those",
        "limit": "seconds for each proof",
    },
)
def exact_points(
    count: int = 1000,
    sets: tuple[str, ...] = SETS,
    most: int | None = None,
    clusters: tuple[str, ...] = CLUSTERS,
    stages: tuple[int, ...] = (2, 3, 4, 8),
    limit: float = 30.0,
) -> Iterator[tuple[str, Row]]:
    """Solve generated problems, stored ones and real chains."""
    # This pays for the first use of everything.
    solve_points(PointSpace.build(problem("vgg-19", "A").with_stages(4)))
    for title, shape in SHAPES.items():
        for number in range(count):
            yield title, generated(number, *shape, limit)
    for name in sets:
        for stored in load_set(name)[:most]:
            yield name, measure(stored.pipeline.with_stages(stored.stages), limit)
    for instance in INSTANCES:
        for cluster in clusters:
            for wanted in stages:
                yield "real", real(instance, cluster, wanted, limit)


def measure(pipeline: Pipeline, limit: float) -> Row:
    """Solve one problem; processor seconds of its space and optimum, and the gap."""
    row: Row = {"name": pipeline.profile.name, "stages": pipeline.stages,
                "devices": pipeline.cluster.devices}  # fmt: skip
    with spent(row, "space_seconds"):
        space = PointSpace.build(pipeline)
    row["points"] = len(space.pivots) - 1
    with spent(row):
        row["solved"] = solve(pipeline, partial(solve_points, space, time_limit=limit))
    return {**row, "gap": gap(row["solved"])}


def generated(number: int, stages: int, devices: int, limit: float) -> Row:
    """Draw a problem, of all families in turn, with at least as many pivots as points."""
    ranges = replace(
        INSIDE, pivots=(POINTS, 2 * POINTS), devices=(devices,) * 2, stages=(stages,) * 2
    )
    rng = np.random.default_rng([devices, stages, number])
    drawn = draw(rng, list(FAMILIES)[number % len(FAMILIES)], ranges)
    found = measure(drawn.pipeline.with_stages(stages), limit)
    return found | {"name": f"{drawn.family}-{number:03d}"}


def real(instance: str, cluster: str, stages: int, limit: float) -> Row:
    """Solve a shipped graph over its points and over all its pivots."""
    pipeline = problem(instance, cluster).with_stages(stages)
    row: Row = {"instance": instance, "cluster": cluster}
    try:
        row |= measure(pipeline, limit)
    except InfeasibleError as error:
        return {**row, "stages": stages, "infeasible": str(error)}
    known = solve_points(PointSpace.build(pipeline), time_limit=limit)
    full = solve(pipeline, partial(exact_full, pipeline, known, limit))
    return {**row, "pivots": len(pipeline.profile), "full": full}


def summary(name: str, found: list[Row]) -> list[str]:
    """The table's row of a group of problems."""
    seconds = np.array([row["seconds"] for row in found])
    built = np.mean([row["space_seconds"] for row in found])
    unproven = sorted(row["gap"] for row in found if row["solved"]["status"] != "optimal")
    figures = [built, seconds.mean(), np.median(seconds), np.quantile(seconds, 0.99), seconds.max()]
    shape = [(row["stages"], row["devices"]) for row in found]
    return [
        "generated" if name in SHAPES else name,
        *(extent(values, name in SHAPES) for values in zip(*shape, strict=True)),
        f"{len(found):,}",
        *(f"{figure:.4f}" for figure in figures),
        f"{len(found) - len(unproven):,}",
        ", ".join(map(percent, unproven)),
    ]


def extent(values: tuple[int, ...], alike: bool) -> str:
    """The least and the greatest of values, or what all of them are."""
    return str(values[0]) if alike else f"{min(values)}-{max(values)}"


def worst(title: str, found: list[Row]) -> str:
    """The problems that took longer than they should."""
    most = 0.05 if SHAPES.get(title, (0,))[0] == 4 else 1.0
    late = sorted((x for x in found if x["seconds"] > most), key=lambda x: -x["seconds"])
    names = []
    for row in late[:10]:
        within = f", within {percent(row['gap'])}" if row["gap"] else ""
        names.append(f"{row['name']} ({row['seconds']:.3g} s{within})")
    more = f" and {len(late) - 10} more" if len(late) > 10 else ""
    return f"Above {most:g} s, {title}: {', '.join(names) or 'none'}{more}."


@exact_points.page
def page(data: dict[str, list[Row]], limit: float) -> list[str]:
    """Show seconds, and how far points are from all pivots."""
    groups = {name: found for name, found in data.items() if name != "real"}
    sections = [
        f"Optimum over at most {POINTS} points and all device units (`exact_points`), processor "
        f"seconds of one core, {limit:g} s at most; the space is built before. Generated "
        f"problems have {POINTS} to {2 * POINTS} pivots; otherwise they are as in training.",
        table(HEADER, [summary(*group) for group in groups.items()]),
        f"({TARGETS}.)",
        *(worst(*group) for group in groups.items()),
    ]
    if "real" in data:
        sections += [
            "Real chains, processor seconds over the points; wall seconds of `exact_full`, over "
            "all pivots and device cuts, which starts from the plan over the points.",
            columns(data["real"], REAL, left=2),
        ]
    return sections


if __name__ == "__main__":
    main(exact_points)
