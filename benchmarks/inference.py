"""Plans of the pretrained network against proven optima, on problems that it never saw."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.framework import (
    INSTANCES,
    Column,
    Row,
    columns,
    main,
    measurement,
    numbers,
    percent,
    progress,
    table,
)
from benchmarks.pipelines import CLUSTERS, problem, profiles
from parenvs.agents.learning.pretrained.planner import DRAWS, pretrained
from parenvs.agents.pipeline.beam import beam
from parenvs.agents.pipeline.exact import exact_full
from parenvs.agents.pipeline.heuristics import even_cut
from parenvs.agents.pipeline.pipedream import pipedream
from parenvs.agents.pipeline.points import exact_points
from parenvs.core.answer import Answer
from parenvs.datasets.pipeline.generators import INSIDE, draw
from parenvs.datasets.pipeline.sets import load_set
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.points import PointSpace

MAIN, REFINED = f"network, {DRAWS} plans", "refined"
"""The network's names among the planners."""
CNN = ("vgg-19", "vgg-16", "resnet-50")
HEADER = (
    "planner", "problems", "median", "95 %", "99 %", "worst", "at the optimum", "over the memory",
    "ms, median", "ms, 95 %",
)  # fmt: skip
BEAM = 64
"""Width of the beam search, at which it takes as long as the network."""
MOST_DEVICES = 64
"""PipeDream's program takes a minute or more on larger clusters, and is left out there."""
PLANNERS: dict[str, Callable[[PointSpace], Answer]] = {
    "network, 1 plan": lambda space: pretrained(space, draws=1),
    MAIN: pretrained,
    REFINED: lambda space: pretrained(space, refine=True),
    f"beam search, {BEAM}": lambda space: beam(space, BEAM),
    "even cut": lambda space: even_cut(space.pipeline),
    "PipeDream": lambda space: pipedream(space.pipeline),
}
SETS = {"plan-test": "inside the range of training", "plan-outside": "outside of it"}
PROFILES = ("bert-24", "bert-48", "gnmt-16", "resnet-50", "vgg-16", "vgg-19")
TARGETS = (
    "(target: median at most 1.02 and 95 % at most 1.10 for the network, 1.005 and 1.02 refined.)"
)


def measure(space: PointSpace, limit: float, full: bool = False) -> Row:
    """Run every planner on one problem; returns lengths over the optimum and processor seconds."""
    best, spent = timed(lambda: exact_points(space, time_limit=limit))
    raw: Row = {
        "name": space.pipeline.profile.name,
        "stages": space.stages,
        "devices": space.pipeline.cluster.devices,
        "units": len(space.devices) - 1,
        "points": len(space.pivots) - 1,
        "pivots": len(space.pipeline.profile),
        "optimum": best.cost,
        "bound": best.cost if best.status == "optimal" else best.bound,
        "exact_seconds": spent,
        "planners": {},
    }
    if full:
        every, spent = timed(lambda: exact_full(space.pipeline, best, limit))
        raw["full"] = every.cost
        raw["full_bound"] = every.cost if every.status == "optimal" else every.bound
        raw["full_seconds"] = spent
        raw["full_device_cuts"] = every.plan.device_cuts
    for name, planner in PLANNERS.items():
        if name == "PipeDream" and raw["devices"] > MOST_DEVICES:
            continue
        try:
            answer, spent = timed(lambda planner=planner: planner(space))
        except InfeasibleError:  # PipeDream, where its own plans do not fit
            raw["planners"][name] = {"length": None, "fits": False, "seconds": None}
            continue
        excess = space.pipeline.excess_bytes(answer.plan.cuts, answer.plan.device_cuts)
        plan = {"length": answer.cost, "fits": bool(excess <= 0), "seconds": spent}
        raw["planners"][name] = plan | ({"device_cuts": answer.plan.device_cuts} if full else {})
    return raw


def timed(call: Callable[[], Answer]) -> tuple[Answer, float]:
    """Run a planner; returns its answer and the processor seconds."""
    begin = time.process_time()
    answer = call()
    return answer, time.process_time() - begin


def scaling(
    limit: float, count: int, devices: Sequence[int], stages: Sequence[int]
) -> Iterator[Row]:
    """Draw problems on clusters of given sizes, and run every planner on each."""
    for d in devices:
        for s in stages:
            ranges = replace(INSIDE, devices=(d, d), stages=(s, s))
            rng = np.random.default_rng([d, s, 5])
            progress(f"{d} devices, {s} stages")
            for _ in range(count):
                drawn = draw(rng, ranges=ranges)
                yield measure(drawn.space, limit) | {"name": drawn.family}


