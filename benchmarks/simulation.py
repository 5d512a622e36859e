"""The closed-form pipeline length against the event simulation, on random plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.framework import INSTANCES, Column, Row, columns, main, measurement
from benchmarks.pipelines import problem
from parenvs import Pipeline
from parenvs.agents.pipeline.heuristics import random_episodes
from parenvs.tasks.pipeline.formulas import simulate
from parenvs.tasks.pipeline.spaces import CutSpace

STAGES = (2, 3, 4)
QUANTILES = {"min": 0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "max": 1}
ROUNDING = 1e-9
"""Relative difference below which the closed form does not count as above the simulation."""


def random_plans(
    pipeline: Pipeline, stages: int, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(count, S-1) cuts and device cuts, uniform among those that give every stage a variable."""
    variables, n = pipeline.variable_sum, len(pipeline.profile)
    cuts = np.empty((0, stages - 1), dtype=np.int64)
    while len(cuts) < count:
        drawn = np.sort(rng.integers(1, n, (4 * count, stages - 1)), axis=1)
        held = np.diff(variables[drawn], axis=1, prepend=0, append=variables[-1])
        cuts = np.concatenate([cuts, drawn[(held > 0).all(axis=1)]])
    groups = [rng.permutation(pipeline.cluster.devices - 1)[: stages - 1] for _ in range(count)]
    return cuts[:count], np.sort(np.array(groups), axis=1) + 1


def episodes(
    pipeline: Pipeline, stages: int, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(count, S-1) cuts and device cuts of random episodes of ``PipelineCut-v0``."""
    space = CutSpace.build(pipeline.with_stages(stages))
    return space.plan(random_episodes(space, count, rng))


def compare(instance: str, draw: Any, count: int, seed: int) -> Row:
    """Both lengths of ``count`` plans of an instance on cluster C; they need not fit the memory."""
    pipeline, rng = problem(instance, "C"), np.random.default_rng(seed)
    m = pipeline.micro_batches
    ratio, without = [], []
    for stages, size in zip(STAGES, np.bincount(rng.integers(0, len(STAGES), count)), strict=True):
        times = pipeline.stage_times(*draw(pipeline, stages, int(size), rng))
        ratio.append(simulate(times, m).length / times.length(m) - 1)
        times = replace(times, all_reduce=np.zeros_like(times.all_reduce))
        without.append(simulate(times, m).length / times.length(m) - 1)
    everything, no_reduce = np.concatenate(ratio), np.concatenate(without)
    return {
        "instance": instance,
        "plans": count,
        "quantiles": {k: float(np.quantile(everything, q)) for k, q in QUANTILES.items()},
        "simulated_below_closed": int((everything < -ROUNDING).sum()),
        "without_all_reduce": {
            "quantiles": {k: float(np.quantile(no_reduce, q)) for k, q in QUANTILES.items()},
            "closed_above_simulated": int((no_reduce < -ROUNDING).sum()),
        },
    }


COLUMNS: list[Column] = [
    ("instance", "{instance}"),
    ("plans", "{plans:,}"),
    *((key, f"{{quantiles[{key}]:.2%}}") for key in QUANTILES),
    ("simulated < closed", "{simulated_below_closed:,}"),
    ("max, no all-reduce", "{without_all_reduce[quantiles][max]:.2%}"),
    (
        "closed > simulated, no all-reduce",
        "{without_all_reduce[closed_above_simulated]:,}",
    ),
]
KINDS: dict[str, tuple[str, Any]] = {
    "free": ("Random pivots and device cuts that give every stage a variable", random_plans),
    "episodes": ("Random episodes of `PipelineCut-v0` (devices follow the pivots)", episodes),
}


@measurement(title="Closed form against simulation", about={"plans": "of each instance"})
def simulation(plans: int = 1000, seed: int = 0) -> Iterator[tuple[str, Row]]:
    for kind, (_, draw) in KINDS.items():
        for instance in INSTANCES:
            yield kind, compare(instance, draw, plans, seed)


@simulation.page
def page(data: dict[str, list[Row]]) -> list[str]:
    sections = [
        "simulated / closed - 1 on cluster C, 2 to 4 stages, whether the plan fits the memory or "
        "not. Without all-reduce the closed form is a lower bound: the last column must be 0.",
    ]
    for kind, (what, _) in KINDS.items():
        broken = sum(x["without_all_reduce"]["closed_above_simulated"] for x in data[kind])
        sections += [
            f"{what}:",
            columns(data[kind], COLUMNS),
            f"{sum(x['plans'] for x in data[kind]):,} plans, closed form above the simulation "
            f"without all-reduce: {broken}.",
        ]
    return sections


if __name__ == "__main__":
    main(simulation)
