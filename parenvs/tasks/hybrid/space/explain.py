"""Why not otherwise: what the best plan costs that takes another value on one axis."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parenvs.tasks.hybrid.legality import PARTS
from parenvs.tasks.hybrid.plan import SCHEDULES, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.schedules import SPLIT
from parenvs.tasks.hybrid.space import Constraints, UniformSpace

AXES = ("tp", "pp", "dp", "micro_batch", "chunks", "sequence_parallel", "zero", "recompute",
        "schedule")  # fmt: skip
"""Axes of uniform plans that are told apart."""


class Alternative(NamedTuple):
    """The best uniform plan with another value on one axis.

    Attributes:
        axis: one of ``AXES``.
        value: its other value.
        text: the plan in words.
        length: seconds of a step; inf if no such plan fits.
        excess: share by which it takes longer than the plan explained.
        slower: parts of a step that take longer, ``(part, seconds)``, the most first.
        faster: parts that take less, likewise.
        missing_bytes: bytes by which the smallest such plan exceeds the memory; 0 if one fits.
        largest: the largest part of its memory.
    """

    axis: str
    value: Any
    text: str
    length: float
    excess: float
    slower: tuple[tuple[str, float], ...] = ()
    faster: tuple[tuple[str, float], ...] = ()
    missing_bytes: float = 0.0
    largest: str = ""


def axes_of(plan: HybridPlan) -> dict[str, Any]:
    """Return the plan's value on every axis; None where its stages differ."""
    stages = plan.stages

    def common(values: set[Any]) -> Any:
        return values.pop() if len(values) == 1 else None

    return {
        "tp": common({stage.tp for stage in stages}),
        "pp": len(stages),
        "dp": common({stage.devices // (stage.tp * plan.context) for stage in stages}),
        "micro_batch": plan.micro_batch,
        "chunks": plan.chunks,
        "sequence_parallel": plan.sequence_parallel,
        "zero": common({stage.zero for stage in stages}),
        "recompute": common({mode for stage in stages for mode in stage.modes}),
        "schedule": plan.schedule if plan.schedule in SPLIT else SCHEDULES[0],
    }


def alternatives(
    report: HybridReport, space: UniformSpace, axes: tuple[str, ...] = AXES
) -> list[Alternative]:
    """Return, for every other value of every axis, the best uniform plan that has it.

    Args:
        report: what the judge says of a well-formed plan.
        space: the uniform plans of its problem.
        axes: some of ``AXES``.
    """
    own = axes_of(report.plan)
    found: list[Alternative] = []
    for axis in axes:
        column = getattr(space.plans, axis)
        if axis == "schedule":  # with chunks it is interleaved
            column = np.where(column == "", SCHEDULES[0], column)
        found += [
            _best(report, space, axis, value, column == value)
            for value in np.unique(column).tolist()
            if value != own[axis]
        ]
    return found


def space_of(report: HybridReport, constraints: Constraints | None = None) -> UniformSpace:
    """Return the uniform plans of a report's problem, on as many devices as its plan uses."""
    plan = report.plan
    problem = Hybrid(
        report.model, report.cluster, report.batch, report.machine.stack, plan.precision,
        instance=plan.instance,
    )  # fmt: skip
    used = report.devices_used
    limits = constraints or Constraints(devices=None if used == report.cluster.devices else used)
    return UniformSpace.build(problem, limits)


def _best(
    report: HybridReport, space: UniformSpace, axis: str, value: Any, which: np.ndarray
) -> Alternative:
    """Return the fastest of some plans that fits, or the smallest if none does."""
    fitting = which & space.fits
    if not fitting.any():
        totals = np.where(which, space.memory["total"], np.inf)
        k = int(totals.argmin())
        missing = float(totals[k]) - space.problem.memory_limit
        largest = max(PARTS, key=lambda name: float(space.memory[name][k]))
        text = space.describe(k)
        return Alternative(
            axis, value, text, np.inf, np.inf, missing_bytes=missing, largest=largest
        )
    k = int(np.where(fitting, space.length, np.inf).argmin())
    other = space.problem.report(space.plan(k))
    changes = {
        part: seconds - report.seconds.get(part, 0.0) for part, seconds in other.seconds.items()
    }
    order = sorted(changes.items(), key=lambda pair: -abs(pair[1]))
    least = 1e-4 * report.length_seconds
    return Alternative(
        axis,
        value,
        space.describe(k),
        other.length_seconds,
        other.length_seconds / report.length_seconds - 1,
        tuple((part, x) for part, x in order if x > least),
        tuple((part, -x) for part, x in order if x < -least),
    )
