"""What a job earned while nodes came and left, in plain text: totals, a line over time, changes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from parenvs.errors import printable
from parenvs.tasks.elastic.library import GONE, Array
from parenvs.tasks.elastic.problem import Elastic, Run, replay
from parenvs.view.page import (
    INK,
    QUIET,
    RED,
    TRACK,
    WIDTH,
    Page,
    legend,
    mix,
    stage_color,
    text_inches,
    write_on,
)
from parenvs.view.words import SEPARATOR, duration, plural, reason_lines, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_BARS = " ▁▂▃▄▅▆▇█"
_MAX_CHANGES = 12
_BAR_COLUMNS = 96  # of the line over time


def run_of(viewable: Run | Elastic) -> Run:
    """A run as it is; of a problem, one of the seed 0 in which nothing is chosen yet."""
    return viewable if isinstance(viewable, Run) else replay(viewable, viewable.drawn(0), [])


def title(run: Run) -> str:
    """The problem and who chose, in one line."""
    by = f", {run.policy}" if run.policy else ""
    return printable(f"{run.problem.name}: {clock(run, run.problem.intervals)} of nodes{by}")


def verdict(run: Run) -> list[str]:
    """The parts of the verdict."""
    if not run.legal:
        return ["illegal", f"{len(run.plans):,} intervals before the first fault"]
    if not len(run.plans):
        return ["nothing chosen yet", plural(len(run.problem.library) - 1, "candidate plan")]
    return [
        f"{run.total:,.0f} samples in {clock(run, len(run.plans))}",
        f"{run.share:.2%} of the ideal",
        plural(int(run.changed.sum()), "change"),
        plural(int(run.stopped.sum()), "stop"),
        f"state lost {plural(int(run.gone.sum()), 'time')}",
    ]


def answer(run: Run) -> str:
    """What the job trained, in one line."""
    return SEPARATOR.join(verdict(run))


def plan_name(run: Run, plan: int) -> str:
    """A candidate in words."""
    if plan == 0:
        return "wait"
    candidate = run.problem.library.candidates[plan - 1]
    spares = f" +{candidate.spares}" if candidate.spares else ""
    return f"{candidate.degrees}{spares}"


def clock(run: Run, interval: int) -> str:
    """The time of an interval, as hours and minutes, or minutes and seconds."""
    minutes, seconds = divmod(round(interval * run.problem.seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours}:{minutes_left:02d} h" if hours else f"{minutes}:{seconds:02d} min"


def bars(values: Array, top: float) -> str:
    """One letter for each part of the time, as high as the mean of its values."""
    parts = np.array_split(values, min(len(values), _BAR_COLUMNS))
    level = [float(part.mean()) / (top or 1.0) * (len(_BARS) - 1) for part in parts]
    return "".join(_BARS[min(max(round(x), 0), len(_BARS) - 1)] for x in level)


def text(viewable: Run | Elastic, color: bool = False) -> str:
    """What a job earned, as text of at most 110 columns, without a newline at the end.

    ``color`` changes nothing: lines over time have one.
    """
    run = run_of(viewable)
    lines = wrapped([title(run), answer(run)])
    lines += reason_lines(run.reasons)
    count = len(run.plans)
    if not count:
        return "\n".join(lines)
    library = run.problem.library
    nodes = run.course.nodes[:count]
    lines += [
        f"nodes    {bars(nodes, float(nodes.max()))}",
        f"in use   {bars(library.used[run.plans], float(nodes.max()))}",
        f"samples  {bars(run.samples, float(run.problem.best[nodes].max()))}",
    ]
    changes = np.flatnonzero(run.changed)
    lines += wrapped(_change(run, t) for t in changes[:_MAX_CHANGES].tolist())
    if len(changes) > _MAX_CHANGES:
        lines.append(f"and {plural(len(changes) - _MAX_CHANGES, 'change')} more")
    return "\n".join(lines)


def _change(run: Run, t: int) -> str:
    before, after = plan_name(run, int(run.plans[t - 1])), plan_name(run, int(run.plans[t]))
    words = f"{before} -> {after}" if before != after else f"{after} repaired"
    lost = ", state lost" if run.events[t] == GONE else ", nodes lost"
    reason = lost if run.events[t] else ""
    moved = run.problem.library.tables[1][run.events[t], run.plans[t - 1], run.plans[t]]
    return (
        f"{clock(run, t):>10}  {int(run.course.nodes[t]):2d} nodes  {words}{reason}: "
        f"{duration(float(run.seconds[t]))}, busiest node sends {moved / 1e9:.2f} GB"
    )


_LEFT, _RIGHT = 0.9, 0.3  # inches beside the axes
_HEIGHTS = (1.9, 0.75, 1.9, 0.9)  # of nodes, plans, samples, changes
_GAP = 0.3


def draw(viewable: Run | Elastic) -> Figure:
    """The picture of a run, or of the nodes of a problem; ``style`` has to be in force.

    From above: nodes that are there, with those in use and the spares; the plan in force; samples
    a second beside those of the fastest plan; and the seconds of each change, in red where the job
    had stopped as a node left. Each panel names its colors.
    """
    run = run_of(viewable)
    page = Page()
    top = page.heading(title(run), verdict(run), run.reasons) + 0.1
    panels = stacked(page, top, _HEIGHTS, _GAP)
    problem = run.problem
    scale, unit = (3600.0, "h") if problem.intervals * problem.seconds > 7200 else (60.0, "min")
    edges = np.arange(problem.intervals + 1) * problem.seconds / scale
    for axes in panels:
        axes.set_xlim(0, edges[-1])
    for axes in panels[:-1]:
        axes.set_xticklabels([])
    _draw_nodes(panels[0], run, edges)
    _plans(panels[1], run, edges, (WIDTH - _LEFT - _RIGHT) / edges[-1])
    _samples(panels[2], run, edges)
    _changes(panels[3], run, edges)
    names = ("nodes", "plan", "samples\na second", "seconds\nof changes")
    for axes, words in zip(panels, names, strict=True):
        axes.set_ylabel(words, size=8)
        legend(axes, {}, loc="lower right", bbox_to_anchor=(1, 0.98), fontsize=8)
    panels[3].set_xlabel(f"time ({unit})")
    return page.figure


def stacked(page: Page, top: float, heights: Iterable[float], gap: float) -> list[Axes]:
    """Axes of the whole width of a page, one below the other; all lengths are inches."""
    panels = []
    for height in heights:
        panels.append(page.axes(_LEFT, top, WIDTH - _LEFT - _RIGHT, height))
        top += height + gap
    return panels


def _draw_nodes(axes: Axes, run: Run, edges: Array) -> None:
    library, count = run.problem.library, len(run.plans)
    nodes = run.course.nodes[: max(count, 1)]
    used, spares = library.used[run.plans], library.spares[run.plans]
    axes.stairs(nodes, edges[: len(nodes) + 1], color=INK, linewidth=1.0, label="there")
    if count:
        starts, tone = edges[: count + 1], mix("#E3A02B", "#FFFFFF", 0.3)
        axes.stairs(used + spares, starts, fill=True, color=tone, label="spare")
        axes.stairs(used, starts, fill=True, color="#5FB3DE", label="in use")
    axes.set_ylim(0, run.problem.nodes * 1.05)


def _plans(axes: Axes, run: Run, edges: Array, inches: float) -> None:
    plans = run.plans
    starts = np.flatnonzero(np.diff(plans, prepend=-1)).tolist()
    for first, end in pairwise([*starts, len(plans)]):
        plan = int(plans[first])
        left, right = edges[first], edges[end]
        color = TRACK if plan == 0 else stage_color(plan)
        axes.axvspan(left, right, color=color, linewidth=0)
        words = plan_name(run, plan)
        if text_inches(words, 7) < (right - left) * inches:
            write_on(axes, (left + right) / 2, 0.5, words, 7, color)
    axes.set(ylim=(0, 1), yticks=[])


def _samples(axes: Axes, run: Run, edges: Array) -> None:
    count = len(run.plans)
    best = run.problem.best[run.course.nodes[: max(count, 1)]] / run.problem.seconds
    words = "the fastest plan, without changes"
    axes.stairs(best, edges[: len(best) + 1], color=QUIET, linewidth=0.8, label=words)
    if count:
        rate = np.maximum(run.samples / run.problem.seconds, 0.0)
        axes.stairs(rate, edges[: count + 1], fill=True, color="#2A9D84", label="the job")
    axes.set_ylim(0, float(run.problem.library.rate.max()) * 1.08)


def _changes(axes: Axes, run: Run, edges: Array) -> None:
    kinds = ((False, "#3B75B5", "a change of plan"), (True, RED, "after a stop: a node had left"))
    for stopped, color, words in kinds:
        which = np.flatnonzero((run.seconds > 0) & (run.stopped == stopped))
        if len(which):
            seconds = run.seconds[which]
            axes.vlines(edges[which], 0, seconds, colors=color, linewidth=1.2, label=words)
    axes.set_ylim(0, max(float(run.seconds.max(initial=0.0)), 1.0) * 1.1)
