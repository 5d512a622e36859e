"""Pictures of judged plans: the chain with its cuts, memory, and the simulated schedule.

Matplotlib is imported when a picture is asked for, and pyplot never: figures are plain objects with
an Agg canvas, so no display is needed and no global state is left changed.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.files import replacing
from parenvs.viewer_text import (
    device_range,
    duration,
    printable,
    short_name,
    size,
    text,
    time_unit,
    title,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.judge import Report, Stage
    from parenvs.pipeline import Pipeline

__all__ = ["figure", "rgb_array", "save", "text"]

STAGE_COLOURS = (
    "#3B75B5", "#E3A02B", "#2A9D84", "#A0569F", "#5FB3DE", "#A3A13A", "#4B4AA0", "#D3B77A",
)  # fmt: skip
"""Told apart with every common colour blindness; red is kept for what breaks a rule."""
_INK, _QUIET, _TRACK, _LINK, _RED = "#222222", "#6B6B6B", "#F2F2F2", "#8A8A8A", "#C1121F"
_WIDTH, _HEIGHT, _DPI = 12.8, 8.0, 100  # inches; 1280 x 800 pixels
_LEFT, _RIGHT, _MEMORY = 1.75, 0.3, 2.35  # inches: margins, width of the memory panel
_LENGTHS = 1.15  # inches beside the schedule, for the name of the later length
_LEVEL, _LEVELS = 0.18, 8  # inches from one row of cut labels to the next, most rows
_BINS = 900  # most points of the curves
_STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.grid": False,
    "axes.unicode_minus": True,
    "hatch.linewidth": 0.7,
    "path.simplify": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "parenvs",
}
_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def figure(pipeline: Pipeline, report: Report | None) -> Figure:
    """A picture of a plan.

    Above, the chain: its width is the share of compute seconds, the curve is the bytes that a cut
    would send, the bands are the stages; beside it, memory per device against the limit. Below, the
    simulated 1F1B schedule with both lengths. Without a plan, or with a malformed one, the chain
    and its parameters.

    Args:
        pipeline: the problem.
        report: what the judge says of the plan, or None.
    """
    with _style():
        return _draw(pipeline, report)


def rgb_array(pipeline: Pipeline, report: Report | None) -> np.ndarray:
    """The picture as a new array of shape (800, 1280, 3), uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with _style():
        canvas = FigureCanvasAgg(_draw(pipeline, report))
        canvas.draw()
        return np.array(canvas.buffer_rgba())[..., :3].copy()


def save(path: str | os.PathLike[str], pipeline: Pipeline, report: Report | None) -> None:
    """Write the picture; equal plans give equal bytes, and a failure leaves the old file.

    Args:
        path: ends in ``.png``, ``.svg`` or ``.pdf``.
        pipeline: the problem.
        report: what the judge says of the plan, or None.

    Raises:
        ValueError: another ending.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _METADATA:
        raise ValueError(f"{os.fspath(path)}: a picture ends in {', '.join(_METADATA)}")
    with _style(), replacing(path) as stream:
        _draw(pipeline, report).savefig(
            stream, format=suffix[1:], dpi=1.5 * _DPI, metadata=_METADATA[suffix]
        )


@contextmanager
def _style() -> Iterator[None]:
    """Matplotlib's defaults with ours on top, whatever the user has set; his return afterwards."""
    import matplotlib

    keep = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}
    settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_STYLE}
    with matplotlib.rc_context({k: v for k, v in settings.items() if k not in keep}):
        yield


@dataclass(frozen=True)
class _Page:
    """A figure with places given in inches, y from the top."""

    figure: Figure

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        box = (x / _WIDTH, 1 - (y + height) / _HEIGHT, width / _WIDTH, height / _HEIGHT)
        axes = self.figure.add_axes(box)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(length=3, width=0.7, color=_QUIET, labelcolor=_QUIET, labelsize=8.5)
        return axes

    def text(self, x: float, y: float, words: str, **style: Any) -> None:
        self.figure.text(x / _WIDTH, 1 - y / _HEIGHT, words, va="top", **style)


