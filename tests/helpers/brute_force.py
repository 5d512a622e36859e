"""Every plan of a small pipeline problem, one by one: what the exact planners are held against."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.cluster import DEVICES, SYNC_METHODS, Cluster
from parenvs.errors import InfeasibleError
from parenvs.graph.flow import Reads
from parenvs.tasks.pipeline.plan import TIED
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.spaces import CutSpace

SHAPES = ((1, 2), (1, 4), (1, 6), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (5, 1), (3, 3), (2, 5))
"""(servers, devices per server) of the random clusters."""


@dataclass(frozen=True)
class Best:
    """What all plans together say: the shortest that fits, and the least excess, bytes."""

    length: float
    excess: float
    plans: int


def random_pipeline(rng: np.random.Generator) -> tuple[Pipeline, int]:
    """A small problem and its number of stages; about half have a memory limit that bites."""
    servers, per_server = SHAPES[rng.integers(len(SHAPES))]
    stages = int(rng.integers(2, min(servers * per_server, 5) + 1))
    n = int(rng.integers(stages + 1, 12 if stages < 4 else 9))
    forward = rng.exponential(1.0, n) * (rng.random(n) < rng.choice([0.4, 0.7, 1.0]))
    backward = forward * (2.0 if rng.random() < 0.5 else rng.uniform(0, 4, n))
    parameters = rng.integers(1, 9, n) * (rng.random(n) < 0.6) * 10.0 ** rng.integers(0, 3)
    parameters[rng.choice(n, stages, replace=False)] += 1
    cuts = rng.integers(0, 6, n) * 10.0 ** rng.integers(-1, 2)
    if rng.random() < 0.3:  # runs of pivots that differ in nothing
        quiet = rng.random(n) < 0.6
        forward[quiet], backward[quiet] = 0.0, 0.0
        cuts[quiet] = rng.choice([1.0, 2.0], quiet.sum())
    forward[rng.integers(n)] += 0.1
    profile = StageProfile(
        name="random",
        names=np.array([f"p{i}" for i in range(n)], dtype=object),
        forward=forward,
        backward=backward,
        cut_bytes=cuts,
        parameter_bytes=parameters,
        resident_bytes=rng.integers(0, 9, n) * 1.0,
    )
    tied = str(rng.choice(TIED))
    if tied == "held":
        profile = replace(profile, **random_reads(rng, n))
    inter = 10.0 ** rng.uniform(-1, 3)
    cluster = Cluster(
        servers, per_server, replace(DEVICES["v100"], memory_bytes=1e12),
        intra_bw=inter * rng.choice([1.0, 3.0, 50.0, 0.5], p=[0.1, 0.4, 0.4, 0.1]), inter_bw=inter,
    )  # fmt: skip
    pipeline = Pipeline(
        profile,
        cluster,
        micro_batches=int(rng.choice([1, 2, 4, 16])),
        copies=float(rng.choice([0, 1, 2, 4])),
        recompute=str(rng.choice(["full", "none"])),
        sync=SYNC_METHODS[rng.integers(len(SYNC_METHODS))],
        tied=tied,
    )
    if rng.random() < 0.6:
        memory = np.sort(pipeline.stage_memory(*all_plans(pipeline, stages)).max(axis=-1))
        at = memory[int(rng.choice([0.0, 0.02, 0.1, 0.4]) * (len(memory) - 1))]
        size = max(at, 1.0) * rng.choice([0.98, 1.0 + 1e-9, 1.02]) / 0.9
        device = replace(cluster.device, memory_bytes=float(size))
        pipeline = replace(pipeline, cluster=replace(cluster, device=device))
    return pipeline, stages


def random_reads(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Frozen weights of a chain of n pivots, and weights that several pivots read."""
    reads = []
    for _ in range(int(rng.integers(0, 4))):
        positions = np.sort(rng.choice(n, int(rng.integers(2, min(n, 4) + 1)), replace=False))
        size = float(rng.integers(1, 9) * 10.0 ** rng.integers(0, 3))
        reads.append(Reads(tuple(positions.tolist()), size, bool(rng.random() < 0.7)))
    frozen_bytes = rng.integers(0, 9, n) * (rng.random(n) < 0.3) * 10.0 ** rng.integers(0, 3)
    return {"tied": tuple(reads), "frozen_bytes": frozen_bytes}


def all_plans(pipeline: Pipeline, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """Every plan with a variable and a device in each stage, (plans, S-1) each."""
    n, devices = len(pipeline.profile), pipeline.cluster.devices
    has = pipeline.variable_sum
    cuts = [
        c for c in itertools.combinations(range(1, n), stages - 1)
        if (np.diff(has[[0, *c, n]]) > 0).all()
    ]  # fmt: skip
    groups = list(itertools.combinations(range(1, devices), stages - 1))
    both = list(itertools.product(cuts, groups))
    return np.array([c for c, _ in both]), np.array([d for _, d in both])


def legal(space: CutSpace, chosen: Any) -> np.ndarray:
    """Which candidates may come after the chosen ones, (c,) bool."""
    if len(chosen) >= space.stages - 1:
        return np.zeros(len(space.pivots), dtype=bool)
    variables = space.pipeline.variable_sum[space.pivots]
    device, variable = (space.devices[chosen[-1]], variables[chosen[-1]]) if len(chosen) else (0, 0)
    return space.allowed[len(chosen)] & (space.devices > device) & (variables > variable)


def legal_plans(space: CutSpace) -> tuple[np.ndarray, np.ndarray]:
    """Every plan that ``legal`` admits."""
    chosen: list[list[int]] = [[]]
    for _ in range(space.stages - 1):
        chosen = [[*c, int(i)] for c in chosen for i in np.flatnonzero(legal(space, c))]
    return space.plan(np.array(chosen))


def best_of(pipeline: Pipeline, plans: tuple[np.ndarray, np.ndarray]) -> Best:
    """The best of the plans by length and by memory; length is infinite if none fits."""
    length, excess = pipeline.length(*plans), pipeline.excess_bytes(*plans)
    fits = excess <= 0
    return Best(float(length[fits].min(initial=np.inf)), float(excess.min()), len(length))


def random_space(rng: np.random.Generator) -> CutSpace:
    """A random small problem with its pruned space, drawn until there is one."""
    while True:
        pipeline, stages = random_pipeline(rng)
        try:
            return CutSpace.build(
                pipeline.with_stages(stages),
                int(rng.integers(0, 4)),
                str(rng.choice(["minima", "all"])),
            )
        except InfeasibleError:
            continue
