"""Pictures of pipeline plans: the chain with its cuts, memory per device, and the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.tasks.pipeline.view import (
    cut_labels,
    device_range,
    device_words,
    taken_apart,
    title,
    verdict,
)
from parenvs.view.page import (
    DPI,
    HEIGHT,
    INK,
    LINK,
    QUIET,
    RED,
    STAGE_COLORS,
    TRACK,
    WIDTH,
    Page,
    blank_figure,
    ink_on,
    mix,
    reasons_shown,
    stage_color,
    text_inches,
)
from parenvs.view.words import duration, size, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.tasks.pipeline.problem import Pipeline, Report, Stage

LEFT, RIGHT = 1.75, 0.3
"""Inches beside the axes of a pipeline's picture; the names of the rows stand at the left."""
_LENGTHS = 1.15  # inches beside the schedule, for the name of the later length


def draw_schedule(page: Page, top: float, height: float, report: Report) -> None:
    """Draw the simulated 1F1B schedule: a row per compute stage, a thinner one per link."""
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    table, stages = report.timetable, report.stages
    longest = max(report.simulated_seconds, report.length_seconds)
    scale, unit = time_unit(longest)
    width = WIDTH - LEFT - RIGHT - _LENGTHS
    axes = page.axes(LEFT, top, width, height)
    units = len(stages) + 0.42 * (len(stages) - 1)
    axes.set(xlim=(0, longest / scale), ylim=(units, 0), yticks=[])
    per_inch = height / units
    y = 0.0
    shapes: list[np.ndarray] = []
    colors: list[Any] = []
    for row in range(len(table.reduce_start)):
        number, link = divmod(row, 2)
        tall = 0.42 if link else 1.0
        low, high = y + 0.07 * tall, y + 0.93 * tall
        y += tall
        base = LINK if link else stage_color(number)
        axes.axhspan(low, high, color=TRACK, linewidth=0, zorder=0)
        for kind, shade in enumerate((mix(base, "#FFFFFF", 0.55), base)):
            begin, end = table.start[row, kind] / scale, table.end[row, kind] / scale
            shapes.extend(_boxes(begin, end, low, high))
            colors += [shade] * len(begin)
            if not link:
                inches = float((end - begin).min()) * width * scale / longest
                middle, ink = (low + high) / 2, ink_on(shade)
                _numbers(axes, (begin + end) / 2, middle, inches, per_inch * tall, ink)
        if link:
            _label(axes, "link", (low + high) / 2, per_inch * tall, QUIET)
            continue
        stage = stages[number]
        over = stage.memory_bytes > report.memory_limit_bytes
        words = f"{number} · {device_words(stage)}\n{stage.efficiency:.1%} busy"
        if per_inch < 0.36:  # room for one line
            words = f"{number} · {device_words(stage)} · {stage.efficiency:.0%}"
        _label(axes, words, (low + high) / 2, per_inch, RED if over else INK)
        if stage.all_reduce_seconds > 0:
            begin, end = table.reduce_start[[row]] / scale, table.reduce_end[[row]] / scale
            hatched = PolyCollection(
                list(_boxes(begin, end, low, high)), facecolors="white", edgecolors=base,
                hatch="/////", linewidths=0.8, gid="all-reduce", zorder=2,
            )  # fmt: skip
            axes.add_collection(hatched)
    corners = np.stack(shapes)
    pixel = longest / scale / (width * DPI)
    span = corners[:, 1, 0] - corners[:, 0, 0]
    # A gap keeps neighbors of one color apart; the least width keeps short transfers visible.
    shown = np.maximum(span - np.minimum(1.3 * pixel, span / 3), 0.8 * pixel)
    corners[:, 1:3, 0] = (corners[:, 0, 0] + shown)[:, None]
    axes.add_collection(
        PolyCollection(list(corners), facecolors=colors, linewidths=0, gid="passes", zorder=1)
    )
    _note(axes, "stage · devices · busy", (0, 1), (-8, 6), "axes fraction", color=QUIET, ha="right")
    _lengths(axes, report, scale)
    axes.spines["bottom"].set(visible=True, color=QUIET, linewidth=0.7)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(f"time ({unit})", color=QUIET, size=9)
    _legend(axes)


def _note(
    axes: Axes,
    words: str,
    at: tuple[float, float],
    shift: tuple[int, int],
    coords: Any,
    **style: Any,
) -> None:
    """Write words beside a point of the axes, ``shift`` points away, outside of them, too."""
    style = {"size": 9, "annotation_clip": False, **style}
    axes.annotate(words, at, shift, xycoords=coords, textcoords="offset points", **style)