def _draw(pipeline: Pipeline, report: Report | None) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    page = _Page(Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI, facecolor="white"))
    FigureCanvasAgg(page.figure)
    top = _heading(page, pipeline, report)
    stages = report.stages if report is not None else ()
    width = _WIDTH - _LEFT - _RIGHT
    if report is None or not stages:
        names = [str(x) for x in pipeline.profile.names]
        share = pipeline.seconds_sum[1:] / pipeline.seconds_sum[-1]
        places = [int(np.searchsorted(share, x)) for x in (0.0, 0.2, 0.4, 0.6, 0.8)]
        marks = [(float(share[p]) * 100, short_name(names[p])) for p in places]
        top = _cut_labels(page, top, width, marks)
        half = (_HEIGHT - top - 1.25) / 2
        _chain(page, top, width, half, pipeline, stages, [x for x, _ in marks])
        _parameters(page, top + half + 0.55, width, half, pipeline)
        return page.figure
    width -= _MEMORY + 0.45
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1] * 100
    marks = [(float(share[s.end]), f"after {short_name(s.last_name)}") for s in stages[:-1]]
    top = _cut_labels(page, top, width, marks)
    _strip(page, top, width, share, stages, report.memory_limit_bytes)
    top += 0.42
    height = max(0.26 * (_HEIGHT - top), 0.9)
    _chain(page, top, width, height, pipeline, stages, [])
    _memory(page, top, height, report)
    top += height + 1.05
    _schedule(page, top, _HEIGHT - top - 0.5, report)
    return page.figure


def _heading(page: _Page, pipeline: Pipeline, report: Report | None) -> float:
    """Title, verdict and reasons; returns where the rest may begin, inches from the top."""
    legal = report is None or report.legal
    page.text(0.3, 0.22, title(pipeline, report), size=14, weight="bold", color=_INK)
    page.text(0.3, 0.56, verdict(pipeline, report), size=11, color=_INK if legal else _RED)
    top = 0.92
    lines = [
        line
        for reason in (report.reasons if report is not None else ())
        for line in textwrap.wrap(printable(reason), 150, subsequent_indent="   ")
    ]
    if len(lines) > 6:
        lines[5:] = [f"and {len(lines) - 5} lines more"]
    for line in lines:
        page.text(0.3, top, line, size=9, color=_RED)
        top += 0.2
    return top + 0.12


def _cut_labels(
    page: _Page, top: float, width: float, marks: list[tuple[float, str]]
) -> float:
    """Names above the chain, as a staircase so that none crosses another or its line.

    A label starts at its cut (in % of the chain) and stands above every label that begins within
    its own width; where that is too high it is left out. Returns the lower end, inches from the
    top.
    """
    placed: list[tuple[float, str, int]] = []
    for x, words in reversed(marks):
        end = x / 100 * width + _inches(words, 8.5) + 0.12
        level = 1 + max((at for start, _, at in placed if start / 100 * width < end), default=-1)
        if level < _LEVELS:
            placed.append((x, words, level))
    height = (max((level for _, _, level in placed), default=-1) + 1) * _LEVEL + 0.06
    axes = page.axes(_LEFT, top, width, height)
    axes.set(xlim=(0, 100), ylim=(0, height), xticks=[], yticks=[])
    for x, words, level in placed:
        y = level * _LEVEL + 0.1
        axes.plot([x, x], [0, y + 0.07], color=_QUIET, linewidth=0.8, clip_on=False)
        axes.text(x + 5 / width, y, words, size=8.5, color=_INK, va="center", clip_on=False)
    return top + height


def _strip(
    page: _Page,
    top: float,
    width: float,
    share: np.ndarray,
    stages: tuple[Stage, ...],
    limit: float,
) -> None:
    """The stages as a bar: number and devices where they fit; red where memory is exceeded."""
    axes = page.axes(_LEFT, top, width, 0.34)
    axes.set(xlim=(0, 100), ylim=(0, 1), xticks=[], yticks=[])
    for number, stage in enumerate(stages):
        begin, end = share[stage.first], share[stage.end]
        over = stage.memory_bytes > limit
        fill = _RED if over else _colour(number)
        axes.axvspan(begin, end, color=fill, linewidth=0)
        devices = device_range(stage)
        word = "device" if stage.device_end - stage.device_first == 1 else "devices"
        room = (end - begin) / 100 * width - 0.06
        for words in (f"stage {number} · {word} {devices}", f"{number} · {devices}", f"{number}"):
            if _inches(words, 9, bold=True) <= room:
                axes.text((begin + end) / 2, 0.47, words, size=9, weight="bold", ha="center",
                          va="center", color=_on(fill))
                break
    for stage in stages[:-1]:
        axes.axvline(share[stage.end], color="white", linewidth=1.5)


