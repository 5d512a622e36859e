"""Pictures of orders of micro-batches: the work of each in its place, and the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parenvs.tasks.order.problem import OrderReport
from parenvs.tasks.order.view.text import title, verdict
from parenvs.view.page import (
    HEIGHT,
    QUIET,
    TRACK,
    WIDTH,
    Page,
    blank_figure,
    ink_on,
    mix,
    reasons_shown,
    text_inches,
)
from parenvs.view.words import duration, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.tasks.order.problem import Order

_LEFT, _RIGHT, _FOOT = 1.1, 0.3, 0.75  # inches beside and below the axes
_UPPER = 1.5  # inches of the work
_NUMBER = 7  # points of a micro-batch's number
_LIGHT, _HEAVY = "#5FB3DE", "#A0569F"
"""Colours of the lightest and the heaviest micro-batch."""


def draw(report: OrderReport | Order) -> Figure:
    """The picture of an order; ``style`` has to be in force.

    Above, the work of the micro-batch at each position; below, a row for each stage with its
    passes, forward lighter than backward, in the colour of the micro-batch's work.

    Args:
        report: what the judge says of a plan, or the problem, whose micro-batches stand by number.
    """
    page = Page(blank_figure())
    if isinstance(report, OrderReport):
        problem, words = report.problem, verdict(report)
        reasons, legal = reasons_shown(report.reasons), report.legal
    else:
        problem, reasons, legal = report, [], True
        words = ["no order yet", f"machine bound {duration(report.bound_seconds)}"]
    top = page.heading(title(problem), words, reasons, legal)
    is_order = isinstance(report, OrderReport) and report.length is not None
    order = np.array(report.plan.order) if is_order else np.arange(problem.micro_batches)  # type: ignore[union-attr]
    colours = _colours(problem.work)
    axes = page.axes(_LEFT, top + 0.15, WIDTH - _LEFT - _RIGHT, _UPPER)
    axes.bar(np.arange(len(order)), problem.work[order], 0.86, color=[colours[m] for m in order])
    if len(order) <= 64:
        axes.set_xticks(np.arange(len(order)), [str(m) for m in order], size=7)
    axes.set_xlim(-0.6, len(order) - 0.4)
    axes.set_ylabel("work (s)", color=QUIET, size=9)
    axes.set_xlabel("micro-batches in their order", color=QUIET, size=9)
    below = top + _UPPER + 0.75
    lower = page.axes(_LEFT, below, WIDTH - _LEFT - _RIGHT, HEIGHT - below - _FOOT)
    if isinstance(report, OrderReport) and report.length is not None:
        _schedule(lower, report, colours)
    else:
        lower.set(xticks=[], yticks=[])
        lower.text(0.0, 0.5, "no schedule without an order", color=QUIET)
    return page.figure


def _colours(work: np.ndarray) -> list[str]:
    """A colour for each micro-batch, by its work."""
    span = float(np.ptp(work)) or 1.0
    return [mix(_LIGHT, _HEAVY, float(x - work.min()) / span) for x in work]


def _schedule(axes: Axes, report: OrderReport, colours: list[str]) -> None:
    """Draw the passes of every stage."""
    from matplotlib.collections import PolyCollection

    begin, end = report.timetable
    _, stages, count = begin.shape
    scale, unit = time_unit(report.length_seconds)
    inches = (WIDTH - _LEFT - _RIGHT) * scale / report.length_seconds  # of a unit of time
    shapes, paints = [], []
    for stage in range(stages):
        low, high = stage + 0.08, stage + 0.92
        axes.axhspan(low, high, color=TRACK, linewidth=0, zorder=0)
        for kind in (0, 1):
            for m in range(count):
                left, right = begin[kind, stage, m] / scale, end[kind, stage, m] / scale
                tone = mix(colours[m], "#FFFFFF", 0.45) if kind == 0 else colours[m]
                if text_inches(f"{m}", _NUMBER) < (right - left) * inches:
                    axes.text(
                        (left + right) / 2, stage + 0.5, f"{m}", size=_NUMBER, color=ink_on(tone),
                        ha="center", va="center",
                    )  # fmt: skip
                shapes.append([(left, low), (right, low), (right, high), (left, high)])
                paints.append(tone)
    axes.add_collection(
        PolyCollection(
            shapes, facecolors=paints, edgecolors="white", linewidths=0.3, gid="passes", zorder=1
        )
    )
    axes.set(xlim=(0, report.length_seconds / scale), ylim=(stages, 0))
    axes.set_yticks([k + 0.5 for k in range(stages)], [f"stage {k}" for k in range(stages)])
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set(visible=True, color=QUIET, linewidth=0.7)
    axes.set_xlabel(
        f"time ({unit}); forward passes light, backward passes dark, numbers of micro-batches, "
        "from the lightest in blue to the heaviest in violet",
        color=QUIET, size=9,
    )  # fmt: skip