def _boxes(begin: np.ndarray, end: np.ndarray, low: float, high: float) -> np.ndarray:
    """(k, 4, 2) corners of the boxes from ``begin`` to ``end``, each (k,)."""
    x = np.stack([begin, end, end, begin], axis=-1)
    y = np.broadcast_to([low, low, high, high], x.shape)
    return np.stack([x, y], axis=-1)


def _numbers(
    axes: Axes, places: np.ndarray, y: float, inches: float, tall: float, color: str
) -> None:
    """Write the micro-batch numbers if the widest fits a box of so many inches."""
    font = min(8.0, tall * 72 * 0.5)
    if font < 5 or inches < text_inches(f"{len(places) - 1}", font) + 0.02:
        return
    for number, x in enumerate(places):
        axes.text(float(x), y, f"{number}", size=font, color=color, ha="center", va="center")


def _label(axes: Axes, words: str, y: float, tall: float, color: str) -> None:
    font = min(9.0, tall * 72 * 0.75)
    if font >= 4.5:
        style = {"size": font, "color": color, "ha": "right", "va": "center", "linespacing": 1.25}
        _note(axes, words, (0, y), (-8, 0), ("axes fraction", "data"), **style)


def _lengths(axes: Axes, report: Report, scale: float) -> None:
    both = [
        ("L", report.length_seconds, (0, (5, 2))),
        ("simulated", report.simulated_seconds, (0, (1.5, 1.5))),
    ]
    # The earlier line has its name to the left, so that the names do not overlap.
    if report.simulated_seconds < 0.999 * report.length_seconds:
        both.reverse()
    for (name, seconds, dashes), side in zip(both, ("right", "left"), strict=True):
        x, shift = seconds / scale, (-3 if side == "right" else 3, 5)
        axes.axvline(x, color=INK, linewidth=1.3, linestyle=dashes, zorder=5, clip_on=False)
        words, coords = f"{name} {duration(seconds)}", ("data", "axes fraction")
        _note(axes, words, (x, 1), shift, coords, color=INK, ha=side)


def _legend(axes: Axes) -> None:
    from matplotlib.patches import Patch

    dark, light = "#555555", mix("#555555", "#FFFFFF", 0.55)
    axes.legend(
        handles=[
            Patch(facecolor=light, label="forward"),
            Patch(facecolor=dark, label="backward"),
            Patch(facecolor="white", edgecolor=dark, hatch="/////", label="all-reduce"),
            Patch(facecolor=TRACK, label="idle"),
        ],
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, frameon=False, fontsize=9,
        labelcolor=QUIET, handlelength=1.4, handleheight=0.9, borderaxespad=0.2, borderpad=0.1,
        columnspacing=1.4,
    )  # fmt: skip


_MEMORY = 2.35  # inches of the memory panel
_LEVEL, _LEVELS = 0.18, 8  # inches from one row of cut labels to the next, most rows
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
    pipeline, report = taken_apart(viewable)
    page = Page(blank_figure())
    legal = report is None or report.legal
    reasons = reasons_shown(report.reasons if report is not None else ())
    words = title(pipeline, report), verdict(pipeline, report)
    top = page.heading(*words, reasons, legal, font=11, gap=0.36, pitch=0.2)
    if report is None or not report.stages:
        _draw_problem(page, top, pipeline)
    else:
        _draw_plan(page, top, pipeline, report)
    return page.figure


def _draw_problem(page: Page, top: float, pipeline: Pipeline) -> None:
    width = WIDTH - LEFT - RIGHT
    share = pipeline.seconds_sum[1:] / pipeline.seconds_sum[-1]
    ticks = [int(np.searchsorted(share, x)) for x in (0.0, 0.2, 0.4, 0.6, 0.8)]
    labels = cut_labels(pipeline.profile, [p + 1 for p in ticks])
    marks = [(float(share[p]) * 100, words) for p, words in zip(ticks, labels, strict=True)]
    top = _draw_cut_labels(page, top, width, marks)
    half = (HEIGHT - top - 1.25) / 2
    _draw_chain(page, top, width, half, pipeline, (), [x for x, _ in marks])
    _draw_parameters(page, top + half + 0.55, width, half, pipeline)