def _chain(
    page: _Page,
    top: float,
    width: float,
    height: float,
    pipeline: Pipeline,
    stages: tuple[Stage, ...],
    marks: list[float],
) -> None:
    """Bytes that a cut after each pivot would send, over the share of compute seconds."""
    from matplotlib.ticker import FuncFormatter

    axes = page.axes(_LEFT, top, width, height)
    crossing = np.array(pipeline.cut_before[1:])
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1] * 100
    largest = max(float(crossing.max()), 1.0)
    floor = max(float(np.quantile(crossing, 0.02)) / 3, largest / 1e6, 1.0)
    axes.set_yscale("log")
    axes.set(xlim=(0, 100), ylim=(floor, largest * 2))
    for number, stage in enumerate(stages):
        axes.axvspan(share[stage.first], share[stage.end], color=_colour(number), alpha=0.13,
                     linewidth=0)
    least, most = _envelope(share[1:], crossing)
    x = np.linspace(0, 100, len(least) + 1)
    axes.stairs(np.maximum(most, floor), x, baseline=floor, fill=True, color="#9AA5B1", alpha=0.45,
                linewidth=0)
    axes.stairs(np.maximum(least, floor), x, baseline=None, color="#3C4652", linewidth=0.9)
    for mark in marks:
        axes.axvline(mark, color=_QUIET, linewidth=0.8, linestyle=(0, (1, 2)))
    for stage in stages[:-1]:
        sent = max(float(pipeline.cut_before[stage.end]), floor)
        axes.axvline(share[stage.end], color=_INK, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.plot([share[stage.end]], [sent], "o", color=_INK, markersize=5, zorder=4,
                  markeredgecolor="white", clip_on=False)
    ticks = _log_ticks(floor * (2 * largest / floor) ** 0.08, largest * 2)
    axes.set_yticks(ticks, [size(y, tick=True) for y in ticks])
    axes.set_yticks([], minor=True)
    axes.spines["bottom"].set(visible=True, color=_QUIET, linewidth=0.7)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f} %"))
    axes.set_ylabel("bytes across a cut", color=_QUIET, size=9)
    axes.yaxis.set_label_coords(-0.88 / width, 0.5)
    if stages:
        axes.set_xlabel("position in the chain, % of its compute seconds  ·  dots: what each cut "
                        "sends per micro-batch", color=_QUIET, size=9)


def _log_ticks(low: float, high: float) -> list[float]:
    """Three to five round numbers between two, if there are."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)))
    ticks: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5)):
        ticks = [float(x * step) for x in decades for step in steps if low <= x * step <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: (len(ticks) + 4) // 5 or 1]


def _envelope(place: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest value in equal bins of 0..100; an empty bin takes the value before it."""
    bins = np.minimum((place / 100 * _BINS).astype(int), _BINS - 1)
    least, most = np.full(_BINS, np.inf), np.full(_BINS, -np.inf)
    np.minimum.at(least, bins, values)
    np.maximum.at(most, bins, values)
    # The value that holds where a bin begins: that of the last pivot at or before it.
    before = np.searchsorted(bins, np.arange(_BINS)) - 1
    held = values[np.maximum(before, 0)]
    empty = np.isinf(least)
    least[empty] = most[empty] = held[empty]
    return least, most


