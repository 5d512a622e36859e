"""Why a dimension is partitioned, cannot be, or excludes another, in words.

JOINED: Why each variable of a judged plan is partitioned or not: what ``parenvs explain`` says.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.graph.graph import Graph, Role
from parenvs.graph.proto import ELEMENT_TYPES
from parenvs.partitioning.classes import DimensionClasses
from parenvs.partitioning.problem import scope_of
from parenvs.viewer.partition_grid import merged
from parenvs.viewer.words import duration, printable

if TYPE_CHECKING:
    from parenvs.partitioning.judge import PartitionReport


MOST_STEPS = 6
"""Instructions of a chain of links that are named; the middle of a longer one is left out."""


class Explainer:
    """Puts the classes of a graph into words.

    Args:
        classes: the dimension classes; dimensions are positions in ``graph.dims``.
    """

    def __init__(self, classes: DimensionClasses) -> None:
        self.classes, self.graph = classes, classes.graph
        self._owner = np.repeat(
            np.arange(len(self.graph.element_type)), np.diff(self.graph.dim_offset)
        )
        paths = zip(self.graph.parameter_tensor.tolist(), self.graph.paths, strict=True)
        self._path = dict(paths)
        self._searched: dict[int, dict[int, int]] = {}

    def dimension(self, position: int) -> str:
        """``dimension 1 of encoder/layer_0/self/q`` or ``dimension 2 of f32[64,512,768]``."""
        tensor = int(self._owner[position])
        d = position - int(self.graph.dim_offset[tensor])
        return f"dimension {d} of {self._path.get(tensor) or shape_text(self.graph, tensor)}"

    def instruction(self, index: int) -> str:
        """``instruction 812, dot (jit(step)/encoder/layer_0/...)``."""
        graph = self.graph
        name = graph.strings[graph.op_name[index]]
        opcode = graph.opcodes[graph.opcode[index]]
        return f"instruction {index}, {opcode}" + (f" ({name})" if name else "")

    def blocked(self, label: int) -> str:
        """Why a class can never be partitioned."""
        classes = self.classes
        at = int(classes.blocked_by[label])
        if at < 0:
            wide = np.flatnonzero((classes.label == label) & (self.graph.dims > 1))
            odd = wide[self.graph.dims[wide] % classes.devices != 0][0]
            return (
                f"{self.dimension(int(odd))}, of size {self.graph.dims[odd]}, is no multiple of "
                f"{classes.devices} devices (uneven=forbid)"
            )
        where, positions = classes.factors.untouchable.T
        here = positions[(where == at) & (classes.label[positions] == label)]
        if here.size:
            return f"{self.instruction(at)} cannot split {self.dimension(int(here[0]))}"
        one, other = self._members(at, (label,))[:2]
        return (
            f"{self.instruction(at)} would split both {self.dimension(one)} and "
            f"{self.dimension(other)}, which belong together"
        )

    def conflict(self, one: int, other: int) -> str:
        """Why two classes cannot be partitioned together.

        Raises:
            ValueError: they can.
        """
        pair = sorted((one, other))
        row = np.flatnonzero((self.classes.conflicts == pair).all(axis=1))
        if not row.size:
            raise ValueError(f"classes {one} and {other} do not conflict")
        at = int(self.classes.conflict_at[row[0]])
        first = self._members(at, (one,))[0]
        second = self._members(at, (other,))[0]
        return (
            f"{self.instruction(at)} would split both {self.dimension(first)} and "
            f"{self.dimension(second)}"
        )

    def link(self, start: int, end: int) -> str:
        """Through which instructions two dimensions of one class belong together."""
        steps = self.chain(start, end)
        words = [self.instruction(index) for index in steps]
        if len(words) > MOST_STEPS:
            half = MOST_STEPS // 2
            words[half:-half] = [f"{len(words) - 2 * half} more"]
        return ", ".join(words)

    def chain(self, start: int, end: int) -> list[int]:
        """Instructions on a shortest chain of links from one dimension to another of its class.

        Raises:
            ValueError: they belong to different classes.
        """
        before = self._search(start)
        if end not in before:
            raise ValueError("the dimensions belong to different classes")
        steps: list[int] = []
        position = end
        while position != start:
            previous = before[position]
            instruction = self._link_at(previous, position)
            if not steps or steps[-1] != instruction:
                steps.append(instruction)
            position = previous
        return steps[::-1]

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Linked pairs of dimensions as sorted numbers, and the first instruction of each."""
        low, high = np.sort(self.classes.factors.links, axis=1).T
        pairs, first = np.unique(low * len(self.graph.dims) + high, return_index=True)
        return pairs, self.classes.factors.link_at[first]

    def _link_at(self, one: int, other: int) -> int:
        """The first instruction that links two dimensions."""
        pairs, instruction = self._pairs
        number = min(one, other) * len(self.graph.dims) + max(one, other)
        return int(instruction[np.searchsorted(pairs, number)])

    @cached_property
    def _neighbours(self) -> Any:
        """The links as a symmetric matrix, N x N."""
        from scipy.sparse import coo_array

        size = len(self.graph.dims)
        both = np.concatenate([self.classes.factors.links, self.classes.factors.links[:, ::-1]])
        return coo_array((np.ones(len(both)), both.T), shape=(size, size)).tocsr()

    def _search(self, start: int) -> dict[int, int]:
        """For each dimension of a class, the one before it on a shortest chain from ``start``."""
        from scipy.sparse.csgraph import breadth_first_order

        if start not in self._searched:
            order, before = breadth_first_order(self._neighbours, start)
            self._searched[start] = dict(zip(order.tolist(), before[order].tolist(), strict=True))
        return self._searched[start]

    def _members(self, instruction: int, labels: tuple[int, ...]) -> list[int]:
        """A dimension of each factor of an instruction that falls into the classes."""
        factors = self.classes.factors
        here = (factors.instruction == instruction) & np.isin(self.classes.factor_class, labels)
        return factors.member[here].tolist()


