"""Reduced IOPDDL problems: arrays, and the way back to the problem that they were made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parenvs.tasks.sharding.problem import Sharding

NEVER = 2**60
"""Forbidden costs within a reduced problem; two of them can be added in int64."""


@dataclass(frozen=True, eq=False)
class Reduced:
    """A reduced problem of n nodes, m edges, u usage terms and T times.

    A plan costs ``constant`` and what its nodes and edges cost; at each time the terms whose
    interval holds it use at most ``slack``.

    Attributes:
        problem: the problem that it was made of; None if it is kept without, and lifts nothing.
        nodes: (n,) its nodes, in the problem's order.
        offset: (n + 1,) where each node's costs begin.
        costs: (s,) cost of each strategy.
        ends: (m, 2) nodes of each edge, the smaller first; every pair once.
        edge_offset: (m + 1,) where each edge's costs begin.
        edge_costs: (e,) cost of each pair, row-major; ``NEVER`` if it is forbidden.
        term_node: (u,) node of each term.
        term_times: (u, 2) half-open interval of times.
        term_offset: (u + 1,) where each term's usages begin.
        usages: usage of each strategy of the term's node, of which the least is 0.
        slack: (T,) what the terms may use at each time.
        constant: cost of every plan.
        values: strategies of the problem's node that each strategy here stands for, (s,).
        steps: how the strategies of the nodes that are gone follow, the last to go first.
    """

    problem: Sharding | None
    nodes: np.ndarray
    offset: np.ndarray
    costs: np.ndarray
    ends: np.ndarray
    edge_offset: np.ndarray
    edge_costs: np.ndarray
    term_node: np.ndarray
    term_times: np.ndarray
    term_offset: np.ndarray
    usages: np.ndarray
    slack: np.ndarray
    constant: int
    values: np.ndarray
    steps: tuple[tuple[int, tuple[int, ...], np.ndarray], ...]

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    def lift(self, chosen: np.ndarray) -> np.ndarray:
        """Return the problem's strategies, (n of the problem,), of a choice here, (n,)."""
        assert self.problem is not None
        strategies = np.full(len(self.problem), -1, dtype=np.int64)
        strategies[self.nodes] = self.values[self.offset[:-1] + chosen]
        for node, neighbours, table in self.steps:
            strategies[node] = table[tuple(strategies[x] for x in neighbours)]
        return strategies

    def cost(self, chosen: np.ndarray) -> int:
        """Return the cost of a choice, (n,); ``NEVER`` or more if it takes something forbidden."""
        a, b = self.ends.T
        at = self.edge_offset[:-1] + chosen[a] * np.diff(self.offset)[b] + chosen[b]
        nodes = self.costs[self.offset[:-1] + chosen]
        return self.constant + sum(nodes.tolist()) + sum(self.edge_costs[at].tolist())

    def profile(self, chosen: np.ndarray) -> np.ndarray:
        """Return what the terms of a choice, (n,), use at each time, (T,)."""
        used = self.usages[self.term_offset[:-1] + chosen[self.term_node]]
        change = np.zeros(len(self.slack) + 1, dtype=np.int64)
        np.add.at(change, self.term_times[:, 0], used)
        np.add.at(change, self.term_times[:, 1], -used)
        return np.cumsum(change)[:-1]

    def legal(self, chosen: np.ndarray) -> bool:
        """Whether a choice, (n,), takes nothing forbidden and keeps the limit."""
        return self.cost(chosen) < NEVER and bool((self.profile(chosen) <= self.slack).all())
