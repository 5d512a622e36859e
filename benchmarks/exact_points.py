"""How long proofs over 128 points take, and how far 128 points are from all pivots."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import (
    CLUSTERS,
    INSTANCES,
    Solved,
    parser,
    percent,
    problem,
    profiles,
    progress,
    publish,
    solve,
    table,
)
from parenvs.agents.pipeline.exact import exact_full
from parenvs.agents.pipeline.points import exact_points
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.datasets.pipeline.generators import INSIDE, draw
from parenvs.datasets.pipeline.sets import load_set
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.points import POINTS, PointSpace
from parenvs.tasks.pipeline.problem import Pipeline

SHAPES = ((4, 32), (8, 32), (4, 64), (8, 64))
"""Stages and devices of the generated problems."""
SETS = ("plan-test", "plan-outside")
PROFILES = ("bert-24", "bert-48", "gnmt-16", "resnet-50", "vgg-16", "vgg-19")
TARGETS = (
    "target: 99 % within 0.05 s at 4 stages and 32 devices, within 1 s at 8 stages and 32 devices"
)
HEADER = (
    "problems", "stages", "devices", "number", "space, mean (s)", "mean (s)", "median (s)",
    "99 % (s)", "worst (s)", "proven", "the rest: within",
)  # fmt: skip
REAL_HEADER = (
    "instance", "cluster", "stages", "pivots", "points", "points (s)", "proof", "full (s)",
    "proof", "L points (s)", "L points / L full - 1",
)  # fmt: skip


def measure(pipeline: Pipeline, stages: int, limit: float) -> dict[str, Any]:
    """Solve one problem; returns processor seconds of its space and optimum, and the gap."""
    begin = time.process_time()
    space = PointSpace.build(pipeline.with_stages(stages))
    built = time.process_time()
    solved = solve(pipeline, partial(exact_points, space, time_limit=limit))
    return {
        "name": pipeline.profile.name,
        "stages": stages,
        "devices": pipeline.cluster.devices,
        "points": len(space.pivots) - 1,
        "space_seconds": built - begin,
        "seconds": time.process_time() - built,
        "solved": solved,
        "gap": _gap(solved),
    }


def generated(count: int, stages: int, devices: int, limit: float) -> list[dict[str, Any]]:
    """Draw problems of all families in turn, with at least as many pivots as points."""
    ranges = replace(
        INSIDE, pivots=(POINTS, 2 * POINTS), devices=(devices,) * 2, stages=(stages,) * 2
    )
    families, found = list(FAMILIES), []
    for i in range(count):
        rng = np.random.default_rng([devices, stages, i])
        drawn = draw(rng, families[i % len(families)], ranges)
        found.append(measure(drawn.pipeline, stages, limit) | {"name": f"{drawn.family}-{i:03d}"})
        if i % 100 == 99:
            progress(f"{stages} stages, {devices} devices: {i + 1} of {count}")
    return found


def summary(name: str, stages: object, devices: object, found: list[dict[str, Any]]) -> list[str]:
    """The table's row of a group of problems."""
    seconds = np.array([raw["seconds"] for raw in found])
    built = np.mean([raw["space_seconds"] for raw in found])
    open_ = sorted(raw["gap"] for raw in found if raw["solved"].status != "optimal")
    figures = [seconds.mean(), np.median(seconds), np.quantile(seconds, 0.99), seconds.max()]
    return [
        name, str(stages), str(devices), f"{len(found):,}", f"{built:.4f}",
        *(f"{x:.4f}" for x in figures), f"{len(found) - len(open_):,}",
        ", ".join(map(percent, open_)),
    ]  # fmt: skip


def worst(title: str, found: Iterable[dict[str, Any]], most: float) -> str:
    """A row for each problem that took longer than ``most`` seconds."""
    late = sorted((x for x in found if x["seconds"] > most), key=lambda x: -x["seconds"])
    names = []
    for raw in late[:10]:
        within = f", within {percent(raw['gap'])}" if raw["gap"] else ""
        names.append(f"{raw['name']} ({raw['seconds']:.3g} s{within})")
    more = f" and {len(late) - 10} more" if len(late) > 10 else ""
    return f"Above {most:g} s, {title}: {', '.join(names) or 'none'}{more}."


