"""Few pivots that stand for a long chain: where cuts are looked for first, or at all."""

from __future__ import annotations

import numpy as np

from parenvs.pipeline import Pipeline

POINTS = 128
"""Points of a chain in ``PipelinePlan-v0`` (arXiv 2007.04069, section 3.5)."""


def points(pipeline: Pipeline, most: int = POINTS) -> np.ndarray:
    """(m+1,) int64 boundaries of m <= ``most`` points: 0, the pivots to cut at, n.

    A chain of few pivots keeps them all; of a longer one ``coarse_pivots`` chooses. A point is what
    lies between two boundaries, so that a plan of points is a plan of pivots, with the same times
    and the same memory.
    """
    n = len(pipeline.profile)
    pivots = np.arange(1, n)
    if n > most:
        pivots = distinct_pivots(pipeline)
    if len(pivots) > most - 1:
        pivots = coarse_pivots(pipeline, pivots, most - 1)
    return np.concatenate([[0], pivots, [n]])


def distinct_pivots(pipeline: Pipeline) -> np.ndarray:
    """Pivots at which a cut can be worth while: of a run of equal ones, the last.

    Two neighbours are equal if all prefix sums and the bytes that cross are. The plan with the
    later one has the same times, and no stage needs more memory: the earlier stage gains a cut as
    large as one that it already holds, the later stage loses one.
    """
    p = np.arange(1, len(pipeline.profile))
    same = np.ones(len(p), dtype=bool)
    sums = [pipeline.forward_sum, pipeline.backward_sum, pipeline.parameter_sum]
    sums += [pipeline.variable_sum, pipeline.cut_before]
    if pipeline.recompute == "none":
        sums.append(pipeline.resident_sum)
    for values in sums:
        same &= values[p] == values[p + 1]
    same[-1] = False
    return p[~same]


def coarse_pivots(pipeline: Pipeline, pivots: np.ndarray, most: int) -> np.ndarray:
    """At most ``most`` of the pivots, even in work, bytes and place, each the least cut near it."""
    place = np.arange(len(pivots)) / len(pivots)
    for values in (pipeline.seconds_sum, pipeline.parameter_sum):
        place = place + values[pivots] / max(values[-1], 1.0 if values[-1] == 0 else 0.0)
    bins = np.minimum((place / 3 * most).astype(np.int64), most - 1)
    order = np.lexsort((pipeline.cut_before[pivots], bins))
    first = np.append(True, np.diff(bins[order]) > 0)
    return np.sort(pivots[order[first]])
