"""Pareto fronts of labels of three figures."""

from __future__ import annotations

import numpy as np


def pareto3(
    state: np.ndarray, first: np.ndarray, second: np.ndarray, third: np.ndarray
) -> np.ndarray:
    """Indices of the labels of three figures that no other of their state dominates, by state.

    Of equal ones, one stays.
    """
    order = np.lexsort((third, second, first, state))
    order = order[_not_beaten(state[order], first[order], second[order], third[order])]
    columns = second[order], third[order]
    starts = _starts(state[order])
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    alive, distance = np.ones(len(order), dtype=bool), 1
    behind = np.flatnonzero(rank >= distance)
    while len(behind):
        # A label that another dominates is dominated by one that stays, too.
        worse = np.logical_and(*(x[behind - distance] <= x[behind] for x in columns))
        alive[behind[worse]] = False
        distance += 1
        behind = behind[~worse & (rank[behind] >= distance)]
    return order[alive]


def _starts(state: np.ndarray) -> np.ndarray:
    """Where each state begins in an ascending array."""
    return np.flatnonzero(np.append(True, state[1:] != state[:-1]))[: len(state)]


def _not_beaten(
    state: np.ndarray, first: np.ndarray, second: np.ndarray, third: np.ndarray
) -> np.ndarray:
    """Indices of the labels that no strong label of their state dominates: of least sum, of each.

    This drops most labels off the front; states must ascend.
    """
    stays = np.ones(len(state), dtype=bool)
    if not len(state):
        return np.flatnonzero(stays)
    starts = _starts(state)
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(state))))
    for weight in ((1.0, 1.0, 1.0), (1.0, 1e-6, 1e-6), (1e-6, 1.0, 1e-6), (1e-6, 1e-6, 1.0)):
        total = weight[0] * first + weight[1] * second + weight[2] * third
        least = np.minimum.reduceat(total, starts)
        found = np.flatnonzero(total == least[group])
        strong = found[np.append(True, group[found[1:]] != group[found[:-1]])]
        above = strong[group]
        beaten = (first[above] <= first) & (second[above] <= second) & (third[above] <= third)
        beaten[strong] = False
        stays &= ~beaten
    return np.flatnonzero(stays)
