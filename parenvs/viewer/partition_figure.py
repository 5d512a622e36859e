"""Pictures of partition plans: variables by layer, coloured by their partitioned dimension.

JOINED: The right column of a partition picture: step time, memory per device, and the key.
"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.files import replacing
from parenvs.viewer.page import DPI, HEIGHT, INK, QUIET, RED, TRACK, WIDTH, Page, style, text_inches
from parenvs.viewer.partition_cells import Lists, Sheet, draw_tables, name_of
from parenvs.viewer.partition_grid import UNDECIDED, Cell, cells, grid
from parenvs.viewer.partition_text import MEMORY_PARTS, title, verdict
from parenvs.viewer.pipeline_figure import METADATA, ending
from parenvs.viewer.words import duration, printable, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parenvs.partitioning.problem import Partitioning, PartitionReport

if TYPE_CHECKING:
    from parenvs.partitioning.memory import Memory


__all__ = ["figure", "rgb_array", "save"]

_LEFT, _SIDE, _GAP = 0.3, 2.75, 0.4  # inches: margin, width of the column at the right, gap
_LISTS = 1.6  # most inches of height of the lists below tables
_MOST_REASONS, _MOST_LETTERS = 3, 120


def figure(
    problem: Partitioning,
    report: PartitionReport | None,
    undecided: Collection[str] | None = None,
) -> Figure:
    """A picture of a partition plan.

    A cell per variable, a row per layer; its colour is the partitioned dimension. Variables outside
    of any layer and the batch inputs stand below. At the right, the step time against that of
    replication, memory per device against the limit, and the key.

    Args:
        problem: the problem.
        report: what the judge says of the plan; None where nothing is decided yet.
        undecided: paths that an episode has not settled, shown as empty cells.
    """
    with style():
        return _draw(problem, report, undecided)


def rgb_array(
    problem: Partitioning,
    report: PartitionReport | None,
    undecided: Collection[str] | None = None,
) -> np.ndarray:
    """The picture as a new array of shape (800, 1280, 3), uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with style():
        canvas = FigureCanvasAgg(_draw(problem, report, undecided))
        canvas.draw()
        return np.array(canvas.buffer_rgba())[..., :3].copy()


def save(
    path: str | os.PathLike[str],
    problem: Partitioning,
    report: PartitionReport | None,
    undecided: Collection[str] | None = None,
) -> None:
    """Write the picture; equal plans give equal bytes, and a failure leaves the old file.

    Args:
        path: ends in ``.png``, ``.svg`` or ``.pdf``.
        problem: the problem.
        report: what the judge says of the plan, or None.
        undecided: paths that an episode has not settled.

    Raises:
        ParenvsError: another ending.
    """
    suffix = ending(path)
    with style(), replacing(path) as stream:
        _draw(problem, report, undecided).savefig(
            stream, format=suffix[1:], dpi=1.5 * DPI, metadata=METADATA[suffix]
        )