def shape_text(graph: Graph, tensor: int) -> str:
    """``f32[64,512,768]``."""
    kind = ELEMENT_TYPES[int(graph.element_type[tensor])][0]
    return f"{kind}[{','.join(map(str, graph.shape(tensor)))}]"


WIDTH = 110
"""Columns of the text."""
PARTITIONED, REPLICATED, BLOCKED = "partitioned", "replicated", "blocked"


@dataclass(frozen=True)
class DimensionReason:
    """Why a dimension is partitioned or not.

    Attributes:
        dimension: its number.
        size: its size, more than 1.
        state: ``"partitioned"``, ``"replicated"`` or ``"blocked"`` (no plan can partition it).
        label: its class.
        members: dimensions of variables in the class.
        classes: different classes of the variables that the explanation is for.
        reason: in words.
    """

    dimension: int
    size: int
    state: str
    label: int
    members: int
    classes: int
    reason: str


@dataclass(frozen=True)
class Explanation:
    """What is said of a variable or batch input, or of equal ones of several layers.

    Attributes:
        name: its path, or the common form of several: ``encoder/layer_0..23/self/q``.
        paths: the paths that it stands for; reasons are those of the first.
        shape: ``f32[1024,16384]``.
        role: ``"variable"`` or ``"batch input"``.
        dimensions: the dimensions larger than 1.
    """

    name: str
    paths: tuple[str, ...]
    shape: str
    role: str
    dimensions: tuple[DimensionReason, ...]


def explain(report: PartitionReport, pattern: str | None = None) -> list[Explanation]:
    """Explain a judged plan.

    Args:
        report: what the judge says of the plan.
        pattern: a glob over the paths of variables and batch inputs, each of which is then
            explained by itself; None explains all, with equal layers merged.

    Raises:
        ParenvsError: nothing matches the pattern.
    """
    problem, reasons = report.problem, _Reasons(report)
    graph = problem.graph
    indices = problem.parameters("all").tolist()
    paths = [graph.paths[i] for i in indices]
    if pattern is not None:
        indices = [i for i in indices if fnmatchcase(graph.paths[i], pattern)]
        if not indices:
            raise ParenvsError(
                f"{graph.name}: no variable or batch input matches {shown(pattern)}"
                f"{did_you_mean(pattern, paths)}"
            )
        return [_explanation(reasons, graph.paths[i], [i]) for i in indices]
    keys = [(graph.parameter_role[i], *reasons.likeness(i)) for i in indices]
    return [
        _explanation(reasons, name, [indices[k] for k in places])
        for name, places in merged(paths, keys)
    ]


