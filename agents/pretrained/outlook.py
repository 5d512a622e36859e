"""How well the rest of a chain can still be balanced: what PipeDream asks, for every state.

For each number of stages, point and unit: the least bottleneck, the longest computation or transfer
of a micro-batch, of all plans of what is left. It is one of the things that a planner with
foresight looks at (Narayanan et al., SOSP 2019, section 3.1, minimise nothing else), and knows
nothing of all-reduces, of sums and of memory; what it is worth, a network learns.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parenvs.envs.pipeline_plan import OCTAVES
from parenvs.pipeline.points import POINTS, STAGES, UNITS

LEVELS = np.array(
    [
        *(1.01, 1.03, 1.06, 1.1, 1.14, 1.19, 1.25, 1.32, 1.4, 1.5, 1.62),
        *(1.77, 1.95, 2.2, 2.5, 2.9, 3.5, 4.5, 6.0, 9.0, 15.0, 30.0),
    ],
    dtype=np.float32,
)
"""Bottlenecks that are told apart, in units of the micro-batch of a bubble-free plan; the last one
stands for all above the last but one."""


def outlook(observation: Mapping[str, np.ndarray]) -> np.ndarray:
    """(8, 129, 65) int8: places in ``LEVELS`` of the least bottleneck.

    Entry ``[k, p, u]`` is for k stages that start at point p on unit u and run to the ends; beyond
    the problem's stages, points and units it means nothing. It is a lower bound: that so many
    stages find cuts behind a late start is taken for granted.

    Args:
        observation: ``chain``, ``topology`` and ``numbers`` of one problem.
    """
    numbers = observation["numbers"].astype(float)
    stages, units = (round(float(x)) for x in numbers[[0, 2]] * (STAGES, UNITS))
    points = int(observation["chain"][3].sum())
    work, crossing = np.insert(observation["chain"][:2, :points].astype(float), 0, 0.0, axis=1)
    second = work[-1] / units
    work, crossing = work / second, 2.0 * crossing / second * 2.0 ** (numbers[3] * OCTAVES)
    # A cut is made inside a server or between two: where a stage and the next one start decides.
    inside = np.pad(observation["topology"][:units, :units] >= 1.0, ((0, 0), (0, 1)))
    levels = LEVELS[:-1].astype(float)
    cuts = [
        [_cuts(work, crossing * share <= level) for level in levels]
        for share in (1.0, 2.0 ** (-numbers[6] * OCTAVES))
    ]
    group = np.arange(units + 1) - np.arange(units)[:, None]
    table = np.full((STAGES, POINTS + 1, UNITS + 1), len(levels), dtype=np.int8)
    # The earliest start of k stages, on each unit and for each level: the work before it.
    start = work[-1] - levels * np.arange(units, 0, -1)[:, None]
    for k in range(1, stages):
        if k > 1:
            start = _before(start, cuts, inside, group, levels)
        missed = work[:, None, None] < start - 1e-6
        table[k, : points + 1, :units] = missed.sum(axis=2)
    return table


def _cuts(work: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Work before the legal cuts, ascending, and infinity."""
    return np.append(work[1:-1][legal[1:-1]], np.inf)


def _before(
    start: np.ndarray,
    cuts: list[list[np.ndarray]],
    inside: np.ndarray,
    group: np.ndarray,
    levels: np.ndarray,
) -> np.ndarray:
    """(u, levels) earliest start with one stage more in front of those that start there."""
    cut = np.full((2, len(start) + 1, len(levels)), np.inf)
    for kind, some in enumerate(cuts):
        for level, places in enumerate(some):
            later = np.searchsorted(places, start[:, level])
            cut[kind, :-1, level] = places[np.minimum(later, len(places) - 1)]
    reached = np.where(inside[:, :, None], cut[1], cut[0]) - levels * group[:, :, None]
    return np.where(group[:, :, None] > 0, reached, np.inf).min(axis=1)
