"""Pictures of partition plans: variables by layer, coloured by their partitioned dimension."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parenvs.errors import printable
from parenvs.tasks.partition.view import (
    BLOCKED,
    MEMORY_PARTS,
    REPLICATED,
    STATE_NAMES,
    UNDECIDED,
    Cell,
    Group,
    LayerTable,
    NamedCell,
    cells,
    grid,
    taken_apart,
    title,
    verdict,
)
from parenvs.view.page import (
    HEIGHT,
    INK,
    MARGIN,
    QUIET,
    RED,
    STAGE_COLOURS,
    TRACK,
    WIDTH,
    Page,
    blank_figure,
    ink_on,
    text_inches,
)
from parenvs.view.words import SEPARATOR, clip_start, duration, plural, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.tasks.partition.formulas import Memory
    from parenvs.tasks.partition.problem import Partitioning, PartitionReport

FONT = 7.5
"""Points of the words in and beside cells."""
_FILLS = {REPLICATED: "#D3D3D3", BLOCKED: "#F5F5F5", UNDECIDED: "#FFFFFF"}
_EDGE, _STROKE = "#8E8E8E", "#BDBDBD"
_PIXEL = 0.01  # inches
_TALL = 0.13  # inches of a cell that can hold words
_LETTERS = 30  # of the name of a column
_TILT = 60  # degrees
_HEAD = 0.05  # inches more between columns whose names begin differently
_WIDEST, _NARROW = 1.8, 0.5  # inches, of cells with and without their shape
_SHARE = 0.35  # of the width, at most, for the names of layers
_LINE = 0.22  # inches from one line of a list to the next
_PITCHES = (0.2, 0.16, 0.13, 0.1, 0.08, 0.06, 0.05)  # of cells without names, inches


def colour_of(state: int) -> str:
    """Fill of a cell: one hue a dimension, greys for the other states."""
    return _FILLS[state] if state < 0 else STAGE_COLOURS[state % len(STAGE_COLOURS)]


def name_of(state: int) -> str:
    """``dimension 1``, ``replicated``, ..."""
    return STATE_NAMES[state] if state < 0 else f"dimension {state}"


class Box(NamedTuple):
    """A rectangle in inches, y from the top."""

    x: float
    y: float
    width: float
    height: float

    def corners(self, inset: float) -> list[tuple[float, float]]:
        """Its corners, each moved inwards by ``inset`` in both directions."""
        left, top = self.x + inset, self.y + inset
        right, bottom = self.x + self.width - inset, self.y + self.height - inset
        return [(left, top), (right, top), (right, bottom), (left, bottom)]


class Sheet:
    """The whole page in inches, y from the top; cells are collected and drawn at the end."""

    def __init__(self, page: Page) -> None:
        self.axes: Axes = page.axes(0, 0, WIDTH, HEIGHT)
        self.axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0), xticks=[], yticks=[])
        self.axes.patch.set_visible(False)
        self._boxes: dict[int, list[Box]] = {}
        self._faults: list[Box] = []

    def text(self, x: float, y: float, words: str, **style: Any) -> None:
        """Write words, vertically centred on ``y``."""
        self.axes.text(x, y, words, **{"size": FONT, "color": INK, "va": "center", **style})

    def cell(self, box: Box, variables: Sequence[Cell]) -> None:
        """Add a cell; that of several variables is cut up in proportion to their states."""
        counts = Counter(variable.state for variable in variables)
        x = box.x
        for state, count in sorted(counts.items(), key=lambda item: (item[0] < 0, item[0])):
            width = box.width * count / len(variables)
            self.box(Box(x, box.y, width, box.height), state)
            x += width
        if any(variable.fault for variable in variables):
            self.fault(box)

    def box(self, box: Box, state: int) -> None:
        """Add a rectangle in the colours of a state."""
        self._boxes.setdefault(state, []).append(box)

    def fault(self, box: Box) -> None:
        """Add the red frame of what breaks a rule."""
        self._faults.append(box)

    def finish(self) -> None:
        """Draw the cells."""
        from matplotlib.collections import LineCollection, PolyCollection

        for state, boxes in sorted(self._boxes.items()):
            empty = state == UNDECIDED
            inset = 0.5 * _PIXEL if empty else 0.0
            self.axes.add_collection(
                PolyCollection(
                    [box.corners(inset) for box in boxes],
                    facecolors=colour_of(state),
                    edgecolors=_EDGE if empty else "none",
                    linewidths=0.7 if empty else 0.0,
                    antialiased=empty,
                    gid=name_of(state),
                    zorder=1,
                )
            )
            if state == BLOCKED:
                strokes = [[(x, y + h), (x + _reach(w, h), y)] for x, y, w, h in boxes]
                self.axes.add_collection(
                    LineCollection(strokes, colors=_STROKE, linewidths=0.8, zorder=2)
                )
        if self._faults:
            self.axes.add_collection(
                PolyCollection(
                    [box.corners(0.006) for box in self._faults],
                    facecolors="none",
                    edgecolors=RED,
                    linewidths=1.5,
                    gid="fault",
                    zorder=3,
                )
            )


def _reach(width: float, height: float) -> float:
    """Inches that a stroke through a cell takes: beside the words, where there is room for any."""
    return height if height >= _TALL and width > 3 * height else width


def whole(inches: float) -> float:
    """The inches cut to whole pixels, so that all cells are equally large and sharp."""
    return int(inches / _PIXEL + 1e-6) * _PIXEL


class _CellSize(NamedTuple):
    """Inches of the cells of all tables; ``letters`` is the longest row name in characters."""

    pitch: float
    tall: float
    letters: int
    shapes: bool


def draw_tables(
    sheet: Sheet, tables: Sequence[LayerTable], left: float, top: float, width: float, height: float
) -> float:
    """Draw tables side by side, layers by variables; return the lower end, inches from the top."""
    letters = max(int(width * _SHARE / len(tables) / text_inches("x", FONT, bold=True)), 4)
    margins = [
        max(text_inches(clip_start(row.label, letters), FONT, bold=True) for row in table.rows)
        + 0.1
        for table in tables
    ]
    longest = max(
        text_inches(clip_start(c, _LETTERS), FONT) for table in tables for c in table.columns
    )
    overhang = 0.5 * longest  # by which the slanted names stick out at the right
    gap = overhang + 0.12
    heads = sum(_heads(table)[-1] for table in tables) * _HEAD
    room = width - sum(margins) - gap * (len(tables) - 1) - overhang - heads
    header = 0.87 * longest + 0.12 + (0.24 if any(table.title for table in tables) else 0.0)
    rows = max(len(table.rows) for table in tables)
    tall = whole(min((height - header - 0.2) / rows, 0.28))
    variables = [
        cell for table in tables for row in table.rows for column in row.cells for cell in column
    ]
    shape = max(text_inches(shape_words(cell), 7, bold=True) for cell in variables) + 0.12
    pitch = room / sum(len(table.columns) for table in tables)
    shapes = pitch >= shape and tall >= _TALL
    pitch = whole(min(pitch, max(_WIDEST, shape) if shapes else _NARROW))
    cell_size = _CellSize(pitch, tall, letters, shapes)
    x, y = whole(left), whole(top + header)
    for table, margin in zip(tables, margins, strict=True):
        table_width = pitch * len(table.columns) + _heads(table)[-1] * _HEAD
        title_letters = int((margin + table_width) / text_inches("x", 9, bold=True))
        title = clip_start(table.title, max(title_letters, 6))
        sheet.text(x, top + 0.08, title, size=9, weight="bold")
        _draw_table(sheet, table, whole(x + margin), y, cell_size)
        x = whole(x + margin) + table_width + gap
    return y + rows * tall


def _heads(table: LayerTable) -> list[int]:
    """For each column, how often the first part of the names has changed before it."""
    heads = [name.split("/")[0] for name in table.columns]
    changes = [0]
    for before, after in pairwise(heads):
        changes.append(changes[-1] + (before != after))
    return changes if len(set(heads)) < len(heads) else [0] * len(heads)


def _draw_table(
    sheet: Sheet, table: LayerTable, left: float, top: float, cell_size: _CellSize
) -> None:
    pitch, tall, letters, shapes = cell_size
    lefts = [left + k * pitch + head * _HEAD for k, head in enumerate(_heads(table))]
    half = (pitch - _PIXEL) / 2
    for x, name in zip(lefts, table.columns, strict=True):
        if pitch >= 0.115:
            words = clip_start(name, _LETTERS)
            sheet.text(
                x + half, top - 0.05, words, rotation=_TILT, rotation_mode="anchor", color=QUIET
            )
    label_step = next(k for k in (1, 2, 4, 5, 10, 20, 50, 100) if k * tall >= 0.125)
    for number, row in enumerate(table.rows):
        y = top + number * tall
        middle = y + (tall - _PIXEL) / 2
        if number % label_step == 0:
            label = clip_start(row.label, letters)
            sheet.text(left - 0.06, middle, label, ha="right", color=QUIET)
        for x, variables in zip(lefts, row.cells, strict=True):
            if not variables:
                continue
            sheet.cell(Box(x, y, pitch - _PIXEL, tall - _PIXEL), variables)
            state = variables[0].state
            room_for_digit = state >= 0 and min(pitch, tall) >= _TALL
            alike = len({(variable.state, variable.shape) for variable in variables}) == 1
            if alike and (shapes or room_for_digit):
                words = shape_words(variables[0]) if shapes else f"{state}"
                font = min(7.0, tall * 72 * 0.6)
                ink = ink_on(colour_of(state))
                sheet.text(x + half, middle, words, size=font, ha="center", color=ink)


def shape_words(cell: Cell) -> str:
    """``3×3×64×[128]``, the partitioned dimension in brackets; ``scalar``."""
    words = [f"[{n}]" if d == cell.state else f"{n}" for d, n in enumerate(cell.shape)]
    return "×".join(words) or "scalar"


class _Item(NamedTuple):
    """A variable in a line of a list, ``x`` inches from the left end of the list."""

    x: float
    words: str
    cell: Cell


class _Line(NamedTuple):
    title: str
    items: list[_Item]


class Lists:
    """Variables in no layer and batch inputs: a line a group, each cell with its name beside it.

    What would take more lines than there is room for becomes a field of cells without names.

    Args:
        room: most inches of height.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        inputs: Sequence[Cell],
        width: float,
        room: float,
        below_tables: bool,
    ) -> None:
        self.width = width
        variables = [Group(group.title or "top level", group.cells) for group in groups]
        batch = [Group("batch inputs", tuple(NamedCell(c.path, c) for c in inputs))]
        batch = batch if inputs else []
        titles = [group.title for group in variables + batch]
        self.margin = min(
            max((text_inches(clip_start(title, 20), FONT) for title in titles), default=0) + 0.15,
            1.5,
        )
        self.lines: list[_Line] = []
        self.field: list[Cell] = []
        self.title = "other variables" if below_tables else "variables"
        for shapes in (True, False):
            self.lines = self._flow(variables, shapes) + self._flow(batch, shapes)
            if len(self.lines) * _LINE <= room:
                break
        else:
            self.field = [named.cell for group in variables for named in group.cells]
            self.lines = self._flow(batch, False)
            if len(self.lines) > 3:
                self.field += [named.cell for group in batch for named in group.cells]
                self.title += " and inputs"
                self.lines = []
            self.margin = max(self.margin, text_inches(self.title, FONT) + 0.15)
        self.height = len(self.lines) * _LINE
        if self.field:
            self.height += self._arrange(room - self.height - 0.15) + 0.15

    def _flow(self, groups: Sequence[Group], shapes: bool) -> list[_Line]:
        """The groups in lines, with the variables' shapes behind their names if ``shapes``."""
        lines: list[_Line] = []
        for group in groups:
            x = self.width
            for name, cell in group.cells:
                words = clip_start(name, 40)
                item_width = 0.2 + text_inches(words, FONT) + 0.2
                if shapes:
                    item_width += text_inches(f"  {shape_words(cell)}", FONT, bold=True)
                    words += f"  {shape_words(cell)}"
                if x + item_width > self.width:
                    first = not lines or x == self.width
                    lines.append(_Line(clip_start(group.title, 20) if first else "", []))
                    x = self.margin
                lines[-1].items.append(_Item(x, words, cell))
                x += item_width
        return lines

    def _arrange(self, height: float) -> float:
        """Choose the pitch of the field, cells in a row and variables a cell; return its height."""
        width, count = self.width - self.margin, len(self.field)
        for self.pitch in _PITCHES:
            self.across = int(width / self.pitch)
            down = max(int(height / self.pitch), 1)
            if self.across * down >= count:
                break
        self.each = -(-count // (self.across * down))
        return max(-(-count // (self.each * self.across)) * self.pitch, 3 * 0.16)

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        """Draw field and lines."""
        left, y = whole(left), whole(top)
        if self.field:
            self._draw_field(sheet, left, y)
            y = whole(top + self.height - len(self.lines) * _LINE)
        for heading, items in self.lines:
            sheet.text(left, y + 0.07, heading, color=QUIET)
            for x, words, cell in items:
                sheet.cell(Box(whole(left + x), y, 0.14, 0.14), [cell])
                sheet.text(left + x + 0.2, y + 0.07, words)
            y += _LINE

    def _draw_field(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top + 0.08, self.title, color=QUIET)
        sheet.text(left, top + 0.24, f"{len(self.field):,}", color=QUIET)
        if self.each > 1:
            sheet.text(left, top + 0.4, f"{self.each} a cell", color=QUIET)
        side = self.pitch - _PIXEL
        for k, start in enumerate(range(0, len(self.field), self.each)):
            down, across = divmod(k, self.across)
            x = whole(left + self.margin) + across * self.pitch
            variables = self.field[start : start + self.each]
            sheet.cell(Box(x, top + down * self.pitch, side, side), variables)


_SIDE, _GAP = 2.75, 0.4  # inches: width of the column at the right, gap beside it
_LISTS = 1.6  # most inches of height of the lists below tables
_MOST_REASONS = 3
_SHADES = ("#37424D", "#5D6B79", "#8391A0", "#A9B4BE", "#CBD3DA")
_COMPUTE = "#5D6B79"
_STEP_DOWN, _BAR = 0.2, 0.17  # inches: from one line to the next, height of a bar


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
    """Draw the column at the right; an illegal plan has neither seconds nor bytes."""
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
    """Draw the step times, replicated and planned, in parts; return the lower end in inches."""
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
        y += _STEP_DOWN + 0.05
    if whole > 0:
        y += 0.02
        for name, seconds, fill in (
            ("compute", compute, _COMPUTE), ("communication", communication, ""),
        ):  # fmt: skip
            _entry(sheet, x, y, width, fill, name, duration(seconds))
            y += _STEP_DOWN
    return y


def _draw_memory(
    sheet: Sheet, x: float, y: float, width: float, memory: Memory, limit: float
) -> float:
    """Draw peak memory per device against the limit; return the lower end."""
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
        y += _STEP_DOWN
    return y


def _draw_key(
    sheet: Sheet,
    x: float,
    y: float,
    width: float,
    variables: Sequence[Cell],
    inputs: Sequence[Cell],
) -> float:
    """Draw the states that occur, each with its number of variables; return the lower end."""
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
        y += _STEP_DOWN + 0.02
    if any(cell.fault for cell in (*variables, *inputs)):
        sheet.fault(Box(x, y, 0.22, 0.15))
        faults = f"{sum(cell.fault for cell in variables):,}"
        sheet.text(x + 0.3, y + 0.075, "breaks a rule", size=8.5, color=RED)
        sheet.text(x + width, y + 0.075, faults, size=8.5, ha="right")
        y += _STEP_DOWN + 0.02
    return y


def _entry(
    sheet: Sheet, x: float, y: float, width: float, fill: str, name: str, value: str
) -> None:
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
