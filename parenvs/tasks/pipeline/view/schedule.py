"""The lower half of a pipeline's picture: the simulated 1F1B schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.tasks.pipeline.view.text import device_words
from parenvs.view.page import (
    DPI,
    INK,
    LINK,
    QUIET,
    RED,
    TRACK,
    WIDTH,
    Page,
    ink_on,
    mix,
    stage_colour,
    text_inches,
)
from parenvs.view.words import duration, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from parenvs.tasks.pipeline.problem import Report

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
    rows = len(table.reduce_start)
    units = len(stages) + 0.42 * (len(stages) - 1)
    axes.set(xlim=(0, longest / scale), ylim=(units, 0), yticks=[])
    per_inch = height / units
    limit = report.memory_limit_bytes
    y = 0.0
    shapes: list[np.ndarray] = []
    colours: list[Any] = []
    for row in range(rows):
        number, link = divmod(row, 2)
        tall = 0.42 if link else 1.0
        low, high = y + 0.07 * tall, y + 0.93 * tall
        y += tall
        base = LINK if link else stage_colour(number)
        shades = (mix(base, "#FFFFFF", 0.55), base)
        axes.axhspan(low, high, color=TRACK, linewidth=0, zorder=0)
        for kind, shade in enumerate(shades):
            begin, end = table.start[row, kind] / scale, table.end[row, kind] / scale
            shapes.extend(_boxes(begin, end, low, high))
            colours += [shade] * len(begin)
            if not link:
                _numbers(
                    axes,
                    begin,
                    end,
                    (low + high) / 2,
                    width * scale / longest,
                    per_inch * tall,
                    ink_on(shade),
                )
        if link:
            _label(axes, "link", (low + high) / 2, per_inch * tall, QUIET)
            continue
        stage = stages[number]
        over = stage.memory_bytes > limit
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
    # A gap keeps neighbours of one colour apart; the least width keeps short transfers visible.
    shown = np.maximum(span - np.minimum(1.3 * pixel, span / 3), 0.8 * pixel)
    corners[:, 1:3, 0] = (corners[:, 0, 0] + shown)[:, None]
    axes.add_collection(
        PolyCollection(list(corners), facecolors=colours, linewidths=0, gid="passes", zorder=1)
    )
    axes.annotate(
        "stage · devices · busy",
        (0, 1),
        (-8, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        size=9,
        color=QUIET,
        ha="right",
    )
    _lengths(axes, report, scale)
    axes.spines["bottom"].set(visible=True, color=QUIET, linewidth=0.7)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(f"time ({unit})", color=QUIET, size=9)
    _legend(axes)


def _boxes(begin: np.ndarray, end: np.ndarray, low: float, high: float) -> np.ndarray:
    """(k, 4, 2) corners of the boxes from ``begin`` to ``end``, each (k,)."""
    x = np.stack([begin, end, end, begin], axis=-1)
    y = np.broadcast_to([low, low, high, high], x.shape)
    return np.stack([x, y], axis=-1)


def _numbers(
    axes: Axes,
    begin: np.ndarray,
    end: np.ndarray,
    y: float,
    inches: float,
    tall: float,
    colour: str,
) -> None:
    """Write the micro-batch numbers if the widest fits its box; ``inches`` per unit of time."""
    room = float((end - begin).min()) * inches
    font = min(8.0, tall * 72 * 0.5)
    if font < 5 or room < text_inches(f"{len(begin) - 1}", font) + 0.02:
        return
    for number, x in enumerate((begin + end) / 2):
        axes.text(float(x), y, f"{number}", size=font, color=colour, ha="center", va="center")


def _label(axes: Axes, words: str, y: float, tall: float, colour: str) -> None:
    """Write the name of a row into the left margin; nothing where the row is tiny."""
    font = min(9.0, tall * 72 * 0.75)
    if font >= 4.5:
        axes.annotate(
            words,
            (0, y),
            (-8, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            size=font,
            color=colour,
            ha="right",
            va="center",
            linespacing=1.25,
            annotation_clip=False,
        )


def _lengths(axes: Axes, report: Report, scale: float) -> None:
    """Draw dashed lines at both lengths, with their names above, turned away from each other."""
    both = [
        ("L", report.length_seconds, (0, (5, 2))),
        ("simulated", report.simulated_seconds, (0, (1.5, 1.5))),
    ]
    if report.simulated_seconds < 0.999 * report.length_seconds:
        both.reverse()
    for (name, seconds, dashes), side in zip(both, ("right", "left"), strict=True):
        axes.axvline(
            seconds / scale, color=INK, linewidth=1.3, linestyle=dashes, zorder=5, clip_on=False
        )
        axes.annotate(
            f"{name} {duration(seconds)}",
            (seconds / scale, 1),
            (-3 if side == "right" else 3, 5),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            size=9,
            color=INK,
            ha=side,
            annotation_clip=False,
        )


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
