"""Pictures of jobs on nodes that come and go: nodes, the plan in force, samples, changes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.run import Run
from parenvs.tasks.elastic.view.text import plan_name, run_of, title, verdict
from parenvs.view.page import (
    INK,
    QUIET,
    RED,
    TRACK,
    WIDTH,
    Page,
    blank_figure,
    ink_on,
    mix,
    stage_colour,
    text_inches,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEFT, _RIGHT = 0.9, 0.3  # inches beside the axes
_HEIGHTS = (1.9, 0.75, 1.9, 0.9)  # of nodes, plans, samples, changes
_GAP = 0.3


def draw(viewable: Run | Elastic) -> Figure:
    """The picture of a run, or of the nodes of a problem; ``style`` has to be in force.

    From above: nodes that are there, with those in use and the spares; the plan in force; samples
    a second beside those of the fastest plan; and the seconds of each change, in red where the job
    had stopped as a node left. Each panel names its colours.
    """
    run = run_of(viewable)
    page = Page(blank_figure())
    top = page.heading(title(run), verdict(run), [], True) + 0.1
    width, panels = WIDTH - _LEFT - _RIGHT, []
    for height in _HEIGHTS:
        panels.append(page.axes(_LEFT, top, width, height))
        top += height + _GAP
    problem = run.problem
    scale, unit = (3600.0, "h") if problem.intervals * problem.seconds > 7200 else (60.0, "min")
    edges = np.arange(problem.intervals + 1) * problem.seconds / scale
    for axes in panels:
        axes.set_xlim(0, edges[-1])
    for axes in panels[:-1]:
        axes.set_xticklabels([])
    _draw_nodes(panels[0], run, edges)
    _plans(panels[1], run, edges, width / edges[-1])
    _samples(panels[2], run, edges)
    _changes(panels[3], run, edges)
    panels[3].set_xlabel(f"time ({unit})", color=QUIET, size=9)
    return page.figure


def _draw_nodes(axes: Axes, run: Run, edges: np.ndarray) -> None:
    """Draw the nodes, as far as the run has come."""
    library, count = run.problem.library, len(run.plans)
    nodes = run.course.nodes[: max(count, 1)]
    used, spares = library.used[run.plans], library.spares[run.plans]
    axes.stairs(nodes, edges[: len(nodes) + 1], color=INK, linewidth=1.0, label="there")
    if count:
        starts, tone = edges[: count + 1], mix("#E3A02B", "#FFFFFF", 0.3)
        axes.stairs(used + spares, starts, fill=True, color=tone, label="spare")
        axes.stairs(used, starts, fill=True, color="#5FB3DE", label="in use")
    axes.set_ylim(0, run.problem.nodes * 1.05)
    axes.set_ylabel("nodes", color=QUIET, size=8)
    _legend(axes)


def _plans(axes: Axes, run: Run, edges: np.ndarray, inches: float) -> None:
    """Draw the plan in force as one bar, with names where there is room."""
    plans = run.plans
    starts = np.flatnonzero(np.diff(plans, prepend=-1)).tolist()
    for first, end in pairwise([*starts, len(plans)]):
        plan = int(plans[first])
        left, right = edges[first], edges[end]
        colour = TRACK if plan == 0 else stage_colour(plan)
        axes.axvspan(left, right, color=colour, linewidth=0)
        words = plan_name(run, plan)
        if text_inches(words, 7) < (right - left) * inches:
            ink = QUIET if plan == 0 else ink_on(colour)
            axes.text((left + right) / 2, 0.5, words, size=7, ha="center", va="center", color=ink)
    axes.set(ylim=(0, 1), yticks=[])
    axes.set_ylabel("plan", color=QUIET, size=8)
    axes.annotate(
        "a change of colour is a change of plan; tensor, pipeline and data parallel ranks where "
        "there is room", (1, 1), (0, 4), xycoords="axes fraction", textcoords="offset points",
        size=8, color=QUIET, ha="right", annotation_clip=False,
    )  # fmt: skip


def _samples(axes: Axes, run: Run, edges: np.ndarray) -> None:
    """Draw samples a second beside those of the fastest plan."""
    count = len(run.plans)
    best = run.problem.best[run.course.nodes[: max(count, 1)]] / run.problem.seconds
    words = "the fastest plan, without changes"
    axes.stairs(best, edges[: len(best) + 1], color=QUIET, linewidth=0.8, label=words)
    if count:
        rate = np.maximum(run.samples / run.problem.seconds, 0.0)
        axes.stairs(rate, edges[: count + 1], fill=True, color="#2A9D84", label="the job")
    axes.set_ylim(0, float(run.problem.library.rate.max()) * 1.08)
    axes.set_ylabel("samples\na second", color=QUIET, size=8)
    _legend(axes)


def _changes(axes: Axes, run: Run, edges: np.ndarray) -> None:
    """Draw the seconds of each change."""
    kinds = ((False, "#3B75B5", "a change of plan"), (True, RED, "after a stop: a node had left"))
    for stopped, colour, words in kinds:
        which = np.flatnonzero((run.seconds > 0) & (run.stopped == stopped))
        if len(which):
            seconds = run.seconds[which]
            axes.vlines(edges[which], 0, seconds, colors=colour, linewidth=1.2, label=words)
    axes.set_ylim(0, max(float(run.seconds.max(initial=0.0)), 1.0) * 1.1)
    axes.set_ylabel("seconds\nof changes", color=QUIET, size=8)
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Name the colours of a panel above its right end."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=3, frameon=False, fontsize=8,
            labelcolor=QUIET, handlelength=1.2, handleheight=0.9, borderaxespad=0.0, borderpad=0.1,
        )  # fmt: skip