def _draw_plan(page: Page, top: float, pipeline: Pipeline, report: Report) -> None:
    stages, width = report.stages, WIDTH - LEFT - RIGHT - (_MEMORY + 0.45)
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1] * 100
    cuts = [stage.end for stage in stages[:-1]]
    labels = cut_labels(pipeline.profile, cuts)
    marks = [(float(share[cut]), words) for cut, words in zip(cuts, labels, strict=True)]
    top = _draw_cut_labels(page, top, width, marks)
    _draw_strip(page, top, width, share, report)
    top += 0.42
    height = max(0.26 * (HEIGHT - top), 0.9)
    _draw_chain(page, top, width, height, pipeline, stages, [])
    _draw_memory(page, top, height, report)
    top += height + 1.05
    draw_schedule(page, top, HEIGHT - top - 0.5, report)


def _draw_cut_labels(page: Page, top: float, width: float, marks: list[tuple[float, str]]) -> float:
    """Write names above the chain, as a staircase so that none crosses another or its line.

    A label starts at its cut, in % of the chain, above every label that begins within its width;
    where that is too high it is left out. Returns the lower end, inches from the top.
    """
    placed: list[tuple[float, str, int]] = []
    for x, words in reversed(marks):
        end = x / 100 * width + text_inches(words, 8.5) + 0.12
        level = 1 + max((at for start, _, at in placed if start / 100 * width < end), default=-1)
        if level < _LEVELS:
            placed.append((x, words, level))
    height = (max((level for _, _, level in placed), default=-1) + 1) * _LEVEL + 0.06
    axes = page.axes(LEFT, top, width, height)
    axes.set(xlim=(0, 100), ylim=(0, height), xticks=[], yticks=[])
    for x, words, level in placed:
        y = level * _LEVEL + 0.1
        axes.plot([x, x], [0, y + 0.07], color=QUIET, linewidth=0.8, clip_on=False)
        axes.text(x + 5 / width, y, words, size=8.5, color=INK, va="center", clip_on=False)
    return top + height


def _fill(number: int, stage: Stage, limit: float) -> str:
    """The color of a stage, red if it exceeds the memory."""
    return RED if stage.memory_bytes > limit else stage_color(number)


def _draw_strip(page: Page, top: float, width: float, share: np.ndarray, report: Report) -> None:
    stages = report.stages
    axes = page.axes(LEFT, top, width, 0.34)
    axes.set(xlim=(0, 100), ylim=(0, 1), xticks=[], yticks=[])
    style: dict[str, Any] = {"size": 9, "weight": "bold", "ha": "center", "va": "center"}
    for number, stage in enumerate(stages):
        begin, end = share[stage.first], share[stage.end]
        fill = _fill(number, stage, report.memory_limit_bytes)
        axes.axvspan(begin, end, color=fill, linewidth=0)
        names = (
            f"stage {number} · {device_words(stage)}",
            f"{number} · {device_range(stage)}",
            f"{number}",
        )
        room = (end - begin) / 100 * width - 0.06
        fitting = [words for words in names if text_inches(words, 9, bold=True) <= room]
        for words in fitting[:1]:
            axes.text((begin + end) / 2, 0.47, words, color=ink_on(fill), **style)
    for stage in stages[:-1]:
        axes.axvline(share[stage.end], color="white", linewidth=1.5)


def _chain_axes(axes: Axes, width: float, words: str) -> None:
    """Style axes over a chain, whose x is the share of compute seconds in %."""
    from matplotlib.ticker import FuncFormatter

    axes.set_xlim(0, 100)
    axes.spines["bottom"].set(visible=True, color=QUIET, linewidth=0.7)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f} %"))
    axes.set_ylabel(words, color=QUIET, size=9)
    axes.yaxis.set_label_coords(-0.88 / width, 0.5)


