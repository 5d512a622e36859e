"""Pictures and traces of pipeline plans: chain with cuts, memory per device, schedule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.view import device_words, problem_and_report, title, verdict
from parenvs.view.page import (
    HEIGHT,
    INK,
    LINK,
    RED,
    STAGE_COLORS,
    TRACK,
    WIDTH,
    Page,
    draw_memory,
    draw_passes,
    legend,
    mix,
    note,
    stage_color,
    text_inches,
    write_on,
)
from parenvs.view.trace import Part, Track
from parenvs.view.words import size, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.tasks.pipeline.problem import Pipeline, Report

# Inches beside the axes; the names of the rows stand at the left.
_LEFT, _RIGHT = 1.75, 0.3
_LINK = 0.42  # height of a link's row in those of stages


def _draw_schedule(page: Page, top: float, height: float, report: Report) -> None:
    table, stages = report.timetable, report.stages
    lengths = {"L": report.length_seconds, "simulated": report.simulated_seconds}
    longest = max(lengths.values())
    scale, unit = time_unit(longest)
    axes = page.axes(_LEFT, top, WIDTH - _LEFT - _RIGHT, height)
    rows = len(stages) + _LINK * (len(stages) - 1)
    axes.set(xlim=(0, longest / scale), ylim=(rows, 0), xlabel=f"time ({unit})")
    middles = []
    for row in range(len(table.reduce_start)):
        number, link = divmod(row, 2)
        middles.append(number * (1 + _LINK) + (1 + _LINK / 2 if link else 0.5))
        tall, base = 0.86 * (_LINK if link else 1), LINK if link else stage_color(number)
        axes.barh(middles[row], longest / scale, tall, color=TRACK, zorder=0)
        start, end = table.start[row] / scale, table.end[row] / scale
        draw_passes(axes, middles[row], start[0], end[0], mix(base, "#FFFFFF", 0.55), tall)
        draw_passes(axes, middles[row], start[1], end[1], base, tall)
        if not link and stages[number].all_reduce_seconds > 0:
            begin, seconds = table.reduce_start[row] / scale, stages[number].all_reduce_seconds
            look: Any = {"facecolor": "white", "edgecolor": base, "hatch": "/////"}
            box = [(begin, seconds / scale)], (middles[row] - tall / 2, tall)
            axes.broken_barh(*box, gid="all-reduce", **look)
    gap, busy, font = ("\n", " busy", 9) if height / rows > 0.36 else (" · ", "", 7)
    named = range(0, len(stages), math.ceil(0.1 * len(stages) / height))
    words = [f"{k} · {device_words(stages[k])}{gap}{stages[k].efficiency:.1%}{busy}" for k in named]
    axes.set_yticks([middles[2 * k] for k in named], words, size=font)
    for label, k in zip(axes.get_yticklabels(), named, strict=True):
        label.set_color(RED if stages[k].memory_bytes > report.memory_limit_bytes else INK)
    for (name, seconds), dashes in zip(lengths.items(), ("--", ":"), strict=True):
        look = {"linewidth": 1.3, "linestyle": dashes, "label": name, "clip_on": False}
        axes.axvline(seconds / scale, color=INK, **look)
    note(axes, "stage · devices · busy", (0, 1), (-8, 5), ha="right")
    axes.spines.bottom.set_visible(True)
    dark, light = "#555555", mix("#555555", "#FFFFFF", 0.55)
    colors = {"forward": light, "backward": dark, "all-reduce": "", "link": LINK, "idle": TRACK}
    legend(axes, colors)


_MEMORY = 1.9  # inches of the memory panel
_BINS = 900  # most points of the curves


def draw(viewable: Report | Pipeline) -> Figure:
    """The picture of a plan; ``style`` has to be in force.

    Above, the chain: its width is the share of compute seconds, the curve is the bytes that a cut
    would send, the bands are the stages; beside it, memory per device against the limit. Below, the
    simulated 1F1B schedule with both lengths. Without a plan, or with a malformed one, the chain
    and its parameters.

    Args:
        viewable: what the judge says of the plan, or the problem.
    """
    pipeline, report = problem_and_report(viewable)
    page = Page()
    reasons = () if report is None else report.reasons
    words = title(pipeline, report), verdict(pipeline, report)
    top = page.heading(*words, reasons) + 0.1
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1] * 100
    if report is not None and report.stages:
        _draw_plan(page, top, share, report)
        return page.figure
    width = WIDTH - _LEFT - _RIGHT
    height = (HEIGHT - top - 1.25) / 2
    axes = page.axes(_LEFT, top, width, height)
    _draw_chain(axes, pipeline, share)
    axes, before = page.axes(_LEFT, top + height + 0.55, width, height), pipeline.parameter_sum
    axes.stairs(before[:-1], share, fill=True, color=STAGE_COLORS[0], alpha=0.25)
    axes.stairs(before[:-1], share, color=STAGE_COLORS[0], linewidth=1.4)
    axes.set_ylim(0, max(float(before[-1]), 1.0) * 1.08)
    _style_chain(axes, "parameters before it", "position in the chain, % of its compute seconds")
    return page.figure


def _draw_plan(page: Page, top: float, share: np.ndarray, report: Report) -> None:
    stages, limit, pipeline = report.stages, report.memory_limit_bytes, report.pipeline
    colors = [RED if x.memory_bytes > limit else stage_color(k) for k, x in enumerate(stages)]
    cuts = [stage.end for stage in stages[:-1]]
    width = WIDTH - _LEFT - _RIGHT - _MEMORY - 1.15
    axes = page.axes(_LEFT, top, width, 0.34)
    axes.set(xlim=(0, 100), ylim=(-0.5, 0.5), xticks=[], yticks=[])
    for number, (stage, color) in enumerate(zip(stages, colors, strict=True)):
        begin, end = share[stage.first], share[stage.end]
        axes.axvspan(begin, end, facecolor=color, edgecolor="white", linewidth=1.5)
        room = (end - begin) / 100 * width - 0.06
        for words in (f"stage {number} · {device_words(stage)}", f"{number}"):
            if text_inches(words, 9) <= room:
                write_on(axes, (begin + end) / 2, 0, words, 9, color)
                break
    top += 0.42
    height = max(0.26 * (HEIGHT - top), 0.9)
    axes = page.axes(WIDTH - _RIGHT - _MEMORY, top, _MEMORY, height)
    used = [stage.memory_bytes for stage in stages]
    draw_memory(axes, [f"{k} · {size(x)}" for k, x in enumerate(used)], [(used, colors)], limit)
    axes.set_xlabel("memory per device")
    axes = page.axes(_LEFT, top, width, height)
    _draw_chain(axes, pipeline, share)
    for number, stage in enumerate(stages):
        axes.axvspan(share[stage.first], share[stage.end], color=stage_color(number), alpha=0.13)
    for cut in cuts:
        axes.axvline(share[cut], color=INK, linewidth=0.9, linestyle="--")
        sent = max(float(pipeline.cut_before[cut]), axes.get_ylim()[0])
        dot: Any = {"markersize": 5, "markeredgecolor": "white", "clip_on": False}
        axes.plot([share[cut]], [sent], "o", color=INK, **dot)
    words = "position in the chain, % of its compute seconds  ·  dots: what each cut "
    axes.set_xlabel(f"{words}sends per micro-batch")
    top += height + 1.05
    _draw_schedule(page, top, HEIGHT - top - 0.5, report)


def _style_chain(axes: Axes, up: str, across: str = "") -> None:
    axes.set(xlim=(0, 100), xlabel=across, ylabel=up)
    axes.spines.bottom.set_visible(True)
    axes.grid(axis="y")
    axes.xaxis.set_major_formatter("{x:.0f} %")
    axes.yaxis.set_major_formatter(lambda y, _: size(y, tick=True))


def _draw_chain(axes: Axes, pipeline: Pipeline, share: np.ndarray) -> None:
    from matplotlib.ticker import LogLocator

    crossing = np.array(pipeline.cut_before[1:])
    edges = np.linspace(0, 100, _BINS + 1)
    first = np.maximum(np.searchsorted(share[1:], edges[:-1], side="right") - 1, 0)
    lowest = np.minimum.reduceat(crossing, first)
    largest = max(float(crossing.max()), 1.0)
    # A logarithmic axis has no 0: cuts that send next to nothing lie at its lower end.
    floor = max(float(np.quantile(crossing, 0.02)) / 3, largest / 1e6, 1.0)
    axes.set(yscale="log", ylim=(floor, largest * 2))
    axes.stairs(np.maximum(lowest, floor), edges, baseline=None, color="#3C4652", linewidth=0.9)
    _style_chain(axes, "bytes across a cut")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3) if largest < 1e4 * floor else (1,)))
    axes.minorticks_off()


def trace(report: Report) -> list[Track]:
    """The simulated step: a track for each stage, and one for each link between two.

    Raises:
        InfeasibleError: the plan is malformed.
    """
    if not report.stages:
        raise InfeasibleError("no trace: the plan is malformed")
    table, tracks = report.timetable, []
    seconds = table.end - table.start
    for number in range(len(seconds)):
        stage, is_link = report.stages[number // 2], number % 2
        name = f"stage {number // 2}" if not is_link else f"link {number // 2}"
        passes = [
            (float(table.start[number, kind, m]), Part(f"{words}, micro-batch {m}", float(lasts)))
            for kind, words in enumerate(("forward", "backward"))
            for m, lasts in enumerate(seconds[number, kind])
        ]
        summed = float(table.reduce_end[number] - table.reduce_start[number])
        if summed > 0:
            passes.append((float(table.reduce_start[number]), Part("all-reduce", summed)))
        ranks = range(stage.device_first, stage.device_end if not is_link else stage.device_first)
        tracks.append(Track(name, ranks, passes))
    return tracks
