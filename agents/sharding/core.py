"""The mixed-integer program of a problem's core: some strategies of each node, by SciPy's HiGHS.

The local polytope (M. Wainwright and M. Jordan, 2008): a binary for each strategy, a share for each
pair of an edge that sums to its ends. Times of the memory are added where a solution breaks them.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from parenvs.agents.sharding.messages import profile
from parenvs.agents.sharding.model import Arrays

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

_TIMES = 24
"""Times that are added at once."""
_TRUST = 1e-6
"""Share of the cost by which HiGHS's bound may be off, by its tolerances."""


class Core(NamedTuple):
    """What came of a core.

    Attributes:
        chosen: (n,) strategies, legal, or None if none was found.
        bound: lower bound of the core's cost, or None.
        proven: whether HiGHS found nothing better in the core.
    """

    chosen: np.ndarray | None
    bound: float | None
    proven: bool


def core_size(m: Arrays, kept: np.ndarray) -> int:
    """Return the number of pairs of kept strategies, (s,) bool, over all edges."""
    counts = np.add.reduceat(kept, m.offset[:-1]) if len(m.costs) else np.zeros(0, np.int64)
    source = np.repeat(np.arange(len(counts)), np.diff(m.start))
    return int((counts[source] * counts[m.neighbour]).sum()) // 2


def solve_core(m: Arrays, kept: np.ndarray, price: np.ndarray, seconds: float) -> Core:
    """Find the best legal plan of the kept strategies.

    Args:
        m: the model.
        kept: (s,) bool, strategies that may be taken, at least one of each node.
        price: (T,) prices of memory, whose largest tell which times to begin with.
        seconds: time limit.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    end = time.monotonic() + seconds
    (values,) = np.nonzero(kept)
    node = np.searchsorted(m.offset, values, side="right") - 1
    column = np.full(len(m.costs), -1)
    column[values] = np.arange(len(values))
    rows, columns, entries, costs, right = _polytope(m, kept, column, node)
    shift = sum(m.costs[a:b][kept[a:b]].min() for a, b in _spans(m.offset))
    count = len(costs)
    scale = max(float(np.median(costs[costs > 0])) if (costs > 0).any() else 1.0, 1.0)
    # HiGHS takes indices of 32 bits; SciPy before 1.12 hands it whatever it is given.
    coordinates = (np.asarray(rows, dtype=np.int32), np.asarray(columns, dtype=np.int32))
    equal = coo_array((entries, coordinates), shape=(len(right), count)).tocsr()
    integral = np.zeros(count)
    integral[: len(values)] = 1
    times = [int(t) for t in np.argsort(-price, kind="stable")[:_TIMES] if price[t] > 0]
    if len(m.slack) <= 4 * _TIMES:
        times = list(range(len(m.slack)))
    bound, used = None, np.zeros(len(m.slack) + 1)
    top = np.where(m.slack > 0, 1.0, 0.0)  # shares of the slack that may be used
    tightened = False
    while (left := end - time.monotonic()) > 0.2:
        constraints = [LinearConstraint(equal, right, right)]
        if times:
            constraints.append(_memory(m, values, node, times, count, top))
        result = milp(
            costs / scale,
            integrality=integral,
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={"time_limit": left, "mip_rel_gap": 1e-9},
        )
        told = result.mip_dual_bound
        if told is not None and np.isfinite(told) and not tightened:
            value = told * scale
            value += shift - _TRUST * abs(value)
            bound = value if bound is None else max(bound, value)
        if result.x is None:
            return Core(None, bound, result.status == 2 and not tightened)
        chosen = np.zeros(len(m.offset) - 1, dtype=np.int64)
        (taken,) = np.nonzero(result.x[: len(values)] > 0.5)
        chosen[node[taken]] = values[taken] - m.offset[node[taken]]
        profile(m, chosen, used)
        excess = used[:-1] - m.slack
        if len(taken) == len(chosen) and not (excess > 0).any():
            return Core(chosen, bound, result.status == 0 and not tightened)
        worst = [int(t) for t in np.argsort(-excess / np.maximum(m.slack, 1))[:_TIMES]]
        fresh = [t for t in worst if excess[t] > 0 and t not in times]
        for t in times:  # HiGHS's tolerances let it exceed a row by a little
            if excess[t] > 0:
                top[t] -= 2 * excess[t] / max(int(m.slack[t]), 1)
                tightened = True
        if result.status != 0 or len(taken) != len(chosen):
            return Core(None, bound, False)
        times += fresh
    return Core(None, bound, False)


def _spans(offset: np.ndarray) -> list[tuple[int, int]]:
    at = offset.tolist()
    return list(pairwise(at))


def _polytope(
    m: Arrays, kept: np.ndarray, column: np.ndarray, node: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and entries of the equations, costs of the columns and right-hand sides."""
    count = len(m.offset) - 1
    spans = _spans(m.offset)
    listed = [np.flatnonzero(kept[a:b]) for a, b in spans]
    is_free = column >= 0
    costs = [
        np.concatenate(
            [
                m.costs[a:b][x] - m.costs[a:b][x].min()
                for (a, b), x in zip(spans, listed, strict=True)
            ]
        )
    ]
    rows, columns, entries = [node], [column[is_free]], [np.ones(int(is_free.sum()))]
    row, col = count, int(is_free.sum())
    for source in range(count):
        for p in range(m.start[source], m.start[source + 1]):
            other = int(m.neighbour[p])
            if other < source:
                continue
            width = m.offset[other + 1] - m.offset[other]
            begin = m.table[p]
            size = (m.offset[source + 1] - m.offset[source]) * width
            table = m.pair[begin : begin + size].reshape(-1, width)
            table = table[np.ix_(listed[source], listed[other])]
            s, t = np.nonzero(np.isfinite(table))
            pairs = col + np.arange(len(s))
            rows += [row + s, row + table.shape[0] + t]
            columns += [pairs, pairs]
            entries += [np.ones(2 * len(s))]
            ends = np.concatenate(
                [
                    column[m.offset[source] + listed[source]],
                    column[m.offset[other] + listed[other]],
                ]
            )
            rows.append(row + np.arange(len(ends)))
            columns.append(ends)
            entries.append(-np.ones(len(ends)))
            costs.append(table[s, t])
            row += len(ends)
            col += len(s)
    right = np.zeros(row)
    right[:count] = 1.0
    return (
        np.concatenate(rows),
        np.concatenate(columns),
        np.concatenate(entries),
        np.concatenate(costs),
        right,
    )


def _memory(
    m: Arrays, values: np.ndarray, node: np.ndarray, times: list[int], count: int, top: np.ndarray
) -> LinearConstraint:
    """What the strategies use at some times, as shares of the slack there."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array, vstack

    lines = []
    for time_ in times:
        used = np.zeros(len(m.costs))
        (terms,) = np.nonzero((m.term_times[:, 0] <= time_) & (time_ < m.term_times[:, 1]))
        owner = np.searchsorted(m.term_start, terms, side="right") - 1
        for term, at in zip(terms.tolist(), owner.tolist(), strict=True):
            begin, size = m.offset[at], m.offset[at + 1] - m.offset[at]
            usage = m.usage[m.term_at[term] : m.term_at[term] + size]
            used[begin : begin + size] += usage
        own = used[values] / max(int(m.slack[time_]), 1)
        coordinates = np.zeros(len(own), np.int32), np.arange(len(own), dtype=np.int32)
        lines.append(csr_array((own, coordinates), shape=(1, count)))
    return LinearConstraint(vstack(lines).tocsr(), -np.inf, top[times])
