"""How long proofs take, and how much longer plans of the pruned candidates are."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.common import (
    CLUSTERS,
    INSTANCES,
    Solved,
    numbers,
    parser,
    percent,
    problem,
    progress,
    publish,
    solve,
    table,
)
from parenvs.agents.pipeline.exact import exact_full, exact_pruned
from parenvs.tasks.pipeline.cuts import CutSpace

TARGETS = "target: pruned below 1 s, full below 10 s"
HEADER = (
    "instance", "cluster", "stages", "candidates", "pruned (s)", "proof", "full (s)", "proof",
    "L pruned (s)", "L full (s)", "pruned / full - 1", "simulated, pruned (s)",
    "simulated, full (s)", "device cuts, full",
)  # fmt: skip


def case(instance: str, cluster: str, stages: int, limit: float | None) -> dict[str, Any]:
    """Run both planners on one problem; ``limit`` is the time limit of the full one, seconds."""
    pipeline = problem(instance, cluster)
    space = CutSpace.build(pipeline.with_stages(stages))
    return {
        "instance": instance,
        "cluster": cluster,
        "stages": stages,
        "pivots": len(pipeline.profile),
        "candidates": len(space.pivots),
        "radius": space.radius,
        "pruned": solve(pipeline, partial(exact_pruned, space)),
        "full": solve(pipeline, partial(exact_full, pipeline, stages, time_limit=limit)),
    }


def row(raw: dict[str, Any]) -> list[str]:
    """The table's row of one case."""
    pruned, full = raw["pruned"], raw["full"]
    cells = [raw["instance"], raw["cluster"], str(raw["stages"])]
    cells += [f"{raw['candidates']} of {raw['pivots']}"]
    cells += [f"{pruned.seconds:.3f}", pruned.status, f"{full.seconds:.3f}", _proof(full)]
    cells += [_seconds(pruned.length_seconds), _seconds(full.length_seconds)]
    cells += [percent(pruned.length / full.length - 1)]
    cells += [_seconds(pruned.simulated_seconds), _seconds(full.simulated_seconds)]
    return [*cells, numbers(full.device_cuts) if full.device_cuts else ""]


def summary(cases: list[dict[str, Any]]) -> str:
    """The worst times, and the problems that are left without a proof."""
    parts = []
    for kind in ("pruned", "full"):
        worst = max(cases, key=lambda raw: raw[kind].seconds)
        proven = sum(raw[kind].status != "feasible" for raw in cases)
        where = f"{worst['instance']} {worst['cluster']}, {worst['stages']} stages"
        parts.append(
            f"{kind}: worst {worst[kind].seconds:.3f} s ({where}), "
            f"{proven} of {len(cases)} proven optimal or infeasible"
        )
    return "; ".join(parts) + "."


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _proof(found: Solved) -> str:
    if found.status != "feasible":
        return found.status
    assert found.bound_seconds is not None
    return f"none: within {percent(found.length / found.bound_seconds - 1)}"


def main() -> None:
    """Solve, print and write."""
    options = parser(__doc__)
    options.add_argument("--instances", nargs="+", default=INSTANCES, choices=INSTANCES)
    options.add_argument("--stages", nargs="+", type=int, default=(2, 3, 4))
    options.add_argument("--many", type=int, default=8, help="stages of the hard cases; 0: none")
    options.add_argument("--limit", type=float, default=60.0, help="seconds for each of those")
    chosen = options.parse_args()
    case("vgg-19", "A", 2, None)  # pays for the first use of everything
    few, many = [], []
    for instance in chosen.instances:
        for cluster in CLUSTERS:
            for stages in chosen.stages:
                progress(f"{instance} {cluster} {stages}")
                few.append(case(instance, cluster, stages, None))
    for instance in chosen.instances if chosen.many else ():
        progress(f"{instance} C {chosen.many}")
        many.append(case(instance, "C", chosen.many, chosen.limit))
    sections = [
        "`pruned` is the space of `PipelineCut-v0`; `full` is over all pivots and all device cuts. "
        "One run each, loading not counted. Simulated lengths never rank.",
        table(HEADER, map(row, few), left=3),
        f"{summary(few)} ({TARGETS}.)",
    ]
    if many:
        sections += [
            f"With {chosen.many} stages, the full search stopped after {chosen.limit:g} s (no "
            "target; `none: within` is the distance to the proven lower bound):",
            table(HEADER, map(row, many), left=3),
            summary(many),
        ]
    publish("exact", sections, {"few": few, "many": many}, chosen.out)


if __name__ == "__main__":
    main()
