"""Dimension classes: what is partitioned together, what can never be, and what excludes what.

Every tensor has one partitioning, the same for its producer and all its consumers, and nothing is
resharded. So all dimensions that factors link, directly or through others, form a **class**:
partitioning one member partitions all. A class is **blocked** if a member is in no factor of an
instruction that touches it, or if two factors of one instruction fall in it. Two classes
**conflict** if they hold two factors of one instruction. Deciding a class "partition" forces every
class that conflicts with it to "replicate"; that is the whole closure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph, Role
from parenvs.tasks.partition.factors import Factors
from parenvs.tasks.partition.plan import RULE_SETS, UNEVEN


def full_scope(scope: str, reward: str) -> str:
    """Entry parameters that are decided: ``"variables"``, ``"inputs"``, or ``"all"``.

    Under the step time of a plan that decides variables, batch inputs are decided with them.
    """
    return "all" if (scope, reward) == ("variables", "step_time") else scope


@dataclass(frozen=True)
class DimensionClasses:
    """The dimension classes of a graph. N dimensions in all (``Graph.dims``), C classes.

    Attributes:
        graph: the graph.
        factors: what the rules say of its instructions.
        label: (N,) int32, class of each dimension of each tensor; classes that hold only free
            tensors and dimensions of size 1 have no factor and never matter.
        blocked: (C,) bool.
        blocked_by: (C,) int32, an instruction that blocks the class; -1 if none does, or if only
            its size does (``uneven="forbid"``).
        conflicts: (K, 2) int32 pairs of classes, the lower first, sorted, each once.
        conflict_at: (K,) int32, the first instruction that makes each pair conflict.
        devices: devices that a dimension is split over, if ``uneven="forbid"`` asks for it.
    """

    graph: Graph
    factors: Factors
    label: np.ndarray
    blocked: np.ndarray
    blocked_by: np.ndarray
    conflicts: np.ndarray
    conflict_at: np.ndarray
    devices: int = 0

    def __repr__(self) -> str:
        """Graph and counts in a line."""
        return (
            f"DimensionClasses({self.graph.name!r}, {len(self)} classes, "
            f"{int(self.blocked.sum())} blocked, {len(self.conflicts)} conflicts)"
        )

    def __len__(self) -> int:
        """Number of classes."""
        return len(self.blocked)

    @cached_property
    def inputs(self) -> np.ndarray:
        """Indices into the parameter arrays of the batch inputs, in parameter order."""
        return np.flatnonzero(self.graph.parameter_role == Role.BATCH)

    def parameters(self, scope: str) -> np.ndarray:
        """Indices into the parameter arrays of a scope's entry parameters, variables first."""
        both = (self.graph.weights, self.inputs)
        return np.concatenate({"variables": both[:1], "inputs": both[1:], "all": both}[scope])

    @cached_property
    def tensor(self) -> dict[str, int]:
        """Tensor of each variable and batch input, by path."""
        tensors = self.graph.parameter_tensor
        return {self.graph.paths[i]: int(tensors[i]) for i in self.parameters("all").tolist()}

    def dimensions_of(self, parameters: np.ndarray) -> np.ndarray:
        """(n,) int64, positions in ``graph.dims`` of the dimensions of entry parameters."""
        graph = self.graph
        tensors = graph.parameter_tensor[parameters]
        return np.concatenate(
            [np.arange(graph.dim_offset[t], graph.dim_offset[t + 1]) for t in tensors]
            or [np.zeros(0, dtype=np.int64)]
        )

    @cached_property
    def variable_dimensions(self) -> np.ndarray:
        """(V,) int64, positions in ``graph.dims`` of the variables' dimensions, in their order."""
        return self.dimensions_of(self.graph.weights)

    def counts(self, dimensions: np.ndarray) -> np.ndarray:
        """(C,) number of the given dimensions, of those larger than 1, in each class."""
        splittable = dimensions[self.graph.dims[dimensions] > 1]
        return np.bincount(self.label[splittable], minlength=len(self))

    @cached_property
    def variable_counts(self) -> np.ndarray:
        """(C,) number of variable dimensions, larger than 1, in each class."""
        return self.counts(self.variable_dimensions)

    @cached_property
    def factor_class(self) -> np.ndarray:
        """(F,) int32, class of each factor of ``factors``."""
        return self.label[self.factors.member]

    def rivals(self, chosen: int) -> np.ndarray:
        """Classes that conflict with a class: what partitioning it forces to replicate."""
        first, second = self.conflicts.T
        return np.sort(np.concatenate([second[first == chosen], first[second == chosen]]))

    def legal(self, chosen: np.ndarray) -> bool:
        """Whether the classes ``chosen``, (C,) bool, can be partitioned together."""
        first, second = self.conflicts.T
        return not (chosen & self.blocked).any() and not (chosen[first] & chosen[second]).any()

    def chosen(self, partition: Mapping[str, int]) -> np.ndarray:
        """(C,) bool, the classes of the partitioned dimensions of entry parameters, by path."""
        chosen = np.zeros(len(self), dtype=bool)
        for path, dimension in partition.items():
            chosen[self.label[self.graph.dim_offset[self.tensor[path]] + dimension]] = True
        return chosen

    def with_sizes(self, uneven: str, devices: int) -> DimensionClasses:
        """The same classes, blocked by the rules and by the sizes of the graph's dimensions.

        Args:
            uneven: ``"pad"`` or ``"forbid"``, as in ``dimension_classes``.
            devices: devices that a dimension would be split over.
        """
        dims, blocked = self.graph.dims, self.blocked_by >= 0
        if uneven == "forbid":
            blocked[self.label[(dims > 1) & (dims % max(devices, 1) != 0)]] = True
        return replace(self, blocked=blocked, devices=devices)

    def partition(self, chosen: np.ndarray, scope: str) -> dict[str, int]:
        """Partitioned dimension of each entry parameter of a scope that has one, by path."""
        graph, indices = self.graph, self.parameters(scope)
        tensors = graph.parameter_tensor[indices]
        begin, end = graph.dim_offset[tensors], graph.dim_offset[tensors + 1]
        split = np.flatnonzero(chosen[self.label] & (graph.dims > 1))
        first = np.append(split, len(graph.dims))[np.searchsorted(split, begin)]
        found = first < end
        places = zip(indices[found].tolist(), (first - begin)[found].tolist(), strict=True)
        return {graph.paths[index]: dimension for index, dimension in places}


