"""Networks that ship on pipelines of up to eight stages, whose optima are proven, none ever seen.

    python benchmarks/inference.py
    python benchmarks/inference.py --most 10 --out /tmp/try     # a quick try

They were trained on problems of 16 stages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial

import numpy as np

from benchmarks.framework import INSTANCES, Case, Row, main, measurement, percent, table
from benchmarks.pipelines import CLUSTERS, problem
from parenvs.agents.names import GENERAL
from parenvs.agents.pipeline.exact import within_memory
from parenvs.agents.planners import solve
from parenvs.datasets.pipeline.problems import load_set, optimum_of
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.problem import Pipeline

SETS = {
    "plan-test": "two to six stages",
    "plan-outside": "up to eight stages and 256 devices",
    "paper": "the paper's models on its clusters, one stage a server or four",
}
PLANNERS = ("even", *GENERAL)


@cache
def problems(name: str, most: int) -> list[Pipeline]:
    """The first problems of a set."""
    if name != "paper":
        return [stored.pipeline for stored in load_set(name)[:most]]
    found = []
    for graph in INSTANCES:
        for cluster in CLUSTERS:
            pipeline = problem(graph, cluster)
            for stages in dict.fromkeys((max(pipeline.cluster.servers, 2), 4)):
                with suppress(InfeasibleError):
                    within_memory(pipeline.with_stages(stages))
                    found.append(pipeline.with_stages(stages))
    return found[:most]


@cache
def optima(name: str, most: int) -> list[float]:
    """Seconds of the shortest plans, of 128 points and 64 units in sets, else of all."""
    if name != "paper":
        return [
            float(x.bubble_free / (optimum_of(x.instance) or 1.0)) for x in problems(name, most)
        ]
    answers = [solve(each, "exact", time_limit=20.0) for each in problems(name, most)]
    return [answer.cost if answer.proven else float(answer.bound) for answer in answers]


def measure(planner: str, name: str, most: int) -> Row:
    """Plan every problem; lengths over the optimum, NaN of plans that do not fit, and seconds."""
    ratios, seconds = [], []
    for each, best in zip(problems(name, most), optima(name, most), strict=True):
        begin = time.process_time()
        answer = solve(each, planner)
        seconds.append(time.process_time() - begin)
        ratios.append(answer.cost / best if answer.report.legal else float("nan"))
    return {"ratios": [round(x, 5) for x in ratios], "seconds": float(np.median(seconds))}


@measurement(
    key="planner set most",
    title="Networks that ship, on pipelines of up to eight stages",
    among={"sets": SETS},
    about={"most": "problems of each set"},
)
def inference(sets: tuple[str, ...] = tuple(SETS), most: int = 200) -> Iterator[Case]:
    for name in sets:
        for planner in PLANNERS:
            yield (
                {"planner": planner, "set": name, "most": most},
                partial(measure, planner, name, most),
            )


@inference.page
def page(rows: list[Row]) -> list[str]:
    sections = [
        "Length over the proven optimum (of 128 points and 64 units in the sets, of all pivots and "
        "devices on the paper's models, so that plans of sets may lie below 1); median processor "
        "seconds of a problem. The network was trained on problems of 16 stages.",
    ]
    for name, words in SETS.items():
        mine = [row for row in rows if row["set"] == name]
        if not mine:
            continue
        lines = []
        for row in mine:
            ratios = np.array(row["ratios"], dtype=np.float64)
            fit = ratios[np.isfinite(ratios)]
            figures = [*np.percentile(fit, (50, 95)), fit.max()]
            lines.append([
                row["planner"], len(ratios), *(f"{x:.4f}" for x in figures),
                percent(float((fit <= 1.001).sum() / len(ratios)), 1), len(ratios) - len(fit),
                f"{1000 * row['seconds']:.1f}",
            ])  # fmt: skip
        head = ["planner", "problems", "median", "95 %", "worst", "at the optimum",
                "over the memory", "ms"]  # fmt: skip
        sections += [f"**{name}**: {words}.", table(head, lines)]
    return sections


if __name__ == "__main__":
    main(inference)