def explanation_text(explanations: Sequence[Explanation]) -> str:
    """Explanations as text of at most 110 columns, without a newline at the end.

    A reason is given once; where it comes again, the text says where it stands.
    """
    lines: list[str] = []
    told: dict[str, str] = {}
    for item in explanations:
        count = len(item.paths)
        many = f"{count:,} variables" if item.role == "variable" else f"{count:,} batch inputs"
        what = f"  ({many})" if count > 1 else "  (batch input)" * (item.role != "variable")
        lines += textwrap.wrap(f"{printable(item.name)}  {item.shape}{what}", WIDTH)
        if not item.dimensions:
            lines.append("  no dimension is larger than 1")
        for one in item.dimensions:
            dims = f"{one.members:,} variable dimension{'' if one.members == 1 else 's'}"
            group = f"class {one.label}: {dims}"
            if one.classes > 1:
                group = f"class {one.label} and {one.classes - 1:,} more: {dims} each"
            where = f"dimension {one.dimension} of size {one.size}"
            lines.append(f"  {where:<27} {one.state:<12} {group}")
            reason = told.get(one.reason, one.reason)
            told.setdefault(one.reason, f"the same as for dimension {one.dimension} of {item.name}")
            lines += textwrap.wrap(
                printable(reason), WIDTH, initial_indent="      ", subsequent_indent="      "
            )
    return "\n".join(lines)


