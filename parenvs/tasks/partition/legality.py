"""The rules of partition plans: every reason for which a plan is illegal, in words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parenvs.errors import did_you_mean, shown
from parenvs.graph.layout import shape_text
from parenvs.tasks.partition.classes import DimensionClasses, full_scope
from parenvs.tasks.partition.explain import Explainer
from parenvs.tasks.partition.plan import PartitionPlan

MAX_REASONS = 20
"""Reasons that are given in full."""


class Verdict(NamedTuple):
    """What the rules say of a plan."""

    chosen: np.ndarray  # (C,) bool, the classes that it partitions
    reasons: tuple[str, ...]  # every rule that it breaks; empty if it is legal


def verdict(
    plan: PartitionPlan, classes: DimensionClasses, fingerprint: str, settings: dict[str, Any]
) -> Verdict:
    """Check a plan against the classes of a graph and the settings of a problem.

    What a plan may name, and what it must name in full, follows from the plan's own scope.

    Args:
        plan: the plan.
        classes: the dimension classes of the problem's graph.
        fingerprint: of the graph, which must be the plan's.
        settings: of the problem by name (cluster, rules, ...), which must be the plan's, too.
    """
    known, reasons = _known_entries(plan, classes)
    reasons += _mismatches(plan, classes.graph.name, fingerprint, settings)
    chosen = classes.chosen(known)
    if not reasons:
        reasons = _broken_rules(plan, classes, chosen)
    more = len(reasons) - MAX_REASONS
    if more > 0:
        reasons[MAX_REASONS:] = [f"and {more} more"]
    return Verdict(chosen, tuple(reasons))


def _known_entries(
    plan: PartitionPlan, classes: DimensionClasses
) -> tuple[dict[str, int], list[str]]:
    """The entries that can be looked up, and reasons why the others cannot."""
    scope = full_scope(plan.scope, "step_time")
    graph = classes.graph
    paths = {graph.paths[i] for i in classes.parameters(scope).tolist()}
    what = "batch input" if scope == "inputs" else "variable or batch input"
    known, reasons = {}, []
    for path, dimension in plan.partition.items():
        if path not in paths:
            reasons.append(f"partition: no {what} {shown(path)}{did_you_mean(path, paths)}")
            continue
        tensor = classes.tensor[path]
        if not 0 <= dimension < len(graph.shape(tensor)):
            shape = shape_text(graph, tensor)
            reasons.append(f"partition: {path} is {shape} and has no dimension {dimension}")
        elif graph.shape(tensor)[dimension] == 1:
            reasons.append(f"partition: dimension {dimension} of {path} has size 1")
        else:
            known[path] = dimension
    return known, reasons


def over_memory(peak: float, limit: float) -> tuple[str, ...]:
    """The reason for which a plan of ``peak`` bytes on each device is illegal, if it is one."""
    if peak <= limit:
        return ()
    return (
        f"memory: {peak:,.0f} bytes on each device, {peak - limit:,.0f} more than the {limit:,.0f} "
        "allowed",
    )


def _mismatches(
    plan: PartitionPlan, name: str, fingerprint: str, settings: dict[str, Any]
) -> list[str]:
    """Reasons for which the plan is for another graph, called ``name``, or other settings."""
    reasons = []
    if plan.fingerprint != fingerprint:
        reasons.append(
            f"fingerprint: the plan is for {plan.fingerprint[:19]}..., but {name} is "
            f"{fingerprint[:19]}...; make the plan anew"
        )
    for key, expected in settings.items():
        planned = getattr(plan, key)
        if planned != expected:
            words = ["the graph's batch" if x is None else str(x) for x in (planned, expected)]
            reasons.append(f"{key}: the plan is for {words[0]}, not {words[1]}")
    return reasons


def _broken_rules(plan: PartitionPlan, classes: DimensionClasses, chosen: np.ndarray) -> list[str]:
    """Blocked classes, conflicts, and dimensions that would have to be partitioned as well."""
    graph, words = classes.graph, Explainer(classes)
    named: dict[int, int] = {}  # class -> position of the first dimension that the plan names
    for path, dimension in plan.partition.items():
        position = int(graph.dim_offset[classes.tensor[path]]) + dimension
        named.setdefault(int(classes.label[position]), position)
    reasons = []
    for label, position in named.items():
        if classes.blocked[label]:
            reasons.append(
                f"{words.dimension(position)} cannot be partitioned: {words.blocked(label)}"
            )
    both = chosen[classes.conflicts].all(axis=1)
    for lower, upper in classes.conflicts[both].tolist():
        reasons.append(
            f"{words.dimension(named[lower])} and {words.dimension(named[upper])} cannot both be "
            f"partitioned: {words.conflict(lower, upper)}"
        )
    if reasons:
        return reasons
    tied = classes.partition(chosen, plan.scope)
    for path, dimension in tied.items():
        if path in plan.partition:
            continue
        if len(reasons) >= MAX_REASONS:  # a chain takes a search, and only these are shown
            reasons.append(path)
            continue
        position = int(graph.dim_offset[classes.tensor[path]]) + dimension
        origin = named[int(classes.label[position])]
        reasons.append(
            f"{words.dimension(position)} must be partitioned with {words.dimension(origin)}: "
            f"linked by {words.link(origin, position)}"
        )
    return reasons
