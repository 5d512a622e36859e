"""The problem underneath: cut a chain into intervals, one for each server, of least bottleneck.

Memory, links, replicas and the passing of micro-batches are left out: a server of speed s takes
``w / s`` for an interval of weight w, and the longest counts. With servers of different speed in
any order this is chains-to-chains on different processors, which is strongly NP-hard (Benoit and
Robert 2008); ``three_partition`` builds the instances of our proof in docs/hetero.md.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import optimize, sparse

_EXACT = 1.0 + 1e-12  # of a bottleneck: sums of the same terms in another order fit, too


class Interval(NamedTuple):
    """A lower bound of the least bottleneck, and one that an order reaches.

    Attributes:
        lower: no order has less.
        upper: an order has it.
    """

    lower: float
    upper: float


def mean_bound(weights: np.ndarray, speeds: np.ndarray) -> float:
    """Return a lower bound: all weight over all speed, or the largest layer on the fastest."""
    return float(max(weights.sum() / speeds.sum(), weights.max() / speeds.max()))


def in_order(weights: np.ndarray, speeds: np.ndarray) -> float:
    """Return the least bottleneck for servers in their order, some left out or not.

    Args:
        weights: (n,) of the layers.
        speeds: (P,) of the servers, in order.
    """
    sums = np.append(0.0, weights.cumsum())
    least = np.full(len(sums), np.inf)
    least[0] = 0.0
    for speed in speeds:
        # ends[i, j]: bottleneck with the layers [i, j) on this server.
        ends = np.maximum(least[:, None], (sums[None] - sums[:, None]) / speed)
        ends[np.tri(len(sums), k=-1, dtype=bool)] = np.inf
        least = ends.min(axis=0)
    return float(least[-1])


class Sets:
    """Sets of servers by type, in the order of their sizes, for many thresholds.

    Attributes:
        speeds: (T,) of the types.
    """

    def __init__(self, speeds: np.ndarray, counts: np.ndarray) -> None:
        """List the sets.

        Args:
            speeds: (T,) of the types.
            counts: (T,) servers of each.
        """
        self.speeds = speeds
        radix = np.asarray(counts, dtype=np.int64) + 1
        strides = np.cumprod(np.append(1, radix))
        self._count = int(strides[-1])
        code = np.arange(self._count)
        size = np.zeros(self._count, dtype=np.int64)
        for stride, digits in zip(strides[:-1], radix, strict=True):
            size += code // stride % digits
        order = np.argsort(size, kind="stable")
        starts = np.searchsorted(size[order], np.arange(size.max(initial=0) + 2))
        self._levels = []
        for begin, end in pairwise(starts[1:]):
            level = order[begin:end]
            parts = []
            for kind, (stride, digits) in enumerate(zip(strides[:-1], radix, strict=True)):
                rows = np.flatnonzero(level // stride % digits > 0)
                parts.append((kind, rows, level[rows] - stride))
            self._levels.append((level, parts))

    def reaches(self, weights: np.ndarray, bottleneck: float) -> bool:
        """Return whether some order of the servers holds the chain within a bottleneck."""
        sums = np.append(0.0, weights.cumsum())
        most = sums[None] + bottleneck * _EXACT * self.speeds[:, None]
        further = np.searchsorted(sums, most.reshape(-1), side="right") - 1
        further = further.reshape(most.shape).astype(np.int16)
        reach = np.zeros(self._count, dtype=np.int16)
        for level, parts in self._levels:
            found = np.zeros(len(level), dtype=np.int16)
            for kind, rows, before in parts:
                found[rows] = np.maximum(found[rows], further[kind, reach[before]])
            reach[level] = found
        return int(reach[-1]) == len(weights)

    def least(self, weights: np.ndarray, lower: float = 0.0) -> float:
        """Return the least bottleneck over all orders, exact: some interval on some server.

        Args:
            weights: (n,) of the layers.
            lower: a lower bound.
        """
        sums = np.append(0.0, weights.cumsum())
        runs = np.unique((sums[None] - sums[:, None])[np.triu_indices(len(sums), 1)])
        values = np.unique(runs[:, None] / self.speeds)
        values = values[values >= lower / _EXACT]
        low, high = 0, len(values) - 1
        while low < high:
            middle = (low + high) // 2
            if self.reaches(weights, float(values[middle])):
                high = middle
            else:
                low = middle + 1
        return float(values[low])


def subset_bottleneck(weights: np.ndarray, speeds: np.ndarray) -> float:
    """Return the least bottleneck over all orders of the servers: 2^P sets, P to about 20.

    The set of servers used is all that matters of a prefix; the further it reaches, the better.

    Args:
        weights: (n,) of the layers.
        speeds: (P,) of the servers.
    """
    kinds, counts = np.unique(speeds, return_counts=True)
    return Sets(kinds, counts).least(weights, mean_bound(weights, speeds))


def rounded_bottleneck(weights: np.ndarray, speeds: np.ndarray, most: int) -> Interval:
    """Return the sandwich: speeds rounded up and down to types, both solved exactly.

    Args:
        weights: (n,) of the layers.
        speeds: (P,) of the servers.
        most: types, of about equally many servers of neighbouring speed.
    """
    groups = np.array_split(np.sort(speeds), min(most, len(speeds)))
    counts = np.array([len(group) for group in groups])
    bound = mean_bound(weights, speeds)
    up = Sets(np.array([group[-1] for group in groups]), counts).least(weights)
    down = Sets(np.array([group[0] for group in groups]), counts).least(weights, bound)
    return Interval(max(up, bound), down)


def milp_bottleneck(weights: np.ndarray, speeds: np.ndarray, seconds: float | None = None) -> float:
    """Return the least bottleneck over all orders by an integer program, or NaN if time runs out.

    A variable says whether a server has an interval; intervals make a path through the chain, and
    each server has one at most. Intervals longer than the sorted orders' bottleneck are left out.

    Args:
        weights: (n,) of the layers.
        speeds: (P,) of the servers.
        seconds: time limit.
    """
    n, sums = len(weights), np.append(0.0, weights.cumsum())
    upper = min(in_order(weights, np.sort(speeds)), in_order(weights, np.sort(speeds)[::-1]))
    rows = [
        (server, first, end, (sums[end] - sums[first]) / speed)
        for server, speed in enumerate(speeds)
        for first in range(n)
        for end in range(first + 1, n + 1)
        if (sums[end] - sums[first]) / speed <= upper * _EXACT
    ]
    server, first, end, cost = (np.array(column) for column in zip(*rows, strict=True))
    count, own = len(rows), np.arange(len(rows))
    one = np.ones(count)
    cut = sparse.coo_array(
        (np.append(one, -one), (np.append(first, end), np.append(own, own))), (n + 1, count)
    )
    once = sparse.coo_array((one, (server, own)), (len(speeds), count))
    longest = sparse.coo_array((cost, (server, own)), (len(speeds), count))
    flow = np.zeros(n + 1)
    flow[0], flow[-1] = 1.0, -1.0
    none = sparse.coo_array((n + 1, 1)), sparse.coo_array((len(speeds), 1))
    minus = sparse.coo_array(-np.ones((len(speeds), 1)))
    result = optimize.milp(
        np.append(np.zeros(count), 1.0),
        constraints=[
            optimize.LinearConstraint(sparse.hstack([cut, none[0]]), flow, flow),
            optimize.LinearConstraint(sparse.hstack([once, none[1]]), 0, 1),
            optimize.LinearConstraint(sparse.hstack([longest, minus]), -np.inf, 0),
        ],
        integrality=np.append(np.ones(count), 0),
        bounds=optimize.Bounds(0, np.append(np.ones(count), np.inf)),
        options={"mip_rel_gap": 0.0, **({} if seconds is None else {"time_limit": seconds})},
    )
    return float(result.fun) if result.status == 0 else np.nan


def three_partition(values: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return (weights, speeds) with bottleneck 1 if and only if 3-PARTITION has a solution.

    The values are 3m whole numbers that sum to m B, each between B/4 and B/2. The chain has m
    blocks of B layers of weight 1, with m-1 layers of weight B+1 between them; the servers have the
    values as speeds, and m-1 have speed B+1.

    Args:
        values: of the servers.

    Raises:
        ValueError: the values are no instance of 3-PARTITION.
    """
    m, rest = divmod(len(values), 3)
    block, left = divmod(sum(values), max(m, 1))
    if rest or left or not all(block < 4 * x and 2 * x < block for x in values):
        raise ValueError(f"{values}: no instance of 3-PARTITION")
    wall = block + 1
    weights = ([1] * block + [wall]) * m
    speeds = [*values, *[wall] * (m - 1)]
    return np.array(weights[:-1], dtype=float), np.array(speeds, dtype=float)