class _Reasons:
    """The reasons of one plan."""

    def __init__(self, report: PartitionReport) -> None:
        self.problem, self.chosen = report.problem, report.chosen
        self.classes, self.graph = self.problem.classes, self.problem.graph
        self.words: Explainer = report.explainer
        self.scope = scope_of(report.plan.task, "paper")
        pairs = self.classes.conflicts
        self.excluded = np.zeros(len(self.classes), dtype=bool)
        self.excluded[pairs[self.chosen[pairs[:, 1]], 0]] = True
        self.excluded[pairs[self.chosen[pairs[:, 0]], 1]] = True
        self.head = self._heads()
        self._blocked: dict[int, str] = {}

    def _heads(self) -> dict[int, int]:
        """Class -> its first dimension by path; of what the plan decides, where there is any."""
        graph, decided = self.graph, set(self.problem.parameters(self.scope).tolist())
        order = sorted(
            self.problem.parameters("all").tolist(),
            key=lambda i: (i not in decided, graph.paths[i]),
        )
        found: dict[int, int] = {}
        for index in order:
            for position in self.positions(index):
                found.setdefault(int(self.classes.label[position]), position)
        return found

    def positions(self, index: int) -> list[int]:
        """Positions in ``graph.dims`` of a parameter's dimensions larger than 1."""
        tensor = self.graph.parameter_tensor[index]
        start, end = self.graph.dim_offset[tensor : tensor + 2].tolist()
        return [p for p in range(start, end) if self.graph.dims[p] > 1]

    def likeness(self, index: int) -> tuple[object, ...]:
        """What equal parameters of two layers have in common: shape, kinds of reasons, classes."""
        positions = self.positions(index)
        labels = [int(self.classes.label[p]) for p in positions]
        return (
            shape_text(self.graph, int(self.graph.parameter_tensor[index])),
            tuple(self.kind(p) for p in positions),
            tuple(int(self.classes.variable_counts[label]) for label in labels),
        )

    def kind(self, position: int) -> str:
        """What sort of reason a dimension has."""
        label = int(self.classes.label[position])
        if self.chosen[label]:
            if self.classes.blocked[label] or self.excluded[label]:
                return "illegal"
            return "decided" if self.head[label] == position else "tied"
        if self.classes.blocked[label]:
            return "blocked"
        return "excluded" if self.excluded[label] else "possible"

    def state(self, position: int) -> str:
        """``"partitioned"``, ``"replicated"`` or ``"blocked"``."""
        kind = self.kind(position)
        if kind == "blocked":
            return BLOCKED
        return REPLICATED if kind in ("excluded", "possible") else PARTITIONED

    def reason(self, position: int) -> str:
        """The reason in words."""
        label, kind = int(self.classes.label[position]), self.kind(position)
        if kind == "illegal":
            why = self.blocked(label) if self.classes.blocked[label] else self.exclusion(label)
            return f"against the rules: {why}"
        if kind == "decided":
            return f"decided; {self.consequence(label)}"
        if kind == "tied":
            head = self.head[label]
            return f"tied to {self.words.dimension(head)} by {self.words.link(head, position)}"
        if kind == "blocked":
            return self.blocked(label)
        return self.exclusion(label) if kind == "excluded" else self.offer(label)

    def blocked(self, label: int) -> str:
        """Why a class can never be partitioned."""
        if label not in self._blocked:
            self._blocked[label] = self.words.blocked(label)
        return self._blocked[label]

    def consequence(self, label: int) -> str:
        """What a partitioned class excludes."""
        rivals = [
            int(x)
            for x in self.classes.rivals(label)
            if int(x) in self.head and not self.classes.blocked[x]
        ]
        if not rivals:
            return "it excludes no other class of variables or inputs"
        dims = int(self.classes.variable_counts[rivals].sum())
        more = f", for example {self.words.dimension(self.head[rivals[0]])}"
        many = f"{len(rivals)} class{'es' if len(rivals) > 1 else ''}"
        return (
            f"it excludes {many} ({dims} variable dimension{'' if dims == 1 else 's'}){more}: "
            f"{self.words.conflict(label, rivals[0])}"
        )

    def exclusion(self, label: int) -> str:
        """Which partitioned class excludes a class, and where."""
        rivals = [int(x) for x in self.classes.rivals(label) if self.chosen[x]]
        first, count = rivals[0], len(rivals) - 1
        more = f" ({count} more exclude{'s' if count == 1 else ''} it, too)" if count else ""
        return (
            f"excluded by class {first}, {self.words.dimension(self.head[first])}, which is "
            f"partitioned{more}: {self.words.conflict(label, first)}"
        )

    def offer(self, label: int) -> str:
        """What partitioning a class would change, where nothing forbids it."""
        weight = float(self.problem.weights("paper", self.scope)[1][label])
        gain = float(self.problem.gain_seconds[label])
        change = f"shorten the step by {duration(gain)}" if gain > 0 else "not change the step time"
        if gain < 0:
            change = f"lengthen the step by {duration(-gain)}"
        return (
            f"nothing forbids it: partitioning the class would add {weight:.3g} to the paper's "
            f"return and {change}"
        )


def _explanation(reasons: _Reasons, name: str, indices: list[int]) -> Explanation:
    """The explanation of some parameters; the reasons are those of the first."""
    graph, classes = reasons.graph, reasons.classes
    first = indices[0]
    places = [reasons.positions(index) for index in indices]
    start = int(graph.dim_offset[graph.parameter_tensor[first]])
    dimensions = []
    for k, position in enumerate(places[0]):
        label = int(classes.label[position])
        dimensions.append(
            DimensionReason(
                dimension=position - start,
                size=int(graph.dims[position]),
                state=reasons.state(position),
                label=label,
                members=int(classes.variable_counts[label]),
                classes=len({int(classes.label[place[k]]) for place in places}),
                reason=reasons.reason(position),
            )
        )
    return Explanation(
        name=name,
        paths=tuple(graph.paths[i] for i in indices),
        shape=shape_text(graph, int(graph.parameter_tensor[first])),
        role="variable" if graph.parameter_role[first] == Role.VARIABLE else "batch input",
        dimensions=tuple(dimensions),
    )
