"""A reduced IOPDDL problem as flat arrays, and message passing on them that bounds its cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from parenvs.compiled import compiled
from parenvs.tasks.sharding.problem import Array, Reduced, as_floats


def ranges(begin: Array, length: Array) -> Array:
    """Return whole numbers from each beginning on, so many of each, (sum of lengths,)."""
    ends = length.cumsum()
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - ends + length, length)


def begins(length: Array) -> Array:
    """Return where parts of these lengths begin in a row."""
    return length.cumsum() - length


PART = 1 << 20
"""Entries that are computed at once, so that temporary arrays stay small."""


def batches(length: Array) -> Iterator[slice]:
    """Yield slices of items whose lengths sum to at most ``PART``, or of one item."""
    ends = length.cumsum()
    begin = 0
    while begin < len(length):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + PART, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end


class Arrays(NamedTuple):
    """A pairwise model with memory terms: n nodes, s strategies, d = 2 m directed edges, u terms.

    A directed edge p leads from a node, its source, to a neighbor; its table is the costs of the
    source's strategies (rows) with the neighbor's.
    """

    offset: Array  # (n + 1,) where each node's strategies begin
    size: Array  # (n,) number of strategies of each node
    costs: Array  # (s,) float64
    start: Array  # (n + 1,) where each node's directed edges begin; by neighbor ascending
    neighbor: Array  # (d,)
    reverse: Array  # (d,) the same edge from the other end
    table: Array  # (d,) where each table begins in ``pair``
    pair: Array  # (2 e,) float64, costs of pairs; inf if forbidden
    message: Array  # (d + 1,) where the message into each directed edge's source begins
    term_start: Array  # (n + 1,) where each node's terms begin
    term_times: Array  # (u, 2) half-open intervals
    term_at: Array  # (u,) where each term's usages begin
    usage: Array  # int64, usages of each term by strategy
    slack: Array  # (T,) int64, what the terms may use at each time

    @property
    def node(self) -> Array:
        """(s,) node of each strategy."""
        return np.repeat(np.arange(len(self.size)), self.size)

    @property
    def source(self) -> Array:
        """(d,) node that each directed edge leads from."""
        return np.repeat(np.arange(len(self.size)), np.diff(self.start))

    @property
    def owner(self) -> Array:
        """(u,) node of each term."""
        return np.repeat(np.arange(len(self.size)), np.diff(self.term_start))


def arrays_of(reduced: Reduced) -> Arrays:
    """Return the arrays of a reduced problem."""
    sizes = np.diff(reduced.offset)
    a, b = reduced.ends.T
    source, target, edges = np.concatenate([a, b]), np.concatenate([b, a]), len(a)
    # Directed edges by source, then neighbor: loops over a node read memory in order.
    order = np.lexsort((target, source))
    position = np.argsort(order)
    lengths = np.tile(np.diff(reduced.edge_offset), 2)[order]
    table = np.append(0, lengths.cumsum())
    pair = np.empty(int(table[-1]))
    values = as_floats(reduced.edge_costs)
    for edge in range(edges):
        costs = values[reduced.edge_offset[edge] : reduced.edge_offset[edge + 1]]
        first, second = table[position[edge]], table[position[edge + edges]]
        pair[first : first + len(costs)] = costs
        pair[second : second + len(costs)] = costs.reshape(sizes[a[edge]], -1).T.ravel()
    message = np.append(0, sizes[source[order]].cumsum())
    nodes = np.arange(len(reduced) + 1)
    by_node = np.argsort(reduced.term_node, kind="stable")
    return Arrays(
        offset=reduced.offset,
        size=sizes,
        costs=reduced.costs.astype(float),
        start=np.searchsorted(source[order], nodes).astype(np.int64),
        neighbor=target[order],
        reverse=position[(order + edges) % max(2 * edges, 1)],
        table=table[:-1],
        pair=pair,
        message=message,
        term_start=np.searchsorted(reduced.term_node[by_node], nodes).astype(np.int64),
        term_times=np.ascontiguousarray(reduced.term_times[by_node]),
        term_at=reduced.term_offset[:-1][by_node],
        usage=reduced.usages,
        slack=reduced.slack,
    )


@compiled
def sweep(m, costs, messages, work, marginals, first, last):
    """Pass messages forward and backward once; return a lower bound of the minimum.

    It is infinite where everything is forbidden; messages are of no use then. A sweep of n nodes is
    2 n steps, and may be done in parts, whose bounds sum to its bound.

    Args:
        m: the model; its memory is left out.
        costs: (s,) costs of the strategies.
        messages: changed in place; zeros at first.
        work: as long as the most strategies of a node.
        marginals: (s,) overwritten: by how much each strategy raises the bound if it is taken. The
            least cost with it is no less than a bound of the same costs from the sweep before,
            plus this.
        first: first step.
        last: end of the steps.
    """
    count = len(m.size)
    bound = 0.0
    for turn in range(2):
        for step in range(max(first - turn * count, 0), min(last - turn * count, count)):
            node = step if turn == 0 else count - 1 - step
            begin, size = m.offset[node], m.size[node]
            after, part = 0, 0.0
            for s in range(size):
                work[s] = costs[begin + s]
            for p in range(m.start[node], m.start[node + 1]):
                position = m.message[p]
                for s in range(size):
                    work[s] += messages[position + s]
                if m.neighbor[p] > node:
                    after += 1
            degree = m.start[node + 1] - m.start[node]
            # TRW-S weight (Kolmogorov 2006, section 4): 1 / max(later, earlier neighbors).
            share = 1.0 / max(after, degree - after, 1)
            if turn == 1:
                minimum = np.inf
                for s in range(size):
                    minimum = min(minimum, work[s])
                part = minimum
                for s in range(size):
                    work[s] -= minimum if minimum < np.inf else 0.0
                    marginals[begin + s] = work[s]
            for p in range(m.start[node], m.start[node + 1]):
                other = m.neighbor[p]
                if (other > node) != (turn == 0):
                    continue
                width = m.size[other]
                into, row = m.message[m.reverse[p]], m.table[p]
                out = messages[into : into + width]
                # M(t) = min_s [share * work(s) - M_back(s) + pair(s, t)], then its minimum is
                # taken off.
                back = messages[m.message[p] : m.message[p] + size]
                value = share * work[0] - back[0] if work[0] < np.inf else np.inf
                line = m.pair[row : row + width]
                for t in range(width):
                    out[t] = value + line[t]
                for s in range(1, size):
                    value = share * work[s] - back[s] if work[s] < np.inf else np.inf
                    row += width
                    line = m.pair[row : row + width]
                    for t in range(width):
                        total = value + line[t]
                        out[t] = total if total < out[t] else out[t]
                minimum = np.inf
                for t in range(width):
                    minimum = min(minimum, out[t])
                if minimum == np.inf:
                    return minimum
                for t in range(width):
                    out[t] -= minimum
                # The bound is that of the backward pass (section 5).
                if turn == 1:
                    part += minimum
            bound += part
    return bound
