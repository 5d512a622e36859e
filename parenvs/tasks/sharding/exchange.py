"""Partition problems in the contest's format, and its solutions as partitions.

A node of two strategies stands for each class that can be partitioned: replicate costs what the
class would save, partition what it would lose, in nanoseconds. Tensors that live in the same
interval and hold the same classes are one node, whose strategies are: none is partitioned, or one
of them; edges tie it to the classes. Bytes of a group are rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import FORBIDDEN, Sharding

NANOSECONDS = 1e9
"""Units of cost in a second."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A partition problem and its form as an IOPDDL problem.

    Attributes:
        partitioning: the partition problem; its plans are to be fast within the memory.
        problem: the IOPDDL problem; its cost is nanoseconds of a step.
        classes: (k,) classes of the first k nodes.
    """

    partitioning: Partitioning
    problem: Sharding
    classes: np.ndarray

    @classmethod
    def of(cls, partitioning: Partitioning, limit: float | None = None) -> Exchange:
        """Write a partition problem in the contest's format.

        Args:
            partitioning: the partition problem.
            limit: bytes that a device may use (default: the cluster's).
        """
        classes = partitioning.decidable()
        gain = np.rint(partitioning.gain_seconds[classes] * NANOSECONDS).astype(np.int64)
        saved = np.maximum(gain, 0)
        whole = round(partitioning.replicate_seconds * NANOSECONDS)
        costs = [[int(a), int(b)] for a, b in zip(saved, np.maximum(-gain, 0), strict=True)]
        costs.append([max(whole - int(saved.sum()), 0)])
        usages = [[0] * len(row) for row in costs]
        intervals = [[0, 0]] * len(costs)
        node_of = {int(label): node for node, label in enumerate(classes)}
        ends, tables = [], []
        for a, b in partitioning.classes.conflicts.tolist():
            if a in node_of and b in node_of:
                ends.append([node_of[a], node_of[b]])
                tables.append([0, 0, 0, FORBIDDEN])
        for (lo, hi, parameters), sizes in _groups(partitioning, node_of).items():
            for index, label in enumerate(parameters):
                tie = np.full((2, len(sizes)), FORBIDDEN)
                tie[0, :] = 0
                tie[0, index + 1] = FORBIDDEN
                tie[1, index + 1] = 0
                ends.append([node_of[label], len(costs)])
                tables.append(tie.ravel().tolist())
            costs.append([0] * len(sizes))
            usages.append([int(np.ceil(size)) for size in sizes])
            intervals.append([lo, hi])
        allowed = partitioning.memory_limit if limit is None else limit
        problem = Sharding(
            name=partitioning.graph.name,
            limit=int(min(allowed, 2.0**62)),
            intervals=np.array(intervals, dtype=np.int64).reshape(-1, 2),
            offset=_offset(costs),
            costs=np.array([x for row in costs for x in row], dtype=np.int64),
            usages=np.array([x for row in usages for x in row], dtype=np.int64),
            ends=np.array(ends, dtype=np.int64).reshape(-1, 2),
            edge_offset=_offset(tables),
            edge_costs=np.array([x for table in tables for x in table], dtype=np.int64),
        )
        return cls(partitioning, problem, classes)

    def strategies(self, chosen: np.ndarray) -> np.ndarray:
        """(n,) strategies of the IOPDDL problem that partition these classes, (C,) bool.

        A group of tensors takes the strategy that its ties to the classes leave.
        """
        problem, count = self.problem, len(self.classes)
        taken = np.zeros(len(problem), dtype=np.int64)
        taken[:count] = chosen[self.classes]
        for (a, b), first in zip(problem.ends, problem.edge_offset[:-1], strict=True):
            if b > count and taken[a]:
                size = problem.sizes[b]
                row = problem.edge_costs[first + size : first + 2 * size]
                taken[b] = int(np.argmin(row))
        return taken

    def chosen(self, plan: ShardingPlan) -> np.ndarray:
        """(C,) bool, the classes that a plan of the IOPDDL problem partitions.

        Raises:
            ParenvsError: the plan is for another problem, exceeds the limit or takes what is
                forbidden.
        """
        report = self.problem.report(plan)
        if not report.legal or report.forbidden:
            reasons = "; ".join(report.reasons) or "it takes what is forbidden"
            raise ParenvsError(f"{self.problem.name}: the solution is no plan: {reasons}")
        chosen = np.zeros(len(self.partitioning.classes), dtype=bool)
        taken = np.array(plan.strategies[: len(self.classes)], dtype=np.int64)
        chosen[self.classes[taken > 0]] = True
        return chosen


def _groups(
    partitioning: Partitioning, node_of: dict[int, int]
) -> dict[tuple[int, int, tuple[int, ...]], np.ndarray]:
    """(first moment, end, classes) -> bytes if none of these is partitioned, or each one."""
    footprint, graph = partitioning.footprint, partitioning.graph
    moments = max(len(footprint.order), 1)
    parameters = footprint.parameters[footprint.bytes[footprint.parameters] > 0]
    lives = [(tensor, 0, moments) for tensor in parameters.tolist()]
    stays = np.stack(footprint.stays, axis=1)
    lives += [(tensor, first, last + 1) for tensor, first, last in stays.tolist()]
    groups: dict[tuple[int, int, tuple[int, ...]], np.ndarray] = {}
    for tensor, lo, hi in sorted(lives, key=lambda life: life[0]):
        labels = footprint.label[graph.dim_offset[tensor] : graph.dim_offset[tensor + 1]].tolist()
        own = tuple(sorted({x for x in labels if x in node_of and footprint.share[x] < 1}))
        size = float(footprint.bytes[tensor])
        sizes = [size] + [size * float(footprint.share[x]) ** labels.count(x) for x in own]
        key = (lo, hi, own)
        groups[key] = groups.get(key, np.zeros(len(sizes))) + np.array(sizes)
    return groups


def _offset(parts: list[list[int]]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)]).astype(
        np.int64
    )
