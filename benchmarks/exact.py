"""How long proofs take, and how much longer plans of the pruned candidates are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.framework import INSTANCES, Column, Row, columns, main, measurement, numbers
from benchmarks.pipelines import CLUSTERS, longer, problem, proof, solve
from parenvs.agents.pipeline.exact import exact_candidates, exact_full
from parenvs.tasks.pipeline.spaces import CutSpace

TARGETS = "target: pruned below 1 s, full below 10 s"
COLUMNS: list[Column] = [
    ("instance", "{instance}"),
    ("cluster", "{cluster}"),
    ("stages", "{stages}"),
    ("candidates", "{candidates} of {pivots}"),
    ("pruned (s)", "{pruned[seconds]:.3f}"),
    ("proof", "{pruned[status]}"),
    ("full (s)", "{full[seconds]:.3f}"),
    ("proof", lambda row: proof(row["full"])),
    ("L pruned (s)", "{pruned[length_seconds]:.4f}"),
    ("L full (s)", "{full[length_seconds]:.4f}"),
    ("pruned / full - 1", lambda row: longer(row["pruned"], row["full"])),
    ("simulated, pruned (s)", "{pruned[simulated_seconds]:.4f}"),
    ("simulated, full (s)", "{full[simulated_seconds]:.4f}"),
    ("device cuts, full", lambda row: numbers(row["full"]["device_cuts"])),
]


@measurement(
    title="Proofs of pipelines, and what pruning costs",
    about={"many": "stages of the hard cases; 0: none", "limit": "seconds for each of those"},
    among={"instances": INSTANCES},
)
def exact(
    instances: tuple[str, ...] = INSTANCES,
    stages: tuple[int, ...] = (2, 3, 4),
    many: int = 8,
    limit: float = 60.0,
) -> Iterator[tuple[str, Row]]:
    """Solve problems over the candidates and over all pivots."""
    case("vgg-19", "A", 2, None)  # pays for the first use of everything
    for instance in instances:
        for cluster in CLUSTERS:
            for count in stages:
                yield "few", case(instance, cluster, count, None)
    for instance in instances if many else ():
        yield "many", case(instance, "C", many, limit)


def case(instance: str, cluster: str, stages: int, limit: float | None) -> Row:
    """Run both planners on one problem; ``limit`` is the time limit of the full one, seconds."""
    pipeline = problem(instance, cluster).with_stages(stages)
    space = CutSpace.build(pipeline)
    return {
        "instance": instance,
        "cluster": cluster,
        "stages": stages,
        "pivots": len(pipeline.profile),
        "candidates": len(space.pivots),
        "radius": space.radius,
        "pruned": solve(pipeline, partial(exact_candidates, space)),
        "full": solve(pipeline, partial(exact_full, pipeline, time_limit=limit)),
    }


def summary(cases: list[Row]) -> str:
    """The worst times, and the problems that are left without a proof."""
    parts = []
    for kind in ("pruned", "full"):
        worst = max(cases, key=lambda row: row[kind]["seconds"])
        proven = sum(row[kind]["status"] != "feasible" for row in cases)
        where = f"{worst['instance']} {worst['cluster']}, {worst['stages']} stages"
        parts.append(
            f"{kind}: worst {worst[kind]['seconds']:.3f} s ({where}), "
            f"{proven} of {len(cases)} proven optimal or infeasible"
        )
    return "; ".join(parts) + "."


@exact.page
def page(data: dict[str, list[Row]], many: int, limit: float) -> list[str]:
    """Show the cases."""
    sections = [
        "`pruned` is the space of `PipelineCut-v0`; `full` is over all pivots and all device cuts. "
        "One run each, loading not counted. Simulated lengths never rank.",
        columns(data["few"], COLUMNS, left=3),
        f"{summary(data['few'])} ({TARGETS}.)",
    ]
    if "many" in data:
        sections += [
            f"With {many} stages, the full search stopped after {limit:g} s (no "
            "target; `none: within` is the distance to the proven lower bound):",
            columns(data["many"], COLUMNS, left=3),
            summary(data["many"]),
        ]
    return sections


if __name__ == "__main__":
    main(exact)
