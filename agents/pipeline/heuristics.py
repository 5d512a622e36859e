"""Simple pipelines: even cuts, as GPipe makes them, and random search."""

from __future__ import annotations

import time

import numpy as np

from parenvs.core.plan import Answer
from parenvs.tasks.pipeline.problem import Pipeline, check_stages
from parenvs.tasks.pipeline.spaces import CutSpace

_BATCH = 4096  # episodes drawn at once


def even_cut(pipeline: Pipeline) -> Answer:
    """Equal shares of devices and of forward plus backward seconds, as GPipe (arXiv 1811.06965).

    Device cut k is ``round(k D / S)``; cut k is the pivot nearest to k/S of all seconds, moved as
    little as needed to leave each stage a variable. Communication and memory are ignored: the plan
    may break the memory limit.

    Raises:
        InfeasibleError: more stages than variables or devices.
    """
    begin = time.perf_counter()
    check_stages(pipeline)
    stages = pipeline.stages
    k = np.arange(1, stages)
    device_cuts = np.rint(k * pipeline.cluster.devices / stages).astype(np.int64)
    seconds, variables = pipeline.seconds_sum, pipeline.variable_sum
    cuts: list[int] = []
    for cut in k:
        variables_before = variables[cuts[-1]] if cuts else 0
        low = int(np.searchsorted(variables, variables_before, side="right"))
        high = int(np.searchsorted(variables, variables[-1] - (stages - cut), side="right"))
        distance = np.abs(seconds[low:high] - cut * seconds[-1] / stages)
        cuts.append(low + int(distance.argmin()))
    return _answer(pipeline, np.array(cuts, dtype=np.int64), device_cuts, "even-cut", 1, begin)


def random_search(space: CutSpace, evaluations: int, rng: np.random.Generator) -> Answer:
    """The shortest plan of ``evaluations`` random episodes that fits the memory.

    If none fits, it is the plan that exceeds the memory least.
    """
    begin = time.perf_counter()
    pipeline = space.pipeline
    best: tuple[float, float, np.ndarray, np.ndarray] | None = None
    for start in range(0, max(evaluations, 1), _BATCH):
        size = min(_BATCH, max(evaluations, 1) - start)
        cuts, device_cuts = space.plan(random_episodes(space, size, rng))
        excess = np.maximum(pipeline.excess_bytes(cuts, device_cuts), 0.0)
        length = pipeline.length(cuts, device_cuts)
        i = int(np.lexsort((length, excess))[0])
        if best is None or (excess[i], length[i]) < best[:2]:
            best = float(excess[i]), float(length[i]), cuts[i], device_cuts[i]
    assert best is not None
    return _answer(pipeline, best[2], best[3], "random-search", max(evaluations, 1), begin)


def random_episodes(space: CutSpace, episodes: int, rng: np.random.Generator) -> np.ndarray:
    """(episodes, S-1) int64 candidate indices, each drawn uniformly from the legal ones."""
    variables = space.pipeline.variable_sum[space.pivots]
    chosen = np.empty((episodes, space.stages - 1), dtype=np.int64)
    # Devices and variables both grow along the chain. So of the candidates that a step allows,
    # those from ``earliest`` on are legal.
    earliest = np.zeros(episodes, dtype=np.int64) + np.searchsorted(variables, 0, side="right")
    for step in range(space.stages - 1):
        allowed = np.flatnonzero(space.allowed[step])
        first = np.searchsorted(allowed, earliest)
        choice = allowed[rng.integers(first, len(allowed))]
        chosen[:, step] = choice
        earliest = np.maximum(
            np.searchsorted(space.devices, space.devices[choice], side="right"),
            np.searchsorted(variables, variables[choice], side="right"),
        )
    return chosen


def _answer(
    pipeline: Pipeline,
    cuts: np.ndarray,
    device_cuts: np.ndarray,
    method: str,
    evaluations: int,
    begin: float,
) -> Answer:
    """The plan as an answer; ``begin`` is the ``time.perf_counter()`` of the start."""
    return Answer(
        problem=pipeline,
        plan=pipeline.plan(cuts, device_cuts),
        cost=float(pipeline.length(cuts, device_cuts)),
        method=method,
        evaluations=evaluations,
        seconds=time.perf_counter() - begin,
    )