def _parameters(page: _Page, top: float, width: float, height: float, pipeline: Pipeline) -> None:
    """Parameters that the chain holds before each share of the compute seconds."""
    from matplotlib.ticker import FuncFormatter

    axes = page.axes(_LEFT, top, width, height)
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1] * 100
    total = max(float(pipeline.parameter_sum[-1]), 1.0)
    axes.fill_between(share, pipeline.parameter_sum, step="post", color=STAGE_COLOURS[0],
                      alpha=0.25, linewidth=0)
    axes.step(share, pipeline.parameter_sum, where="post", color=STAGE_COLOURS[0], linewidth=1.4)
    axes.set(xlim=(0, 100), ylim=(0, total * 1.08))
    axes.spines["bottom"].set(visible=True, color=_QUIET, linewidth=0.7)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: size(y, tick=True)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f} %"))
    axes.set_ylabel("parameters before it", color=_QUIET, size=9)
    axes.yaxis.set_label_coords(-0.88 / width, 0.5)
    axes.set_xlabel("position in the chain, % of its compute seconds", color=_QUIET, size=9)


def _memory(page: _Page, top: float, height: float, report: Report) -> None:
    """Bytes on each device of every stage, and the limit."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    stages, limit = report.stages, report.memory_limit_bytes
    axes = page.axes(_WIDTH - _RIGHT - _MEMORY, top, _MEMORY, height)
    row = height / len(stages)
    most = max(limit, *(stage.memory_bytes for stage in stages)) * 1.06
    axes.set(xlim=(0, most), ylim=(len(stages) - 0.5, -0.5), yticks=[])
    axes.set_title("memory per device", size=9, color=_QUIET, loc="left", pad=21)
    for number, stage in enumerate(stages):
        used = stage.memory_bytes
        over = used > limit
        axes.barh(number, most, 0.72, color=_TRACK)
        axes.barh(number, used, 0.72, color=_RED if over else _colour(number))
        if row < 0.13:
            continue
        font = min(8.5, row * 72 * 0.6)
        axes.text(-0.03 * most, number, f"{number}", size=font, ha="right", va="center",
                  color=_QUIET)
        words = size(used)
        inside = used / most * _MEMORY > _inches(words, font) + 0.15
        fill = _RED if over else _colour(number)
        axes.text(used + (-0.02 if inside else 0.02) * most, number, words, size=font, va="center",
                  ha="right" if inside else "left", color=_on(fill) if inside else _INK)
    axes.axvline(limit, color=_INK, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.text(limit, -0.5 - 0.06 / row, f"limit {size(limit)}", size=8.5, color=_INK, va="bottom",
              ha="right" if limit > most / 2 else "left")
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size(x, tick=True)))


def _schedule(page: _Page, top: float, height: float, report: Report) -> None:
    """The simulated 1F1B schedule: a row per compute stage, a thinner one per link."""
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    table, stages = report.timetable, report.stages
    longest = max(report.simulated_seconds, report.length_seconds)
    scale, unit = time_unit(longest)
    width = _WIDTH - _LEFT - _RIGHT - _LENGTHS
    axes = page.axes(_LEFT, top, width, height)
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
        base = _LINK if link else _colour(number)
        shades = (_mix(base, "#FFFFFF", 0.55), base)
        axes.axhspan(low, high, color=_TRACK, linewidth=0, zorder=0)
        for kind, shade in enumerate(shades):
            begin, end = table.start[row, kind] / scale, table.end[row, kind] / scale
            shapes.extend(_boxes(begin, end, low, high))
            colours += [shade] * len(begin)
            if not link:
                _numbers(axes, begin, end, (low + high) / 2, width * scale / longest,
                         per_inch * tall, _on(shade))
        if link:
            _label(axes, "link", (low + high) / 2, per_inch * tall, _QUIET)
            continue
        stage = stages[number]
        over = stage.memory_bytes > limit
        word = "device" if stage.device_end - stage.device_first == 1 else "devices"
        devices = device_range(stage)
        words = f"{number} · {word} {devices}\n{stage.efficiency:.1%} busy"
        if per_inch < 0.36:  # room for one line
            words = f"{number} · {word} {devices} · {stage.efficiency:.0%}"
        _label(axes, words, (low + high) / 2, per_inch, _RED if over else _INK)
        if stage.all_reduce_seconds > 0:
            begin, end = table.reduce_start[[row]] / scale, table.reduce_end[[row]] / scale
            hatched = PolyCollection(
                list(_boxes(begin, end, low, high)), facecolors="white", edgecolors=base,
                hatch="/////", linewidths=0.8, gid="all-reduce", zorder=2,
            )  # fmt: skip
            axes.add_collection(hatched)
    corners = np.stack(shapes)
    pixel = longest / scale / (width * _DPI)
    span = corners[:, 1, 0] - corners[:, 0, 0]
    # A gap keeps neighbours of one colour apart; the least width keeps short transfers visible.
    shown = np.maximum(span - np.minimum(1.3 * pixel, span / 3), 0.8 * pixel)
    corners[:, 1:3, 0] = (corners[:, 0, 0] + shown)[:, None]
    axes.add_collection(
        PolyCollection(list(corners), facecolors=colours, linewidths=0, gid="passes", zorder=1)
    )
    axes.annotate("stage · devices · busy", (0, 1), (-8, 6), xycoords="axes fraction",
                  textcoords="offset points", size=9, color=_QUIET, ha="right")
    _lengths(axes, report, scale)
    axes.spines["bottom"].set(visible=True, color=_QUIET, linewidth=0.7)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(f"time ({unit})", color=_QUIET, size=9)
    _legend(axes)


def _boxes(begin: np.ndarray, end: np.ndarray, low: float, high: float) -> np.ndarray:
    """(k, 4, 2) corners."""
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
    """Micro-batch numbers, if the widest fits its box; ``inches`` per unit of time."""
    room = float((end - begin).min()) * inches
    font = min(8.0, tall * 72 * 0.5)
    if font < 5 or room < _inches(f"{len(begin) - 1}", font) + 0.02:
        return
    for number, x in enumerate((begin + end) / 2):
        axes.text(float(x), y, f"{number}", size=font, color=colour, ha="center", va="center")


def _label(axes: Axes, words: str, y: float, tall: float, colour: str) -> None:
    """The name of a row, in the left margin; none where the row is tiny."""
    font = min(9.0, tall * 72 * 0.75)
    if font >= 4.5:
        axes.annotate(words, (0, y), (-8, 0), xycoords=("axes fraction", "data"),
                      textcoords="offset points", size=font, color=colour, ha="right", va="center",
                      linespacing=1.25, annotation_clip=False)


def _lengths(axes: Axes, report: Report, scale: float) -> None:
    """Dashed lines at both lengths, their names above, turned away from each other."""
    both = [("L", report.length_seconds, (0, (5, 2))),
            ("simulated", report.simulated_seconds, (0, (1.5, 1.5)))]
    if report.simulated_seconds < 0.999 * report.length_seconds:
        both.reverse()
    for (name, seconds, dashes), side in zip(both, ("right", "left"), strict=True):
        axes.axvline(seconds / scale, color=_INK, linewidth=1.3, linestyle=dashes, zorder=5,
                     clip_on=False)
        axes.annotate(f"{name} {duration(seconds)}", (seconds / scale, 1),
                      (-3 if side == "right" else 3, 5), xycoords=("data", "axes fraction"),
                      textcoords="offset points", size=9, color=_INK, ha=side,
                      annotation_clip=False)


def _legend(axes: Axes) -> None:
    from matplotlib.patches import Patch

    dark, light = "#555555", _mix("#555555", "#FFFFFF", 0.55)
    axes.legend(
        handles=[
            Patch(facecolor=light, label="forward"),
            Patch(facecolor=dark, label="backward"),
            Patch(facecolor="white", edgecolor=dark, hatch="/////", label="all-reduce"),
            Patch(facecolor=_TRACK, label="idle"),
        ],
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, frameon=False, fontsize=9,
        labelcolor=_QUIET, handlelength=1.4, handleheight=0.9, borderaxespad=0.2, borderpad=0.1,
        columnspacing=1.4,
    )  # fmt: skip


def _inches(words: str, font: float, bold: bool = False) -> float:
    """Width of a text, estimated from its length (a little generous)."""
    return len(words) * font * (0.63 if bold else 0.54) / 72


def _colour(stage: int) -> str:
    return STAGE_COLOURS[stage % len(STAGE_COLOURS)]


def _mix(colour: str, other: str, share: float) -> str:
    """``share`` of ``other`` and the rest of ``colour``."""
    parts = [(int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a * (1 - share) + b * share):02X}" for a, b in parts)


def _on(colour: str) -> str:
    """Black or white, whichever reads better on ``colour``."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return _INK if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else "white"
