"""Pictures of partition plans: variables by layer, coloured by their partitioned dimension."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from parenvs.errors import printable
from parenvs.tasks.partition.view.cells import Box, Lists, Sheet, draw_tables, name_of
from parenvs.tasks.partition.view.grid import UNDECIDED, Cell, cells, grid
from parenvs.tasks.partition.view.text import MEMORY_PARTS, taken_apart, title, verdict
from parenvs.view.page import HEIGHT, INK, MARGIN, QUIET, RED, TRACK, WIDTH, Page, blank_figure
from parenvs.view.words import SEPARATOR, duration, plural, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parenvs.tasks.partition.memory import Memory
    from parenvs.tasks.partition.problem import Partitioning, PartitionReport

_SIDE, _GAP = 2.75, 0.4  # inches: width of the column at the right, gap beside it
_LISTS = 1.6  # most inches of height of the lists below tables
_MOST_REASONS = 3
_SHADES = ("#37424D", "#5D6B79", "#8391A0", "#A9B4BE", "#CBD3DA")
_COMPUTE = "#5D6B79"
_LINE, _BAR = 0.2, 0.17  # inches: from one line to the next, height of a bar


def draw(
    viewable: PartitionReport | Partitioning, undecided: Collection[str] | None = None
) -> Figure:
    """The picture of a partition plan; ``style`` has to be in force.

    A cell per variable, a row per layer; its colour is the partitioned dimension. Variables outside
    of any layer and the batch inputs stand below. At the right, the step time against that of
    replication, memory per device against the limit, and the key.

    Args:
        viewable: what the judge says of the plan, or the problem where nothing is decided yet.
        undecided: paths that an episode has not settled, shown as empty cells.
    """
    problem, report = taken_apart(viewable)
    page = Page(blank_figure())
    variables, inputs = cells(problem, report, undecided)
    open_ = sum(cell.state == UNDECIDED for cell in (*variables, *inputs))
    reasons = _reason_lines(report.reasons if report is not None else ())
    legal = report is None or report.legal
    top = page.heading(title(problem), verdict(problem, report, open_), reasons, legal)
    sheet = Sheet(page)
    tables, groups = grid(variables)
    width, bottom = WIDTH - 2 * MARGIN - _SIDE - _GAP, HEIGHT - MARGIN
    room = min(bottom - top, _LISTS) if tables else bottom - top
    lists = Lists(groups, inputs, width, room, bool(tables))
    if tables:
        end = draw_tables(sheet, tables, MARGIN, top, width, bottom - top - lists.height)
        lists.draw(sheet, MARGIN, min(end + 0.3, bottom - lists.height))
    else:
        lists.draw(sheet, MARGIN, top)
    _draw_side(sheet, problem, report, variables, inputs, top)
    sheet.finish()
    return page.figure


def _reason_lines(reasons: Sequence[str]) -> list[str]:
    """The first reasons, two lines each at most."""
    lines = []
    for reason in reasons[:_MOST_REASONS]:
        words = textwrap.wrap(printable(reason), 165, subsequent_indent="   ")
        lines += words[:1] if len(words) < 2 else [words[0], words[1] + " …" * (len(words) > 2)]
    if len(reasons) > _MOST_REASONS:
        lines.append(f"and {len(reasons) - _MOST_REASONS} more")
    return lines


def _draw_side(
    sheet: Sheet,
    problem: Partitioning,
    report: PartitionReport | None,
    variables: list[Cell],
    inputs: list[Cell],
    top: float,
) -> None:
    """Draw the column at the right; seconds and bytes of an illegal plan would mean nothing."""
    x = WIDTH - MARGIN - _SIDE
    if report is None or report.legal:
        plan = (report.compute_seconds, report.communication_seconds) if report else (0.0, 0.0)
        top = _draw_seconds(sheet, x, top, _SIDE, problem.replicate_seconds, plan) + 0.3
        nothing = np.zeros(len(problem.classes), dtype=bool)
        memory = report.memory if report else problem.footprint.memory(nothing)
        top = _draw_memory(sheet, x, top, _SIDE, memory, problem.memory_limit) + 0.3
    _draw_key(sheet, x, top, _SIDE, variables, inputs)


def _draw_seconds(
    sheet: Sheet, x: float, y: float, width: float, replicate: float, plan: tuple[float, float]
) -> float:
    """Draw the seconds of a step, replicated and planned (compute, communication).

    A plan of no seconds is left out.

    Returns:
        The lower end, inches from the top.
    """
    compute, communication = plan
    whole = compute + communication
    words = "step time"
    if whole > 0:
        words += f"{SEPARATOR}{replicate / whole:.2f} × as fast as replicated"
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


def _draw_memory(
    sheet: Sheet, x: float, y: float, width: float, memory: Memory, limit: float
) -> float:
    """Draw what a device holds when most is in use, against the limit; returns the lower end."""
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
        part_width = width * getattr(memory, name) / longest
        _bar(sheet, begin, y, part_width, shade, name)
        begin += part_width
    limit_x = x + width * limit / longest
    sheet.axes.plot(
        [limit_x, limit_x], [y - 0.05, y + _BAR + 0.05], color=RED if over else INK, linewidth=1.3,
        linestyle=(0, (3, 1.5)), gid="limit", zorder=5, solid_capstyle="butt",
    )  # fmt: skip
    y += 0.17
    right = limit > longest / 2
    sheet.text(
        limit_x, y + 0.14, "limit", size=8, color=RED if over else QUIET,
        ha="right" if right else "left",
    )  # fmt: skip
    y += 0.27
    for name, shade in zip(MEMORY_PARTS, _SHADES, strict=True):
        _entry(sheet, x, y, width, shade, name, size(getattr(memory, name)))
        y += _LINE
    return y


def _draw_key(
    sheet: Sheet,
    x: float,
    y: float,
    width: float,
    variables: Sequence[Cell],
    inputs: Sequence[Cell],
) -> float:
    """Draw the states that occur, each with its number of variables; returns the lower end."""
    sheet.text(x, y + 0.08, "partitioned dimension", size=9, color=QUIET)
    sheet.text(x + width, y + 0.08, "variables", size=9, color=QUIET, ha="right")
    y += 0.27
    variable_count = Counter(cell.state for cell in variables)
    input_count = Counter(cell.state for cell in inputs)
    for state in sorted({*variable_count, *input_count}, key=lambda s: (s < 0, abs(s))):
        sheet.box(Box(x, y, 0.22, 0.15), state)
        sheet.text(x + 0.3, y + 0.075, name_of(state), size=8.5)
        counts = f"{variable_count[state]:,}"
        if input_count[state]:
            counts += f" + {plural(input_count[state], 'input')}"
        sheet.text(x + width, y + 0.075, counts, size=8.5, ha="right")
        y += _LINE + 0.02
    if any(cell.fault for cell in (*variables, *inputs)):
        sheet.fault(Box(x, y, 0.22, 0.15))
        faults = f"{sum(cell.fault for cell in variables):,}"
        sheet.text(x + 0.3, y + 0.075, "breaks a rule", size=8.5, color=RED)
        sheet.text(x + width, y + 0.075, faults, size=8.5, ha="right")
        y += _LINE + 0.02
    return y


def _entry(
    sheet: Sheet, x: float, y: float, width: float, fill: str, name: str, value: str
) -> None:
    """Draw a line of a key: swatch, name, value."""
    _bar(sheet, x, y + 0.02, 0.15, fill, "", 0.12)
    sheet.text(x + 0.24, y + 0.08, name, size=8.5)
    sheet.text(x + width, y + 0.08, value, size=8.5, ha="right")


def _bar(
    sheet: Sheet, x: float, y: float, width: float, fill: str, gid: str, height: float = _BAR
) -> None:
    """Draw a rectangle; hatched where ``fill`` is empty."""
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
