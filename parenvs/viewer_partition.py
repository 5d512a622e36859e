"""Pictures of partition plans: variables by layer, coloured by their partitioned dimension."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.files import replacing
from parenvs.partition_grid import UNDECIDED, Cell, cells, grid
from parenvs.partition_text import title, verdict
from parenvs.viewer import METADATA, ending
from parenvs.viewer_page import DPI, HEIGHT, INK, RED, WIDTH, Page, style, text_inches
from parenvs.viewer_partition_cells import Sheet, draw_tables
from parenvs.viewer_partition_lists import Lists
from parenvs.viewer_partition_side import draw_key, draw_memory, draw_seconds
from parenvs.viewer_text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parenvs.judge_partition import PartitionReport
    from parenvs.partitioning import Partitioning

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