def real(limit: float, clusters: Sequence[str]) -> Iterator[Row]:
    """Shipped graphs and measured profiles on the paper's clusters, one stage a server."""
    for instance in [*INSTANCES, *map(str, profiles(*PROFILES))]:
        for cluster in clusters:
            name = instance.split("/")[-1]
            progress(f"{name} {cluster}")
            pipeline = problem(instance, cluster)
            for stages in dict.fromkeys((max(pipeline.cluster.servers, 2), 4)):
                try:
                    space = PointSpace.build(pipeline.with_stages(stages), by_network=True)
                except InfeasibleError:
                    continue
                measured = name.endswith(".csv")
                made = measure(space, limit, full=True)
                yield made | {"name": name, "cluster": cluster, "measured": measured}


def trained(folder: Any, instance: str = "t5-3b") -> str:
    """Seconds of training on the instance itself, from the runs of ``parenvs bench agents``."""
    seconds: dict[str, list[float]] = {}
    for line in (folder / "agents.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if run["problem"] == f"PipelineCut-v0 C {instance}":
            seconds.setdefault(run["agent"], []).append(run["seconds"])
    parts = (f"{agent} {np.median(x):.0f} s" for agent, x in sorted(seconds.items()))
    return f"Training on {instance} itself, on C (median of its runs): {', '.join(parts)}."


def ratios(found: Iterable[Row], name: str, over: str = "bound") -> np.ndarray:
    """Lengths over the optimum, of the plans that fit the memory."""
    plans = [(raw["planners"][name], raw[over]) for raw in found]
    return np.array([plan["length"] / best for plan, best in plans if plan["fits"]])


def row(name: str, found: Sequence[Row], over: str = "bound") -> list[str]:
    """The table's row of a planner."""
    found = [raw for raw in found if name in raw["planners"]]
    some = ratios(found, name, over)
    spent = [raw["planners"][name]["seconds"] for raw in found]
    seconds = [x for x in spent if x is not None]
    figures = [*np.percentile(some, (50, 95, 99)), some.max()] if len(some) else [np.nan] * 4
    return [
        name, f"{len(found):,}", *(f"{x:.4f}" for x in figures),
        percent(float(np.mean(some <= 1.001)) if len(some) else None, 1),
        str(len(found) - len(some)),
        *(f"{1000 * np.percentile(seconds, p):.1f}" if seconds else "" for p in (50, 95)),
    ]  # fmt: skip


def exact_row(found: Sequence[Row], key: str = "exact_seconds") -> list[str]:
    """The table's row of the exact solver, which shows its time."""
    seconds = [raw[key] for raw in found]
    name = "exact, all pivots" if key == "full_seconds" else "exact"
    times = (f"{1000 * np.percentile(seconds, p):.1f}" for p in (50, 95))
    return [name, f"{len(found):,}", *["1.0000"] * 4, "100.0 %", "0", *times]


def groups(found: Sequence[Row], key: str) -> list[list[str]]:
    """Rows of the network, as it is and refined, for each value of a field."""
    rows = []
    for value in sorted({raw[key] for raw in found}):
        some = [raw for raw in found if raw[key] == value]
        cells = [
            f"{x:.4f}"
            for name in (MAIN, REFINED)
            for x in np.percentile(ratios(some, name), (50, 95))
        ]
        rows.append([str(value), str(len(some)), *cells])
    return rows


def scaling_rows(found: Sequence[Row]) -> list[list[str]]:
    """Rows of the network by number of devices and of stages."""
    rows = []
    for d, s in dict.fromkeys((raw["devices"], raw["stages"]) for raw in found):
        some = [raw for raw in found if (raw["devices"], raw["stages"]) == (d, s)]
        open_ = sum(raw["bound"] < raw["optimum"] for raw in some)
        times = [
            1000 * np.median([raw["planners"][name]["seconds"] for raw in some])
            for name in (MAIN, REFINED)
        ]
        exact = 1000 * np.median([raw["exact_seconds"] for raw in some])
        cells = [
            f"{x:.3f}"
            for name in (MAIN, REFINED)
            for x in (np.median(ratios(some, name)), ratios(some, name).max())
        ]
        inside = "inside" if d <= INSIDE.devices[1] and s <= INSIDE.stages[1] else "outside"
        rows.append(
            [
                str(d), str(s), inside, str(len(some)), *cells,
                *(f"{x:.1f}" for x in (*times, exact)), str(open_) if open_ else "",
            ]
        )  # fmt: skip
    return rows


def over(name: str, best: str) -> Any:
    """A column: a planner's length over a bound."""
    return lambda row: f"{row['planners'][name]['length'] / row[best]:.4f}"


REAL: list[Column] = [
    ("chain", "{name}"),
    ("cluster", "{cluster}"),
    ("stages", "{stages}"),
    ("pivots", "{pivots:,}"),
    ("network / points", over(MAIN, "bound")),
    ("refined / points", over(REFINED, "bound")),
    ("network / all", over(MAIN, "full_bound")),
    ("refined / all", over(REFINED, "full_bound")),
    ("network (ms)", f"{{planners[{MAIN}][seconds]:.0f*1e3}}"),
    ("refined (ms)", f"{{planners[{REFINED}][seconds]:.0f*1e3}}"),
    ("exact points (ms)", "{exact_seconds:.0f*1e3}"),
    ("exact all (ms)", "{full_seconds:.0f*1e3}"),
]


def family(row: Row) -> str:
    return "CNN" if row["name"].removesuffix(".csv") in CNN else "NLP"


DEVICE_CUTS: list[Column] = [
    ("chain", "{name}"),
    ("family", family),
    ("paper", lambda row: "(8, 16, 24)" if family(row) == "NLP" else ""),
    ("network", lambda row: numbers(row["planners"][MAIN]["device_cuts"])),
    ("refined", lambda row: numbers(row["planners"][REFINED]["device_cuts"])),
    ("exact, all pivots", lambda row: numbers(row["full_device_cuts"])),
]
"""The paper's Table 8: device cuts of four stages on configuration C."""


@measurement(
    about={
        "most": "problems of each set; all",
        "clusters": "of the real chains",
        "limit": "seconds for each proof",
        "count": "problems of a size, for scaling",
    }
)
def inference(
    most: int | None = None,
    clusters: tuple[str, ...] = CLUSTERS,
    limit: float = 20.0,
    count: int = 16,
    devices: tuple[int, ...] = (16, 32, 64, 128, 256, 512),
    stages: tuple[int, ...] = (2, 4, 6, 8),
) -> Iterator[tuple[str, Row]]:
    # This pays for the first use of everything.
    measure(PointSpace.build(problem("vgg-19", "A").with_stages(4)), 1.0)
    for name in SETS:
        for stored in load_set(name)[:most]:
            yield name, measure(stored.space, limit) | {"family": stored.family}
    for row in real(limit, clusters):
        yield "real", row
    for row in scaling(limit, count, devices, stages):
        yield "scaling", row


def planners_table(found: list[Row], bound: str = "bound", seconds: str = "exact_seconds") -> str:
    """A row for each planner, and for the exact solver."""
    rows = [row(planner, found, bound) for planner in PLANNERS]
    return table(HEADER, [*rows, exact_row(found, seconds)])


@inference.page
def page(
    data: dict[str, list[Row]], folder: Path, limit: float, count: int
) -> dict[str, list[str]]:
    sections = [
        "Length over the proven optimum of the same problem of at most 128 points and 64 units "
        "(over a lower bound of it, where the proof took too long); processor time of one core, "
        "without building the space. The network was trained on generated problems alone, none "
        "of these. Plans over the memory count apart.",
        TARGETS,
    ]
    summary = sections[:2]
    for name, title in SETS.items():
        found = data[name]
        open_ = sum(row["bound"] < row["optimum"] for row in found)
        sections += [
            f"**{name}**, {title}; {open_} optima not proven within {limit:g} s.",
            planners_table(found),
        ]
        summary += sections[-2:] if name == "plan-test" else []
        for what in ("family", "stages"):
            header = (what, "problems", "network: median", "95 %", "refined: median", "95 %")
            sections.append(table(header, groups(found, what)))
    if "real" in data:
        found = data["real"]
        on_c = [row for row in found if row["cluster"] == "C" and row["stages"] == 4]
        summary += ["**Real chains**: five graphs, six measured profiles.", planners_table(found)]
        sections += [
            "**Real chains**: shipped graphs, and measured profiles (.csv) where they are "
            "there; one stage a server, and four. Over the optimum of the points, then over "
            "that of all pivots and devices. Their points are chosen by the network, too.",
            planners_table(found),
            planners_table(found, "full_bound", "full_seconds"),
            columns(found, REAL, left=2),
            "Device cuts of four stages on configuration C. The paper (Table 8) reports "
            "(8, 16, 24) for its NLP models; its CNNs are other models.",
            columns(on_c, DEVICE_CUTS, left=6),
            trained(folder),
        ]
    if "scaling" in data:
        header = ["devices", "stages", "training", "problems", "network: median", "worst"]
        header += ["refined: median", "worst", "network (ms)", "refined (ms)", "exact (ms)"]
        sections += [
            f"**Scaling**: {count} generated problems of each size, of all families. More "
            "than 64 devices are cut at servers, or at parts of servers.",
            table([*header, "not proven"], scaling_rows(data["scaling"])),
        ]
    return {"inference": sections, "inference_summary": summary}


if __name__ == "__main__":
    main(inference)
