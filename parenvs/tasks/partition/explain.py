"""Why dimensions are partitioned, implied, blocked or excluded under a plan, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import numpy as np

from parenvs.errors import ParenvsError, did_you_mean, printable, shown
from parenvs.graph.graph import Role
from parenvs.graph.layout import shape_text
from parenvs.tasks.partition.view import Viewable, problem_and_report
from parenvs.tasks.partition.words import Explainer
from parenvs.view.words import WIDTH, duration, merged, plural

STATES = {
    "illegal": "partitioned",
    "decided": "partitioned",
    "tied": "partitioned",
    "excluded": "replicated",
    "possible": "replicated",
    "blocked": "blocked",
    "open": "open",
    "tied open": "open",
    "tied blocked": "blocked",
}
"""What becomes of a dimension, by the kind of its reason; ``open``: that is up to a plan."""
MAX_RIVALS = 3
"""Excluded classes that are named where a pattern does not ask for all."""


@dataclass(frozen=True)
class DimensionReason:
    """Why a dimension is partitioned or not.

    Attributes:
        state: ``"partitioned"``, ``"replicated"`` or ``"blocked"`` (no plan can partition it);
            without a plan ``"open"`` or ``"blocked"``.
        members: dimensions of variables in the class.
        classes: different classes of the variables that the explanation is for.
        prospect: without a plan, what plans may do with its class, if the reason does not tell.
    """

    dimension: int
    size: int
    state: str
    label: int
    members: int
    classes: int
    reason: str
    prospect: str = ""


@dataclass(frozen=True)
class Explanation:
    """The reasons of a variable or batch input, or of equal ones of several layers.

    Attributes:
        name: its path, or the common form of several: ``encoder/layer_0..23/self/q``.
        paths: the paths that it stands for; reasons are those of the first.
        role: ``"variable"``, frozen weights included, or ``"batch input"``.
    """

    name: str
    paths: tuple[str, ...]
    shape: str
    role: str
    dimensions: tuple[DimensionReason, ...]


def explain(viewable: Viewable, pattern: str | None = None) -> list[Explanation]:
    """Explain a report's plan, or what plans of a problem may do: ties, blocks and exclusions.

    A glob ``pattern`` over the paths of variables and batch inputs explains each match by itself;
    None explains all, with equal layers merged.

    Raises:
        ParenvsError: nothing matches the pattern.
    """
    reasons = _Reasons(viewable, alone=pattern is not None)
    graph = reasons.graph
    indices = reasons.problem.parameters("all").tolist()
    paths = [graph.paths[i] for i in indices]
    if pattern is not None:
        matching = [i for i in indices if fnmatchcase(graph.paths[i], pattern)]
        if not matching:
            raise ParenvsError(
                f"{graph.name}: no variable or batch input matches {shown(pattern)}"
                f"{did_you_mean(pattern, paths)}"
            )
        return [reasons.explanation(graph.paths[i], [i]) for i in matching]
    keys = [(graph.parameter_role[i], *reasons.equality_key(i)) for i in indices]
    return [
        reasons.explanation(name, [indices[k] for k in positions])
        for name, positions in merged(paths, keys)
    ]


def text_and_json(viewable: Viewable, pattern: str | None = None) -> tuple[str, dict[str, Any]]:
    """The explanations as text and JSON; see ``explain``."""
    explanations = explain(viewable, pattern)
    return explanation_text(explanations), {"variables": [*map(asdict, explanations)]}


def explanation_text(explanations: Sequence[Explanation]) -> str:
    """Explanations as text of at most 110 columns; repeated reasons are references."""
    lines: list[str] = []
    texts: dict[str, str] = {}
    for item in explanations:
        count = len(item.paths)
        what = f"  ({plural(count, item.role) if count > 1 else item.role})"
        what *= count > 1 or item.role != "variable"
        lines += textwrap.wrap(f"{printable(item.name)}  {item.shape}{what}", WIDTH)
        if not item.dimensions:
            lines.append("  no dimension is larger than 1")
        for entry in item.dimensions:
            dims = plural(entry.members, "variable dimension")
            group = f"class {entry.label}: {dims}"
            if entry.classes > 1:
                group = f"class {entry.label} and {entry.classes - 1:,} more: {dims} each"
            where = f"dimension {entry.dimension} of size {entry.size}"
            lines.append(f"  {where:<27} {entry.state:<12} {group}")
            for reason in filter(None, (entry.reason, entry.prospect)):
                reference = f"the same as for dimension {entry.dimension} of {item.name}"
                text, indent = printable(texts.get(reason, reason)), " " * 6
                lines += textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
                texts.setdefault(reason, reference)
    return "\n".join(lines)


class _Reasons:
    """Puts the reason of every dimension into words, under a plan or without one.

    Without a plan, ``alone`` explains each dimension by itself, and lists all of its class.
    """

    def __init__(self, viewable: Viewable, alone: bool) -> None:
        problem, report = problem_and_report(viewable)
        self.problem = problem
        self.planned, self.alone = report is not None, report is None and alone
        self.classes, self.graph = problem.classes, problem.graph
        self.chosen = np.zeros(len(self.classes), bool) if report is None else report.chosen
        self.scope = problem.scope if report is None else report.plan.scope
        self.words = Explainer(self.classes)
        self.paper_weights = problem.returns_of("paper", self.scope).weights
        pairs = self.classes.conflicts
        self.excluded = np.zeros(len(self.classes), bool)
        for first, second in (pairs.T, pairs.T[::-1]):
            self.excluded[first[self.chosen[second]]] = True
        # Class -> its first dimension by path; of what the plan decides, where there is any.
        self.first_position: dict[int, int] = {}
        paths, decided = self.graph.paths, set(problem.parameters(self.scope).tolist())
        parameters = problem.parameters("all").tolist()
        for index in sorted(parameters, key=lambda i: (i not in decided, paths[i])):
            for position in self.positions(index):
                self.first_position.setdefault(int(self.classes.label[position]), position)
        self.blocked = lru_cache(maxsize=None)(self.words.blocked)

    def positions(self, index: int) -> list[int]:
        """Positions in ``graph.dims`` of a parameter's dimensions larger than 1."""
        return self.classes.splittable(self.graph.parameter_tensor[index]).tolist()

    def equality_key(self, index: int) -> tuple[object, ...]:
        """What equal parameters of two layers have in common: shape, kinds of reasons, classes."""
        positions, classes = self.positions(index), self.classes
        shape = shape_text(self.graph, int(self.graph.parameter_tensor[index]))
        counts = classes.variable_counts[classes.label[positions]].tolist()
        return (shape, *map(self.kind, positions), *counts)

    def kind(self, position: int) -> str:
        """A key of ``STATES``."""
        label = int(self.classes.label[position])
        blocked, first = self.classes.blocked[label], self.first_position[label] == position
        if not self.planned:
            kind = "blocked" if blocked else "open"
            return kind if first else f"tied {kind}"
        if self.chosen[label]:
            if blocked or self.excluded[label]:
                return "illegal"
            return "decided" if first else "tied"
        if blocked:
            return "blocked"
        return "excluded" if self.excluded[label] else "possible"

    def reason(self, position: int) -> str:
        """Why; for a dimension that is tied to the first of its class, what ties it."""
        label, kind = int(self.classes.label[position]), self.kind(position)
        if kind in ("tied", "tied open") or (self.alone and kind == "tied blocked"):
            head = self.first_position[label]
            return f"tied to {self.words.dimension(head)} by {self.words.link(head, position)}"
        if not self.planned:
            return self.prospect_words(label)
        if kind == "decided":
            return f"decided; {self.conflict_words(label)}"
        if kind == "possible":
            return self.possible_words(label)
        why = self.blocked(label) if self.classes.blocked[label] else self.exclusion_words(label)
        return f"against the rules: {why}" if kind == "illegal" else why

    def prospect(self, position: int) -> str:
        """What plans may do, where the reason is a tie and no other line says it."""
        tied = self.alone and self.kind(position).startswith("tied")
        return self.prospect_words(int(self.classes.label[position])) if tied else ""

    def exclusion_words(self, label: int) -> str:
        first, *others = [int(x) for x in self.classes.rivals(label) if self.chosen[x]]
        count = len(others)
        more = f" ({count} more exclude{'s' if count == 1 else ''} it, too)" if count else ""
        return (
            f"excluded by class {first}, {self.words.dimension(self.first_position[first])}, which "
            f"is partitioned{more}: {self.words.conflict(label, first)}"
        )

    def possible_words(self, label: int) -> str:
        weight, gain = self.paper_weights[label], float(self.problem.gain_seconds[label])
        verb = "shorten" if gain > 0 else "lengthen"
        change = f"{verb} the step by {duration(abs(gain))}" if gain else "not change the step time"
        return (
            f"nothing forbids it: partitioning the class would add {weight:.3g} to the paper's "
            f"return and {change}"
        )

    def prospect_words(self, label: int) -> str:
        if self.classes.blocked[label]:
            return self.blocked(label)
        return f"{self.possible_words(label)}; {self.conflict_words(label)}"

    def conflict_words(self, label: int) -> str:
        """Which classes of variables and inputs a class excludes, and where; equal layers once."""
        graph, rivals = self.graph, self.classes.rivals(label).tolist()
        rivals = [x for x in rivals if x in self.first_position and not self.classes.blocked[x]]
        if not rivals:
            return "it excludes no other class of variables or inputs"
        at = [self.words.conflict_at(label, rival) for rival in rivals]
        names = [self.words.name_and_dimension(self.first_position[rival]) for rival in rivals]
        paths, dimensions = zip(*names, strict=True)
        keys = [(d, graph.opcode[i]) for d, i in zip(dimensions, at, strict=True)]
        groups = merged(paths, keys)
        listed = groups if self.alone else groups[:MAX_RIVALS]
        words = [
            f"class {rivals[first]}{f' and {len(others):,} more' if others else ''}, dimension "
            f"{dimensions[first]} of {name}, at {self.words.instruction(at[first])}"
            for name, (first, *others) in listed
        ]
        hidden = sum(len(indices) for _, indices in groups[len(listed) :])
        last = f"; and {plural(hidden, 'more class', 'es')}" if hidden else ""
        return f"it excludes {'; '.join(words)}{last}"

    def explanation(self, name: str, indices: list[int]) -> Explanation:
        """The explanation of the parameters ``indices``; the reasons are those of the first."""
        graph, classes, first = self.graph, self.classes, indices[0]
        tensor = int(graph.parameter_tensor[first])
        positions = [self.positions(index) for index in indices]
        dimensions = []
        for position, *others in zip(*positions, strict=True):
            label = int(classes.label[position])
            reason = DimensionReason(
                dimension=position - int(graph.dim_offset[tensor]),
                size=int(graph.dims[position]),
                state=STATES[self.kind(position)],
                label=label,
                members=int(classes.variable_counts[label]),
                classes=len({label, *classes.label[others].tolist()}),
                reason=self.reason(position),
                prospect=self.prospect(position),
            )
            dimensions.append(reason)
        role = "batch input" if graph.parameter_role[first] == Role.BATCH else "variable"
        paths = tuple(graph.paths[i] for i in indices)
        return Explanation(name, paths, shape_text(graph, tensor), role, tuple(dimensions))