def _draw(
    problem: Partitioning,
    report: PartitionReport | None,
    undecided: Collection[str] | None,
) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    page = Page(Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white"))
    FigureCanvasAgg(page.figure)
    variables, inputs = cells(problem, report, undecided)
    open_ = sum(cell.state == UNDECIDED for cell in (*variables, *inputs))
    top = _heading(page, problem, report, open_)
    sheet = Sheet(page)
    tables, groups = grid(variables)
    width, bottom = WIDTH - 2 * _LEFT - _SIDE - _GAP, HEIGHT - _LEFT
    room = min(bottom - top, _LISTS) if tables else bottom - top
    lists = Lists(groups, inputs, width, room, bool(tables))
    if tables:
        end = draw_tables(sheet, tables, _LEFT, top, width, bottom - top - lists.height)
        lists.draw(sheet, _LEFT, min(end + 0.3, bottom - lists.height))
    else:
        lists.draw(sheet, _LEFT, top)
    _side(sheet, problem, report, variables, inputs, top)
    sheet.finish()
    return page.figure


def _heading(
    page: Page,
    problem: Partitioning,
    report: PartitionReport | None,
    undecided: int,
) -> float:
    """Title, verdict and reasons; returns where the rest may begin, inches from the top."""
    ink = INK if report is None or report.legal else RED
    words = title(problem)
    if len(words) > _MOST_LETTERS:
        words = words[: _MOST_LETTERS - 1] + "…"
    _line(page, 0.22, words, size=14, weight="bold", color=INK)
    top, line = 0.56, ""
    for part in verdict(problem, report, undecided):
        longer = f"{line}  ·  {part}" if line else part
        if line and text_inches(longer, 10.5) > WIDTH - 2 * _LEFT:
            _line(page, top, line, size=10.5, color=ink)
            top, longer = top + 0.23, part
        line = longer
    _line(page, top, line, size=10.5, color=ink)
    top += 0.34
    for line in _reasons(report.reasons if report is not None else ()):
        _line(page, top, line, size=9, color=RED)
        top += 0.19
    return top + 0.12


def _line(page: Page, top: float, words: str, size: float, **look: Any) -> None:
    """A line from the left margin, in smaller letters where it would leave the page."""
    place = (_LEFT / WIDTH, 1 - top / HEIGHT)
    text = page.figure.text(*place, words, size=size, va="top", **look)
    room = (WIDTH - 2 * _LEFT) * DPI
    text.set_fontsize(size * min(1.0, 0.98 * room / max(text.get_window_extent().width, 1.0)))


def _reasons(reasons: Sequence[str]) -> list[str]:
    """The first reasons, two lines each at most."""
    lines = []
    for reason in reasons[:_MOST_REASONS]:
        words = textwrap.wrap(printable(reason), 165, subsequent_indent="   ")
        lines += words[:1] if len(words) < 2 else [words[0], words[1] + " …" * (len(words) > 2)]
    if len(reasons) > _MOST_REASONS:
        lines.append(f"and {len(reasons) - _MOST_REASONS} more")
    return lines


def _side(
    sheet: Sheet,
    problem: Partitioning,
    report: PartitionReport | None,
    variables: list[Cell],
    inputs: list[Cell],
    top: float,
) -> None:
    """The column at the right; seconds and bytes of an illegal plan would mean nothing."""
    x = WIDTH - _LEFT - _SIDE
    if report is None or report.legal:
        plan = (report.compute_seconds, report.communication_seconds) if report else (0.0, 0.0)
        top = draw_seconds(sheet, x, top, _SIDE, problem.replicate_seconds, plan) + 0.3
        nothing = np.zeros(len(problem.classes), dtype=bool)
        memory = report.memory if report else problem.footprint.memory(nothing)
        top = draw_memory(sheet, x, top, _SIDE, memory, problem.memory_limit) + 0.3
    draw_key(sheet, x, top, _SIDE, variables, inputs)


_SHADES = ("#37424D", "#5D6B79", "#8391A0", "#A9B4BE", "#CBD3DA")
_COMPUTE = "#5D6B79"
_LINE, _BAR = 0.2, 0.17  # inches


def draw_seconds(
    sheet: Sheet, x: float, y: float, width: float, replicate: float, plan: tuple[float, float]
) -> float:
    """Seconds of a step, replicated and planned (compute, communication); returns the lower end.

    A plan of no seconds is left out.
    """
    compute, communication = plan
    whole = compute + communication
    words = "step time"
    if whole > 0:
        words += f"  ·  {replicate / whole:.2f} × as fast as replicated"
    sheet.text(x, y + 0.08, words, size=9, color=QUIET)
    y += 0.26
    bars = [("replicated", replicate, 0.0)]
    if whole > 0:
        bars.append(("this plan", compute, communication))
    longest = max(a + b for _, a, b in bars) or 1.0
    for name, first, second in bars:
        begin, room = x + 0.72, width - 0.72 - 0.66
        sheet.text(x, y + _BAR / 2, name, size=8.5)
        _bar(sheet, begin, y, room * first / longest, _COMPUTE, "compute")
        _bar(sheet, begin + room * first / longest, y, room * second / longest, "", "communication")
        end = begin + room * (first + second) / longest
        sheet.text(end + 0.06, y + _BAR / 2, duration(first + second), size=8.5)
        y += _LINE + 0.05
    if whole > 0:
        y += 0.02
        for name, seconds, fill in (
            ("compute", compute, _COMPUTE), ("communication", communication, ""),
        ):  # fmt: skip
            _entry(sheet, x, y, width, fill, name, duration(seconds))
            y += _LINE
    return y


def draw_memory(
    sheet: Sheet, x: float, y: float, width: float, memory: Memory, limit: float
) -> float:
    """What a device holds when most is in use, against the limit; returns the lower end."""
    over = memory.peak > limit
    words = f"{size(memory.peak)} of {size(limit)}"
    sheet.text(x, y + 0.08, "memory per device", size=9, color=QUIET)
    sheet.text(
        x + width, y + 0.08, words, size=9, ha="right", color=RED if over else INK,
        weight="bold" if over else "normal",
    )  # fmt: skip
    y += 0.3
    longest = max(memory.peak, limit) * 1.02
    _bar(sheet, x, y, width, TRACK, "")
    begin = x
    for name, shade in zip(MEMORY_PARTS, _SHADES, strict=True):
        wide = width * getattr(memory, name) / longest
        _bar(sheet, begin, y, wide, shade, name)
        begin += wide
    at = x + width * limit / longest
    sheet.axes.plot(
        [at, at], [y - 0.05, y + _BAR + 0.05], color=RED if over else INK, linewidth=1.3,
        linestyle=(0, (3, 1.5)), gid="limit", zorder=5, solid_capstyle="butt",
    )  # fmt: skip
    y += 0.17
    right = limit > longest / 2
    sheet.text(
        at, y + 0.14, "limit", size=8, color=RED if over else QUIET,
        ha="right" if right else "left",
    )  # fmt: skip
    y += 0.27
    for name, shade in zip(MEMORY_PARTS, _SHADES, strict=True):
        _entry(sheet, x, y, width, shade, name, size(getattr(memory, name)))
        y += _LINE
    return y


def draw_key(
    sheet: Sheet,
    x: float,
    y: float,
    width: float,
    variables: Sequence[Cell],
    inputs: Sequence[Cell],
) -> float:
    """The states that occur, each with its number of variables; returns the lower end."""
    sheet.text(x, y + 0.08, "partitioned dimension", size=9, color=QUIET)
    sheet.text(x + width, y + 0.08, "variables", size=9, color=QUIET, ha="right")
    y += 0.27
    count = Counter(cell.state for cell in variables)
    other = Counter(cell.state for cell in inputs)
    for state in sorted({*count, *other}, key=lambda s: (s < 0, abs(s))):
        sheet.box(x, y, 0.22, 0.15, state)
        sheet.text(x + 0.3, y + 0.075, name_of(state), size=8.5)
        many = f"{count[state]:,}"
        if other[state]:
            many += f" + {other[state]:,} input{'s' if other[state] > 1 else ''}"
        sheet.text(x + width, y + 0.075, many, size=8.5, ha="right")
        y += _LINE + 0.02
    if any(cell.fault for cell in (*variables, *inputs)):
        sheet.fault(x, y, 0.22, 0.15)
        many = f"{sum(cell.fault for cell in variables):,}"
        sheet.text(x + 0.3, y + 0.075, "breaks a rule", size=8.5, color=RED)
        sheet.text(x + width, y + 0.075, many, size=8.5, ha="right")
        y += _LINE + 0.02
    return y


def _entry(
    sheet: Sheet, x: float, y: float, width: float, fill: str, name: str, value: str
) -> None:
    """A line of a key: swatch, name, value."""
    _bar(sheet, x, y + 0.02, 0.15, fill, "", 0.12)
    sheet.text(x + 0.24, y + 0.08, name, size=8.5)
    sheet.text(x + width, y + 0.08, value, size=8.5, ha="right")


def _bar(
    sheet: Sheet, x: float, y: float, width: float, fill: str, gid: str, height: float = _BAR
) -> None:
    """A rectangle; hatched without a colour."""
    from matplotlib.patches import Rectangle

    if width <= 0:
        return
    bar = Rectangle((x, y), width, height, gid=gid or None, zorder=2, linewidth=0.6)
    bar.set_facecolor(fill or "white")
    bar.set_edgecolor(fill or _COMPUTE)
    if fill:
        bar.set_linewidth(0)
    else:
        bar.set_hatch("//////")
    sheet.axes.add_patch(bar)
