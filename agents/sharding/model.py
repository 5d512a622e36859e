"""A reduced IOPDDL problem as flat arrays for loops: costs as floats, edges from both ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parenvs.tasks.sharding.reduced import NEVER, Reduced


class Arrays(NamedTuple):
    """A pairwise model with memory terms: n nodes, s strategies, d = 2 m directed edges, u terms.

    A directed edge p leads from a node, its source, to a neighbour; its table is the costs of the
    source's strategies (rows) with the neighbour's.
    """

    offset: np.ndarray  # (n + 1,) where each node's strategies begin
    costs: np.ndarray  # (s,) float64
    start: np.ndarray  # (n + 1,) where each node's directed edges begin; by neighbour ascending
    neighbour: np.ndarray  # (d,)
    reverse: np.ndarray  # (d,) the same edge from the other end
    table: np.ndarray  # (d,) where each table begins in ``pair``
    pair: np.ndarray  # (2 e,) float64, costs of pairs; inf if forbidden
    message: np.ndarray  # (d + 1,) where the message into each directed edge's source begins
    term_start: np.ndarray  # (n + 1,) where each node's terms begin
    term_times: np.ndarray  # (u, 2) half-open intervals
    term_at: np.ndarray  # (u,) where each term's usages begin
    usage: np.ndarray  # int64, usages of each term by strategy
    slack: np.ndarray  # (T,) int64, what the terms may use at each time


def arrays_of(reduced: Reduced) -> Arrays:
    """Return the arrays of a reduced problem."""
    count, sizes = len(reduced), np.diff(reduced.offset)
    a, b = reduced.ends.T
    source = np.concatenate([a, b])
    target = np.concatenate([b, a])
    edges = len(a)
    order = np.lexsort((target, source))
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    edge_sizes = np.diff(reduced.edge_offset)
    lengths = np.concatenate([edge_sizes, edge_sizes])[order]
    table = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    pair = np.empty(int(table[-1]))
    values = np.where(reduced.edge_costs >= NEVER, np.inf, reduced.edge_costs.astype(float))
    for edge in range(edges):
        one = values[reduced.edge_offset[edge] : reduced.edge_offset[edge + 1]]
        first, second = table[position[edge]], table[position[edge + edges]]
        pair[first : first + len(one)] = one
        pair[second : second + len(one)] = one.reshape(sizes[a[edge]], -1).T.ravel()
    message = np.concatenate([[0], np.cumsum(sizes[source[order]])]).astype(np.int64)
    by_node = np.argsort(reduced.term_node, kind="stable")
    return Arrays(
        offset=reduced.offset,
        costs=reduced.costs.astype(float),
        start=np.searchsorted(source[order], np.arange(count + 1)).astype(np.int64),
        neighbour=target[order],
        reverse=position[(order + edges) % max(2 * edges, 1)],
        table=table[:-1],
        pair=pair,
        message=message,
        term_start=np.searchsorted(reduced.term_node[by_node], np.arange(count + 1)).astype(
            np.int64
        ),
        term_times=np.ascontiguousarray(reduced.term_times[by_node]),
        term_at=reduced.term_offset[:-1][by_node],
        usage=reduced.usages,
        slack=reduced.slack,
    )


def ranges(begin: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Whole numbers from each beginning on, so many of each."""
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - length - begin, length)
