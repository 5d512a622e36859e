"""Rounds stages to what launchers and PyTorch can do, and lets the judge say what that costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from parenvs.core.plan import Plan, judge
from parenvs.core.registry import task_with
from parenvs.core.stages import Stage, Stages
from parenvs.core.task import Task
from parenvs.errors import InfeasibleError, listed, shown
from parenvs.graph.graph import Graph
from parenvs.graph.layout import Layout
from parenvs.view.words import duration


def stages_of(plan: Plan, graph: Graph | None = None, measured: bool = False) -> Stages:
    """Return the stages of a plan, of whole layers.

    Args:
        plan: the plan.
        graph: the graph that it was made for (default: the plan's instance).
        measured: whether the layers of a measured chain will do, which modules have by name.

    Raises:
        InfeasibleError: the judge finds the plan illegal, or there are fewer layers than stages.
        ParenvsError: a plan of a task without stages, or of a chain that was not asked for.
    """
    stages: Stages = task_with(plan, Task.stages).stages(plan, graph, measured)
    if not stages.notes or stages.run is plan:
        return stages
    return noted(stages, f"with the cuts moved, {_cost(stages, stages.run)}")


def refuse(*reasons: tuple[object, str]) -> None:
    """Raise an ``InfeasibleError`` with the first reason that holds."""
    for holds, words in reasons:
        if holds:
            raise InfeasibleError(words)


def refuse_others(
    planned: Stages, framework: str, schedules: Iterable[str], precisions: Iterable[str]
) -> None:
    """Refuse a schedule or a precision that a framework does not have."""
    for field, names in (("schedule", [*schedules]), ("precision", [*precisions])):
        value, options = getattr(planned, field), ", ".join(filter(None, names))
        refuse(
            (value not in names, f"{field}: {framework} has no {value}; plan with one of {options}")
        )


def recomputed(planned: Stages, mode: str, framework: str) -> Stages:
    """Return the stages with all layers recomputed alike, and a note on what that costs."""
    alike = tuple(replace(stage, modes=(mode,) * len(stage.modes)) for stage in planned.stages)
    words = f"recompute: {framework} treats all layers alike; all are recomputed: {mode}"
    return _replanned(planned, alike, words)


def noted(planned: Stages, *notes: str) -> Stages:
    """Return the stages with further notes."""
    return replace(planned, notes=(*planned.notes, *notes))


def run_with(planned: Stages, note: str, **fields: Any) -> Stages:
    """Return the stages as they run with other fields of the plan, and a note that says so."""
    return noted(replace(planned, run=replace(planned.run, **fields)), note)


def loss(planned: Stages) -> float:
    """Return the share by which a step is longer as it runs than as it was planned.

    It is infinite if what runs is illegal.
    """
    if planned.run is planned.plan:
        return 0.0
    report = judge(planned.run, planned.target)
    if not report.legal:
        return math.inf
    return float(report.step_seconds / judge(planned.plan, planned.target).step_seconds - 1)


def with_parts(planned: Stages, parts: Sequence[tuple[int, int]], framework: str) -> Stages:
    """Return the stages, each of one chunk, with other layers, and a note on what that costs."""
    moved = [
        f"{new[0] - old[0]:+d}"
        for old, new in zip(planned.parts[1:], parts[1:], strict=True)
        if new[0] != old[0]
    ]
    stages = tuple(stage.moved(part) for stage, part in zip(planned.stages, parts, strict=True))
    words = f"stages: {framework} divides layers evenly; cuts moved by {', '.join(moved)} layers"
    return _replanned(planned, stages, words)


def _replanned(planned: Stages, stages: tuple[Stage, ...], words: str) -> Stages:
    run = planned.replan(stages)
    return noted(replace(planned, stages=stages, run=run), f"{words}, {_cost(planned, run)}")


def _cost(planned: Stages, rounded: Any) -> str:
    """By how much a rounded plan is slower in words: ``a step 1.2 % longer (3.4 s)``."""
    report = judge(rounded, planned.target)
    if not report.legal:
        return f"and the judge says: {report.reasons[0]}"
    seconds = report.step_seconds
    change = seconds / judge(planned.plan, planned.target).step_seconds - 1
    words = "longer" if change > 0 else "shorter"
    return f"a step {abs(change):.2%} {words} ({duration(seconds)})"


def layout_of(plan: Plan, graph: Graph | None = None, eager: bool = False) -> Layout:
    """Return how a plan lays out the training step that it was made for.

    Args:
        plan: the plan.
        graph: the step's graph (default: the plan's instance).
        eager: whether operations are split one by one as they run, in a framework with pipelines
            and micro-batches of its own (PyTorch), not by a compiler of whole steps (JAX).

    Raises:
        InfeasibleError: the judge finds the plan illegal.
        ParenvsError: a plan of a task without layouts, for another graph, or one that a compiler
            of whole steps cannot be told.
    """
    layout: Layout = task_with(plan, Task.layout).layout(plan, graph, eager)
    return layout


def unmatched(planned: Sequence[str], given: Sequence[str], where: str) -> str:
    """Return the names that a plan and a module or tree (``where``) do not share, in words."""
    parts = []
    for words, names in (
        ("the plan has no", Counter(given) - Counter(planned)),
        (f"the {where} has no", Counter(planned) - Counter(given)),
    ):
        if names:
            parts.append(f"{words} {listed([shown(name) for name in names])}")
    return "; ".join(parts)
