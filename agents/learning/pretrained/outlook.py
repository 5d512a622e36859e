"""How well the rest of a chain can still be balanced, by PipeDream's objective.

For each number of stages, point and unit, a table holds the least bottleneck of all plans of the
rest of the chain. The bottleneck of a plan is the longest computation or transfer of a micro-batch;
Narayanan et al., SOSP 2019, section 3.1, minimise nothing else. It ignores all-reduces, sums and
memory; the network learns how much it is worth.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parenvs.tasks.pipeline.game.tables import OCTAVES
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS

LEVELS = np.array(
    [
        *(1.01, 1.03, 1.06, 1.1, 1.14, 1.19, 1.25, 1.32, 1.4, 1.5, 1.62),
        *(1.77, 1.95, 2.2, 2.5, 2.9, 3.5, 4.5, 6.0, 9.0, 15.0, 30.0),
    ],
    dtype=np.float32,
)
"""Bottlenecks that the table tells apart, in units of a micro-batch of the bubble-free plan; each
stands for those above the one before, the last one for all above that."""


def outlook(observation: Mapping[str, np.ndarray], most: int = STAGES) -> np.ndarray:
    """(most, 129, 65) int8: indices in ``LEVELS`` of the least bottlenecks.

    Entry ``[k, p, u]`` is for k stages that start at point p on unit u and run to the end of the
    chain and of the cluster; beyond the problem's stages, points and units it has no meaning. It is
    a lower bound, as it does not check that there are enough cuts for k stages behind a late start.

    Args:
        observation: ``chain``, ``topology`` and ``numbers`` of one problem.
        most: number of stages that the table has room for.
    """
    numbers = observation["numbers"].astype(float)
    stages, units = (round(float(x)) for x in numbers[[0, 2]] * (STAGES, UNITS))
    points = int(observation["chain"][3].sum())
    work, crossing = np.insert(observation["chain"][:2, :points].astype(float), 0, 0.0, axis=1)
    second = work[-1] / units
    work, crossing = work / second, 2.0 * crossing / second * 2.0 ** (numbers[3] * OCTAVES)
    # Where a stage and the next one start decides whether the cut is inside a server.
    inside = np.pad(observation["topology"][:units, :units] >= 1.0, ((0, 0), (0, 1)))
    levels = LEVELS[:-1].astype(float)
    cuts = [
        [_cuts(work, crossing * share <= level) for level in levels]
        for share in (1.0, 2.0 ** (-numbers[6] * OCTAVES))
    ]
    group = np.arange(units + 1) - np.arange(units)[:, None]
    table = np.full((most, POINTS + 1, UNITS + 1), len(levels), dtype=np.int8)
    # Work before the earliest start of k stages, for each unit and level.
    start = work[-1] - levels * np.arange(units, 0, -1)[:, None]
    for k in range(1, stages):
        if k > 1:
            start = _before(start, cuts, inside, group, levels)
        too_early = work[:, None, None] < start - 1e-6  # for each point, unit and level
        table[k, : points + 1, :units] = too_early.sum(axis=2)
    return table


def _cuts(work: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Work before each cut that ``legal``, (points + 1,) bool, admits, ascending; then infinity."""
    return np.append(work[1:-1][legal[1:-1]], np.inf)


def _before(
    start: np.ndarray,
    cuts: list[list[np.ndarray]],
    inside: np.ndarray,
    group: np.ndarray,
    levels: np.ndarray,
) -> np.ndarray:
    """(u, levels) work before the earliest start with one more stage in front.

    Args:
        start: (u, levels) work before the earliest start of the stages behind.
        cuts: of cuts inside a server and of cuts between two, for each level, the result of
            ``_cuts``.
        inside: (u, u+1) bool, whether a stage and the next one, by their first units, lie in one
            server.
        group: (u, u+1) units of the stage, by its first unit and the next one's.
        levels: (levels,) bottlenecks.
    """
    cut = np.full((2, len(start) + 1, len(levels)), np.inf)
    for kind, cuts_by_level in enumerate(cuts):
        for level, work in enumerate(cuts_by_level):
            first_legal = np.searchsorted(work, start[:, level])
            cut[kind, :-1, level] = work[np.minimum(first_legal, len(work) - 1)]
    reached = np.where(inside[:, :, None], cut[1], cut[0]) - levels * group[:, :, None]
    return np.where(group[:, :, None] > 0, reached, np.inf).min(axis=1)
