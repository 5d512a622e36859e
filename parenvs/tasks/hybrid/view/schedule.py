"""The lower half of a hybrid plan's picture: the simulated schedule, chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parenvs.tasks.hybrid.schedules import WEIGHT
from parenvs.view.page import (
    DPI,
    INK,
    QUIET,
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

    from parenvs.tasks.hybrid.report import HybridReport

_WEIGHTS = "#8A8A8A"
_LEFT, _RIGHT = 1.1, 0.3  # inches beside the axes
_LEAST_PIXELS = 3.5
"""Width of a pass that is drawn; of a schedule with shorter ones the beginning is shown."""


def draw_schedule(page: Page, top: float, height: float, report: HybridReport) -> None:
    """Draw the simulated passes: a row per stage, light forward, dark backward, a tone per chunk.

    Gradients of weights are grey where they are passes of their own.

    Of a schedule with passes too short to see the beginning is drawn.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    table = report.timetable
    width = WIDTH - _LEFT - _RIGHT
    axes = page.axes(_LEFT, top, width, height)
    if table is None:
        axes.set(xticks=[], yticks=[])
        axes.text(0.0, 0.5, "the schedule has too many passes to be simulated", color=QUIET)
        return
    stages, chunks, batches = table.start.shape[1:]
    span = float(table.end.max())
    passes = span / (len(table.start) * chunks * batches)  # mean seconds, idle time included
    room = width * DPI / _LEAST_PIXELS
    whole = span <= passes * room
    span = min(span, passes * room)
    scale, unit = time_unit(span)
    axes.set(xlim=(0, span / scale), ylim=(stages, 0))
    shapes: list[np.ndarray] = []
    colours: list[str] = []
    per_row = height / stages
    pixel = span / (width * DPI)
    for stage in range(stages):
        low, high = stage + 0.08, stage + 0.92
        axes.axhspan(low, high, color=TRACK, linewidth=0, zorder=0)
        for kind in range(len(table.start)):
            for chunk in range(chunks):
                begin, end = table.start[kind, stage, chunk], table.end[kind, stage, chunk]
                shown = begin < span
                begin, end = begin[shown], np.minimum(end[shown], span)
                tone = 0.62 - 0.12 * (chunk % 3) if kind == 0 else 0.3 * (chunk % 3) / 2
                colour = mix(stage_colour(stage), "#FFFFFF" if kind == 0 else "#000000", tone)
                if kind == WEIGHT:
                    colour = mix(_WEIGHTS, "#FFFFFF", 0.2 * (chunk % 3))
                drawn = np.maximum(end - begin - np.minimum(1.2 * pixel, (end - begin) / 3), 0)
                x = np.stack([begin, begin + drawn, begin + drawn, begin], axis=-1) / scale
                y = np.broadcast_to([low, low, high, high], x.shape)
                shapes.extend(np.stack([x, y], axis=-1))
                colours += [colour] * len(begin)
                _numbers(axes, begin, end, stage + 0.5, width / span, scale, per_row, colour)
    axes.add_collection(
        PolyCollection(shapes, facecolors=colours, linewidths=0, gid="passes", zorder=1)
    )
    each = max(1, round(stages / max(height / 0.17, 1)))
    rows = range(0, stages, each)
    axes.set_yticks([k + 0.5 for k in rows], [f"stage {k}" for k in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set(visible=True, color=QUIET, linewidth=0.7)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(f"time ({unit})", color=QUIET, size=9)
    _legend(axes, chunks, len(table.start) > WEIGHT)
    words = f"passes {duration(table.core)} simulated"
    words += "" if whole else f", of which the first {duration(span)} are drawn"
    axes.annotate(
        words, (1, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", size=9,
        color=INK, ha="right", annotation_clip=False,
    )  # fmt: skip


def _numbers(
    axes: Axes,
    begin: np.ndarray,
    end: np.ndarray,
    y: float,
    inches: float,
    scale: float,
    tall: float,
    colour: str,
) -> None:
    """Write the numbers of micro-batches if the widest fits its box; ``inches`` per second."""
    if not len(begin):
        return
    room = float(np.median(end - begin)) * inches
    font = min(7.5, tall * 72 * 0.45)
    if font < 4.5 or room < text_inches(f"{len(begin) - 1}", font) + 0.02:
        return
    for number, x in enumerate((begin + end) / 2):
        axes.text(
            float(x) / scale, y, f"{number}", size=font, color=ink_on(colour), ha="center",
            va="center",
        )  # fmt: skip


def _legend(axes: Axes, chunks: int, is_split: bool) -> None:
    from matplotlib.patches import Patch

    dark, light = "#555555", mix("#555555", "#FFFFFF", 0.55)
    handles = [
        Patch(facecolor=light, label="forward"),
        Patch(facecolor=dark, label="backward"),
        Patch(facecolor=TRACK, label="idle"),
    ]
    if is_split:
        handles.insert(2, Patch(facecolor=_WEIGHTS, label="weights"))
    if chunks > 1:
        handles.append(Patch(facecolor="white", edgecolor=QUIET, label="a tone is a chunk"))
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, frameon=False,
        fontsize=9, labelcolor=QUIET, handlelength=1.4, handleheight=0.9, borderaxespad=0.2,
        borderpad=0.1, columnspacing=1.4,
    )  # fmt: skip
