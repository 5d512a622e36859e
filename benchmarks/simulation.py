"""The closed-form pipeline length against the event simulation, on random plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.common import INSTANCES, parser, percent, problem, progress, publish, table
from parenvs import Pipeline
from parenvs.agents.pipeline.heuristics import random_episodes
from parenvs.tasks.pipeline.cuts import CutSpace
from parenvs.tasks.pipeline.simulate import simulate

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


def compare(instance: str, draw: Any, count: int, seed: int) -> dict[str, Any]:
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


def rows(raws: list[dict[str, Any]]) -> list[list[str]]:
    """The table's rows."""
    return [
        [
            raw["instance"],
            f"{raw['plans']:,}",
            *(percent(raw["quantiles"][key]) for key in QUANTILES),
            f"{raw['simulated_below_closed']:,}",
            percent(raw["without_all_reduce"]["quantiles"]["max"]),
            f"{raw['without_all_reduce']['closed_above_simulated']:,}",
        ]
        for raw in raws
    ]


def main() -> None:
    """Draw, compare, print and write."""
    options = parser(__doc__)
    options.add_argument("--plans", type=int, default=1000, help="of each instance")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    header = ["instance", "plans", *QUANTILES, "simulated < closed"]
    header += ["max, no all-reduce", "closed > simulated, no all-reduce"]
    sections = [
        "simulated / closed - 1 on cluster C, 2 to 4 stages, whether the plan fits the memory or "
        "not. Without all-reduce the closed form is a lower bound: the last column must be 0.",
    ]
    data: dict[str, Any] = {}
    for kind, what, draw in (
        ("free", "Random pivots and device cuts that give every stage a variable", random_plans),
        ("episodes", "Random episodes of `PipelineCut-v0` (devices follow the pivots)", episodes),
    ):
        progress(what)
        raws = data[kind] = [compare(x, draw, chosen.plans, chosen.seed) for x in INSTANCES]
        broken = sum(raw["without_all_reduce"]["closed_above_simulated"] for raw in raws)
        sections += [
            f"{what}:",
            table(header, rows(raws)),
            f"{sum(raw['plans'] for raw in raws):,} plans, closed form above the simulation "
            f"without all-reduce: {broken}.",
        ]
    publish("simulation", sections, data, chosen.out)


if __name__ == "__main__":
    main()