def real(instance: str, cluster: str, stages: int, limit: float) -> dict[str, Any]:
    """Solve a shipped graph or a measured profile over its points and over all its pivots."""
    pipeline = problem(instance, cluster)
    raw: dict[str, Any] = {"instance": instance, "cluster": cluster}
    try:
        raw |= measure(pipeline, stages, limit)
    except InfeasibleError as error:
        return {**raw, "stages": stages, "infeasible": str(error)}
    space = PointSpace.build(pipeline.with_stages(stages))
    known = exact_points(space, time_limit=limit)
    full = solve(pipeline, partial(exact_full, pipeline, stages, known, limit))
    return {**raw, "pivots": len(pipeline.profile), "full": full}


def real_row(raw: dict[str, Any]) -> list[str]:
    """The table's row of a shipped graph or a measured profile."""
    cells = [raw["instance"].split("/")[-1], raw["cluster"], str(raw["stages"])]
    if "infeasible" in raw:
        return [*cells, *[""] * 3, "infeasible", *[""] * 4]
    solved, full = raw["solved"], raw["full"]
    return [
        *cells, f"{raw['pivots']:,}", str(raw["points"]), f"{raw['seconds']:.4f}", _proof(solved),
        f"{full.seconds:.2f}", _proof(full), f"{solved.length:.4f}",
        percent(solved.length / full.length - 1, 3),
    ]  # fmt: skip


def _gap(solved: Solved) -> float:
    assert solved.bound_seconds is not None
    return solved.length / solved.bound_seconds - 1


def _proof(solved: Solved) -> str:
    proven = solved.status != "feasible"
    return solved.status if proven else f"none: within {percent(_gap(solved))}"


def main() -> None:
    """Draw, solve, print and write."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=1000, help="generated problems of a shape")
    options.add_argument("--sets", nargs="*", default=SETS, help="stored sets of problems")
    options.add_argument("--most", type=int, default=None, help="problems of each set; all")
    options.add_argument("--clusters", nargs="*", default=CLUSTERS, help="of the real chains")
    options.add_argument("--stages", nargs="+", type=int, default=(2, 3, 4, 8), help="of those")
    options.add_argument("--limit", type=float, default=30.0, help="seconds for each proof")
    chosen = options.parse_args()
    # This pays for the first use of everything.
    exact_points(PointSpace.build(problem("vgg-19", "A").with_stages(4)))
    rows, data, late = [], {}, []
    for stages, devices in SHAPES if chosen.count else ():
        found = generated(chosen.count, stages, devices, chosen.limit)
        rows.append(summary("generated", stages, devices, found))
        title = f"{stages} stages, {devices} devices"
        data[title] = found
        late.append(worst(title, found, 0.05 if stages == 4 else 1.0))
    for name in chosen.sets:
        problems = load_set(name)[: chosen.most]
        progress(f"{name}: {len(problems)} problems")
        found = [measure(x.pipeline, x.stages, chosen.limit) for x in problems]
        rows.append(summary(name, *(_range(found, key) for key in ("stages", "devices")), found))
        data[name] = found
        late.append(worst(name, found, 1.0))
    chains = [*INSTANCES, *map(str, profiles(*PROFILES))]
    cases = []
    for instance in chains:
        for cluster in chosen.clusters:
            progress(f"{instance} {cluster}")
            cases += [real(instance, cluster, stages, chosen.limit) for stages in chosen.stages]
    sections = [
        f"Optimum over at most {POINTS} points and all device units (`exact_points`), processor "
        f"seconds of one core, {chosen.limit:g} s at most; the space is built before. Generated "
        f"problems have {POINTS} to {2 * POINTS} pivots; otherwise they are as in training.",
        table(HEADER, rows),
        f"({TARGETS}.)",
        *late,
    ]
    if cases:
        sections += [
            "Real chains, processor seconds over the points; wall seconds of `exact_full`, over "
            "all pivots and device cuts, which starts from the plan over the points.",
            table(REAL_HEADER, map(real_row, cases), left=2),
        ]
    publish("exact_points", sections, {**data, "real": cases}, chosen.out)


def _range(found: list[dict[str, Any]], key: str) -> str:
    values = [raw[key] for raw in found]
    return f"{min(values)}-{max(values)}"


if __name__ == "__main__":
    main()
