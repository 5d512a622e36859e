"""Why each dimension of a judged plan is partitioned or not: what ``parenvs explain`` says."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.graph.graph import Role
from parenvs.partitioning.classes import scope_of
from parenvs.partitioning.explain import Explainer, shape_text
from parenvs.partitioning.problem import PartitionReport
from parenvs.viewer.partition_grid import merged
from parenvs.viewer.words import duration, printable

WIDTH = 110
"""Columns of the text."""
STATES = {
    "illegal": "partitioned",
    "decided": "partitioned",
    "tied": "partitioned",
    "excluded": "replicated",
    "possible": "replicated",
    "blocked": "blocked",
}
"""What becomes of a dimension, by the kind of its reason."""


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
    """The reasons of a variable or batch input, or of equal ones of several layers.

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
        for entry in item.dimensions:
            dims = f"{entry.members:,} variable dimension{'' if entry.members == 1 else 's'}"
            group = f"class {entry.label}: {dims}"
            if entry.classes > 1:
                group = f"class {entry.label} and {entry.classes - 1:,} more: {dims} each"
            where = f"dimension {entry.dimension} of size {entry.size}"
            lines.append(f"  {where:<27} {entry.state:<12} {group}")
            reason = told.get(entry.reason, entry.reason)
            again = f"the same as for dimension {entry.dimension} of {item.name}"
            told.setdefault(entry.reason, again)
            lines += textwrap.wrap(
                printable(reason), WIDTH, initial_indent="      ", subsequent_indent="      "
            )
    return "\n".join(lines)


class _Reasons:
    """Puts the reason of every dimension under one plan into words."""

    def __init__(self, report: PartitionReport) -> None:
        self.problem, self.chosen = report.problem, report.chosen
        self.classes, self.graph = self.problem.classes, self.problem.graph
        self.words: Explainer = report.explainer
        self.scope = scope_of(report.plan.task, "paper")
        self.paper_weights = self.problem.returns_of("paper", self.scope).weights
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
        head: dict[int, int] = {}
        for index in order:
            for position in self.positions(index):
                head.setdefault(int(self.classes.label[position]), position)
        return head

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
        return STATES[self.kind(position)]

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
        weight = float(self.paper_weights[label])
        gain = float(self.problem.gain_seconds[label])
        change = f"shorten the step by {duration(gain)}" if gain > 0 else "not change the step time"
        if gain < 0:
            change = f"lengthen the step by {duration(-gain)}"
        return (
            f"nothing forbids it: partitioning the class would add {weight:.3g} to the paper's "
            f"return and {change}"
        )


def _explanation(reasons: _Reasons, name: str, indices: list[int]) -> Explanation:
    """The explanation of the parameters ``indices``; the reasons are those of the first."""
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