def dimension_classes(
    graph: Graph, rules: str = "shardy", uneven: str = "pad", devices: int = 0
) -> DimensionClasses:
    """The dimension classes of a graph.

    Args:
        graph: the graph.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` splits any dimension; ``"forbid"`` blocks classes with a member that is no
            multiple of ``devices``.
        devices: devices that a dimension would be split over; needed for ``"forbid"`` only.

    Raises:
        ParenvsError: an unknown rule set or treatment of uneven dimensions.
        HloError: an opcode without a rule; names the instruction.
    """
    if rules not in RULE_SETS or uneven not in UNEVEN:
        raise ParenvsError(f"rules must be one of {RULE_SETS}, uneven one of {UNEVEN}")
    return _linked(_Same(graph), rules).with_sizes(uneven, devices)


class _Same:
    """A graph as a key: it equals itself alone, as its arrays have no hash."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.graph is self.graph


@lru_cache(maxsize=4)
def _linked(same: _Same, rules: str) -> DimensionClasses:
    """The classes by the rules alone; the same graph object gives the same classes."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = same.graph
    factors = Factors.of(graph, rules)
    size = len(graph.dims)
    links = coo_array((np.ones(len(factors.links)), factors.links.T), shape=(size, size))
    count, label = connected_components(links, directed=False)
    blocked_by = np.full(count, -1, dtype=np.int32)
    for instruction, dimension in factors.untouchable[::-1].tolist():
        blocked_by[label[dimension]] = instruction
    first_conflict: dict[tuple[int, int], int] = {}  # pair of classes -> instruction
    for instruction, classes in _exclusive(factors, label):
        for i, lower in enumerate(classes):
            for upper in classes[i + 1 :]:
                if lower == upper:
                    if blocked_by[lower] < 0:
                        blocked_by[lower] = instruction
                else:
                    first_conflict.setdefault((lower, upper), instruction)
    pairs = sorted(first_conflict)
    return DimensionClasses(
        graph=graph,
        factors=factors,
        label=label.astype(np.int32),
        blocked=blocked_by >= 0,
        blocked_by=blocked_by,
        conflicts=np.array(pairs, dtype=np.int32).reshape(-1, 2),
        conflict_at=np.array([first_conflict[pair] for pair in pairs], dtype=np.int32),
    )


def _exclusive(factors: Factors, label: np.ndarray) -> list[tuple[int, list[int]]]:
    """Instructions with several factors, and the sorted classes of these."""
    starts = [*np.flatnonzero(np.diff(factors.instruction, prepend=-1)), len(factors.instruction)]
    classes = label[factors.member].tolist()
    return [
        (int(factors.instruction[start]), sorted(classes[start:end]))
        for start, end in itertools.pairwise(starts)
        if end - start > 1
    ]