def _draw_chain(
    page: Page,
    top: float,
    width: float,
    height: float,
    pipeline: Pipeline,
    stages: tuple[Stage, ...],
    marks: list[float],
) -> None:
    axes = page.axes(LEFT, top, width, height)
    crossing = np.array(pipeline.cut_before[1:])
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1] * 100
    largest = max(float(crossing.max()), 1.0)
    # A logarithmic axis has no 0: cuts that send next to nothing lie at its lower end.
    floor = max(float(np.quantile(crossing, 0.02)) / 3, largest / 1e6, 1.0)
    axes.set_yscale("log")
    axes.set_ylim(floor, largest * 2)
    for number, stage in enumerate(stages):
        style: dict[str, Any] = {"color": stage_color(number), "alpha": 0.13, "linewidth": 0}
        axes.axvspan(share[stage.first], share[stage.end], **style)
    lowest, highest = _envelope(share[1:], crossing)
    x = np.linspace(0, 100, len(lowest) + 1)
    area: dict[str, Any] = {
        "baseline": floor,
        "fill": True,
        "color": "#9AA5B1",
        "alpha": 0.45,
        "linewidth": 0,
    }
    axes.stairs(np.maximum(highest, floor), x, **area)
    axes.stairs(np.maximum(lowest, floor), x, baseline=None, color="#3C4652", linewidth=0.9)
    for mark in marks:
        axes.axvline(mark, color=QUIET, linewidth=0.8, linestyle=(0, (1, 2)))
    for stage in stages[:-1]:
        sent = max(float(pipeline.cut_before[stage.end]), floor)
        axes.axvline(share[stage.end], color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        dot: dict[str, Any] = {"markersize": 5, "markeredgecolor": "white", "zorder": 4}
        axes.plot([share[stage.end]], [sent], "o", color=INK, clip_on=False, **dot)
    ticks = _log_ticks(floor * (2 * largest / floor) ** 0.08, largest * 2)
    axes.set_yticks(ticks, [size(y, tick=True) for y in ticks])
    axes.set_yticks([], minor=True)
    _chain_axes(axes, width, "bytes across a cut")
    axes.set_axisbelow(True)
    if stages:
        words = "position in the chain, % of its compute seconds  ·  dots: what each cut "
        axes.set_xlabel(f"{words}sends per micro-batch", color=QUIET, size=9)


def _log_ticks(low: float, high: float) -> list[float]:
    """Three to five round numbers from ``low`` to ``high``, if there are as many."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)))
    ticks: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5)):
        ticks = [float(x * step) for x in decades for step in steps if low <= x * step <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: (len(ticks) + 4) // 5 or 1]


def _envelope(x: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value in equal bins of 0..100; an empty bin takes the value before it."""
    bins = np.minimum((x / 100 * _BINS).astype(int), _BINS - 1)
    lowest, highest = np.full(_BINS, np.inf), np.full(_BINS, -np.inf)
    np.minimum.at(lowest, bins, values)
    np.maximum.at(highest, bins, values)
    # The value that holds where a bin begins: that of the last pivot at or before it.
    before = np.searchsorted(bins, np.arange(_BINS)) - 1
    at_start = values[np.maximum(before, 0)]
    empty = np.isinf(lowest)
    lowest[empty] = highest[empty] = at_start[empty]
    return lowest, highest


def _draw_parameters(
    page: Page, top: float, width: float, height: float, pipeline: Pipeline
) -> None:
    from matplotlib.ticker import FuncFormatter

    axes = page.axes(LEFT, top, width, height)
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1] * 100
    before, color = pipeline.parameter_sum, STAGE_COLORS[0]
    axes.fill_between(share, before, step="post", color=color, alpha=0.25, linewidth=0)
    axes.step(share, before, where="post", color=color, linewidth=1.4)
    axes.set_ylim(0, max(float(before[-1]), 1.0) * 1.08)
    _chain_axes(axes, width, "parameters before it")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: size(y, tick=True)))
    axes.set_xlabel("position in the chain, % of its compute seconds", color=QUIET, size=9)


def _draw_memory(page: Page, top: float, height: float, report: Report) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    stages, limit = report.stages, report.memory_limit_bytes
    axes = page.axes(WIDTH - RIGHT - _MEMORY, top, _MEMORY, height)
    row = height / len(stages)
    longest = max(limit, *(stage.memory_bytes for stage in stages)) * 1.06
    axes.set(xlim=(0, longest), ylim=(len(stages) - 0.5, -0.5), yticks=[])
    axes.set_title("memory per device", size=9, color=QUIET, loc="left", pad=21)
    for number, stage in enumerate(stages):
        used, fill = stage.memory_bytes, _fill(number, stage, limit)
        axes.barh(number, longest, 0.72, color=TRACK)
        axes.barh(number, used, 0.72, color=fill)
        if row < 0.13:
            continue
        style: dict[str, Any] = {"size": min(8.5, row * 72 * 0.6), "va": "center"}
        axes.text(-0.03 * longest, number, f"{number}", ha="right", color=QUIET, **style)
        words = size(used)
        if used / longest * _MEMORY > text_inches(words, style["size"]) + 0.15:
            end, style = used - 0.02 * longest, {**style, "ha": "right", "color": ink_on(fill)}
        else:
            end, style = used + 0.02 * longest, {**style, "ha": "left", "color": INK}
        axes.text(end, number, words, **style)
    axes.axvline(limit, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
    side = "right" if limit > longest / 2 else "left"
    words, above = f"limit {size(limit)}", -0.5 - 0.06 / row
    axes.text(limit, above, words, size=8.5, color=INK, va="bottom", ha=side)
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size(x, tick=True)))
