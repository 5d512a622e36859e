"""Pictures of partition plans: variables by layer, colored by their partitioned dimension."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import parenvs.tasks.partition.view as view
import parenvs.view.page as page_style
from parenvs.errors import printable
from parenvs.tasks.partition.view import MEMORY_PARTS, UNDECIDED, Cell, Group, LayerTable
from parenvs.view.page import HEIGHT, INK, MARGIN, QUIET, RED, WIDTH, Page, text_inches
from parenvs.view.words import SEPARATOR, clip_start, duration, plural, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.tasks.partition.problem import Partitioning, PartitionReport

FONT = 7.5
"""Points of the words in and beside cells."""
_FILLS = {view.REPLICATED: "#D3D3D3", view.BLOCKED: "#F5F5F5", UNDECIDED: "#FFFFFF"}
_EDGE, _STROKE = "#8E8E8E", "#BDBDBD"
_PIXEL = 0.01  # inches
_TALL = 0.13  # inches of a cell that can hold words
_LETTERS = 30  # of the name of a column
_TILT = 60  # degrees
_WIDEST, _NARROW = 1.8, 0.5  # inches, of cells with and without their shape
_SHARE = 0.35  # of the width, at most, for the names of layers
_LINE = 0.22  # inches from one line of a list to the next
_PITCHES = (0.2, 0.16, 0.13, 0.1, 0.08, 0.06, 0.05)  # of cells without names, inches


def color_of(state: int) -> str:
    """Fill of a cell: one hue per dimension, grays for the other states."""
    hues = page_style.STAGE_COLORS
    return _FILLS[state] if state < 0 else hues[state % len(hues)]


def name_of(state: int) -> str:
    """``dimension 1``, ``replicated``, ..."""
    return view.STATE_NAMES[state] if state < 0 else f"dimension {state}"


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
        self.boxes: dict[int, list[Box]] = defaultdict(list)  # by state
        self.faults: list[Box] = []

    def text(self, x: float, y: float, words: str, **style: Any) -> None:
        """Write words, vertically centered on ``y``."""
        self.axes.text(x, y, words, **{"size": FONT, "color": INK, "va": "center", **style})

    def cell(self, box: Box, variables: Sequence[Cell]) -> None:
        """Add a cell; that of several variables is divided in proportion to their states."""
        counts = Counter(variable.state for variable in variables)
        x = box.x
        for state, count in sorted(counts.items(), key=lambda item: (item[0] < 0, item[0])):
            width = box.width * count / len(variables)
            self.boxes[state].append(Box(x, box.y, width, box.height))
            x += width
        if any(variable.fault for variable in variables):
            self.faults.append(box)

    def bar(self, box: Box, fill: str, gid: str = "") -> None:
        """Draw a rectangle; hatched where ``fill`` is empty."""
        from matplotlib.patches import Rectangle

        x, y, width, height = box
        if width > 0:
            bar = Rectangle(
                (x, y), width, height, gid=gid or None, zorder=2, facecolor=fill or "white",
                edgecolor=fill or _COMPUTE, linewidth=0 if fill else 0.6,
                hatch="" if fill else "//////",
            )  # fmt: skip
            self.axes.add_patch(bar)

    def finish(self) -> None:
        """Draw the cells."""
        from matplotlib.collections import LineCollection

        for state, boxes in sorted(self.boxes.items()):
            self._polygons(boxes, state == UNDECIDED, color_of(state), name_of(state))
            if state == view.BLOCKED:
                # A stroke stays beside the words where the cell is large enough for any.
                strokes = [
                    [(x, y + h), (x + (h if h >= _TALL and w > 3 * h else w), y)]
                    for x, y, w, h in boxes
                ]
                lines = LineCollection(strokes, colors=_STROKE, linewidths=0.8, zorder=2)
                self.axes.add_collection(lines)
        if self.faults:
            self._polygons(self.faults, True, "none", "fault", edge=RED, line=1.5, zorder=3)

    def _polygons(
        self,
        boxes: Sequence[Box],
        framed: bool,
        fill: str,
        gid: str,
        edge: str = _EDGE,
        line: float = 0.7,
        zorder: int = 1,
    ) -> None:
        from matplotlib.collections import PolyCollection

        corners = [box.corners(0.5 * _PIXEL if framed else 0.0) for box in boxes]
        collection = PolyCollection(
            corners,
            facecolors=fill,
            edgecolors=edge if framed else "none",
            linewidths=line if framed else 0.0,
            antialiased=framed,
            gid=gid,
            zorder=zorder,
        )
        self.axes.add_collection(collection)


def whole(inches: float) -> float:
    """The inches cut to whole pixels, so that all cells are equally large and sharp."""
    return int(inches / _PIXEL + 1e-6) * _PIXEL


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
    room = width - sum(margins) - gap * (len(tables) - 1) - overhang
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
    x, y = whole(left), whole(top + header)
    for table, margin in zip(tables, margins, strict=True):
        table_width = pitch * len(table.columns)
        title_letters = int((margin + table_width) / text_inches("x", 9, bold=True))
        title = clip_start(table.title, max(title_letters, 6))
        sheet.text(x, top + 0.08, title, size=9, weight="bold")
        x = whole(x + margin)
        _draw_table(sheet, table, Box(x, y, pitch, tall), letters, shapes)
        x += table_width + gap
    return y + rows * tall


def _draw_table(sheet: Sheet, table: LayerTable, first: Box, letters: int, shapes: bool) -> None:
    """Draw a table whose first cell, gap included, is ``first``; the cells may hold ``shapes``."""
    left, top, pitch, tall = first
    lefts = [left + k * pitch for k in range(len(table.columns))]
    half = (pitch - _PIXEL) / 2
    if pitch >= 0.115:
        slanted = {"rotation": _TILT, "rotation_mode": "anchor", "color": QUIET}
        for x, name in zip(lefts, table.columns, strict=True):
            sheet.text(x + half, top - 0.05, clip_start(name, _LETTERS), **slanted)
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
            alike = len({(variable.state, variable.shape) for variable in variables}) == 1
            if alike and (shapes or (state >= 0 and min(pitch, tall) >= _TALL)):
                words = shape_words(variables[0]) if shapes else f"{state}"
                style = {"size": min(7, tall * 43.2), "color": page_style.ink_on(color_of(state))}
                sheet.text(x + half, middle, words, ha="center", **style)


def shape_words(cell: Cell) -> str:
    """``3×3×64×[128]``, the partitioned dimension in brackets; ``scalar``."""
    words = [f"[{n}]" if d == cell.state else f"{n}" for d, n in enumerate(cell.shape)]
    return "×".join(words) or "scalar"


_Line = tuple[str, list[tuple[float, str, Cell]]]
"""A line of a list: its title, and inches from the left end, words and cell of each item."""


class Lists:
    """Variables in no layer and batch inputs: a line per group, each cell with its name beside it.

    What would take more lines than fit in ``height`` inches becomes a field of cells without names.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        inputs: Sequence[Cell],
        width: float,
        height: float,
        below_tables: bool,
    ) -> None:
        self.width = width
        variables = [Group(group.title or "top level", group.cells) for group in groups]
        batch = [Group("batch inputs", {cell.path: cell for cell in inputs})] if inputs else []
        titles = [clip_start(group.title, 20) for group in variables + batch]
        longest = max((text_inches(title, FONT) for title in titles), default=0)
        self.margin = min(longest + 0.15, 1.5)
        self.field: list[Cell] = []
        self.title = "other variables" if below_tables else "variables"
        for shapes in (True, False):
            self.lines = self._flow(variables, shapes) + self._flow(batch, shapes)
            if len(self.lines) * _LINE <= height:
                break
        else:
            self.field = [cell for group in variables for cell in group.cells.values()]
            self.lines = self._flow(batch, False)
            if len(self.lines) > 3:
                self.field += inputs
                self.title += " and inputs"
                self.lines = []
            self.margin = max(self.margin, text_inches(self.title, FONT) + 0.15)
        self.height = len(self.lines) * _LINE
        if self.field:
            self.height += self._arrange(height - self.height - 0.15) + 0.15

    def _flow(self, groups: Sequence[Group], shapes: bool) -> list[_Line]:
        """The groups in lines, with the variables' shapes behind their names if ``shapes``."""
        lines: list[_Line] = []
        for group in groups:
            x, title = self.width, clip_start(group.title, 20)
            for name, cell in group.cells.items():
                words = clip_start(name, 40)
                item_width = 0.4 + text_inches(words, FONT)
                if shapes:
                    item_width += text_inches(f"  {shape_words(cell)}", FONT, bold=True)
                    words += f"  {shape_words(cell)}"
                if x + item_width > self.width:
                    lines.append((title, []))
                    x, title = self.margin, ""  # only the first line of a group has its title
                lines[-1][1].append((x, words, cell))
                x += item_width
        return lines

    def _arrange(self, height: float) -> float:
        """Choose pitch, cells per row and variables per cell of the field; return its height."""
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
        heading = [self.title, f"{len(self.field):,}"]
        if self.each > 1:
            heading.append(f"{self.each} per cell")
        for number, words in enumerate(heading):
            sheet.text(left, top + 0.08 + 0.16 * number, words, color=QUIET)
        side = self.pitch - _PIXEL
        for k, start in enumerate(range(0, len(self.field), self.each)):
            down, across = divmod(k, self.across)
            x = whole(left + self.margin) + across * self.pitch
            variables = self.field[start : start + self.each]
            sheet.cell(Box(x, top + down * self.pitch, side, side), variables)


_SIDE, _GAP = 2.75, 0.4  # inches: width of the column at the right, gap beside it
_LISTS = 1.6  # inches, the largest height of the lists below tables
_MOST_REASONS = 3
_SHADES = ("#37424D", "#5D6B79", "#8391A0", "#A9B4BE", "#CBD3DA")
_COMPUTE = "#5D6B79"
_STEP_DOWN, _BAR = 0.2, 0.17  # inches: from one line to the next, height of a bar


def draw(
    viewable: PartitionReport | Partitioning, undecided: Collection[str] | None = None
) -> Figure:
    """The picture of a partition plan; ``style`` has to be in force.

    A cell per variable, a row per layer; its color is the partitioned dimension. Variables outside
    of any layer and the batch inputs stand below. At the right, the step time against that of
    replication, memory per device against the limit, and the key.

    Args:
        viewable: what the judge says of the plan, or the problem where nothing is decided yet.
        undecided: paths that an episode has not settled, shown as empty cells.
    """
    problem, report = view.taken_apart(viewable)
    page = Page(page_style.blank_figure())
    variables, inputs = view.cells(problem, report, undecided)
    open_ = sum(cell.state == UNDECIDED for cell in (*variables, *inputs))
    reasons = _reason_lines(report.reasons if report is not None else ())
    legal = report is None or report.legal
    verdict = view.verdict(problem, report, open_)
    top = page.heading(view.title(problem), verdict, reasons, legal)
    sheet = Sheet(page)
    tables, groups = view.grid(variables)
    width, bottom = WIDTH - 2 * MARGIN - _SIDE - _GAP, HEIGHT - MARGIN
    height = min(bottom - top, _LISTS) if tables else bottom - top
    lists = Lists(groups, inputs, width, height, bool(tables))
    lists_top = top
    if tables:
        end = draw_tables(sheet, tables, MARGIN, top, width, bottom - top - lists.height)
        lists_top = min(end + 0.3, bottom - lists.height)
    lists.draw(sheet, MARGIN, lists_top)
    side = _Side(sheet, top)
    if legal:  # an illegal plan has neither seconds nor bytes
        side.seconds(problem, report)
        side.memory(problem, report)
    side.key(variables, inputs)
    sheet.finish()
    return page.figure


def _reason_lines(reasons: Sequence[str]) -> list[str]:
    """The first reasons in two lines each, and how many more there are."""
    lines = []
    for reason in reasons[:_MOST_REASONS]:
        words = textwrap.wrap(printable(reason), 165, subsequent_indent="   ")
        lines += words[:1] if len(words) < 2 else [words[0], words[1] + " …" * (len(words) > 2)]
    if len(reasons) > _MOST_REASONS:
        lines.append(f"and {len(reasons) - _MOST_REASONS} more")
    return lines


class _Side:
    """The column at the right, drawn from the top down; ``y`` is the next free line."""

    def __init__(self, sheet: Sheet, top: float) -> None:
        self.sheet, self.x, self.y = sheet, WIDTH - MARGIN - _SIDE, top

    def seconds(self, problem: Partitioning, report: PartitionReport | None) -> None:
        """Draw the step times, replicated and planned, in parts."""
        replicate = problem.replicate_seconds
        bars = [("replicated", replicate, 0.0)]
        words = "step time"
        if report is not None and report.step_seconds > 0:
            words += f"{SEPARATOR}{replicate / report.step_seconds:.2f} × as fast as replicated"
            bars.append(("this plan", report.compute_seconds, report.communication_seconds))
        self._heading(words)
        longest = max(compute + communication for _, compute, communication in bars) or 1.0
        scale = (_SIDE - 0.72 - 0.66) / longest
        for name, compute, communication in bars:
            x, y = self.x + 0.72, self.y
            self.sheet.text(self.x, y + _BAR / 2, name, size=8.5)
            self.sheet.bar(Box(x, y, scale * compute, _BAR), _COMPUTE, "compute")
            x += scale * compute
            self.sheet.bar(Box(x, y, scale * communication, _BAR), "", "communication")
            x += scale * communication + 0.06
            self.sheet.text(x, y + _BAR / 2, duration(compute + communication), size=8.5)
            self.y += _STEP_DOWN + 0.05
        if len(bars) > 1:
            self._entry(_COMPUTE, "compute", duration(bars[1][1]))
            self._entry("", "communication", duration(bars[1][2]))
        self.y += 0.3

    def memory(self, problem: Partitioning, report: PartitionReport | None) -> None:
        """Draw peak memory per device, in parts, against the limit."""
        nothing = np.zeros(len(problem.classes), dtype=bool)
        memory = report.memory if report else problem.footprint.memory(nothing)
        limit = problem.memory_limit
        over = memory.peak > limit
        ink, weight = (RED, "bold") if over else (INK, "normal")
        words = f"{size(memory.peak)} of {size(limit)}"
        self._heading("memory per device", words, color=ink, weight=weight)
        scale = _SIDE / (max(memory.peak, limit) * 1.02)
        self.sheet.bar(Box(self.x, self.y, _SIDE, _BAR), page_style.TRACK)
        x = self.x
        for name, shade in zip(MEMORY_PARTS, _SHADES, strict=True):
            width = scale * getattr(memory, name)
            self.sheet.bar(Box(x, self.y, width, _BAR), shade, name)
            x += width
        x = self.x + scale * limit
        ends = [self.y - 0.05, self.y + _BAR + 0.05]
        self.sheet.axes.plot(
            [x, x], ends, color=ink, linewidth=1.3, linestyle=(0, (3, 1.5)), gid="limit", zorder=5,
            solid_capstyle="butt",
        )  # fmt: skip
        side = "right" if limit * scale > _SIDE / 2 else "left"
        self.sheet.text(x, self.y + 0.31, "limit", size=8, color=RED if over else QUIET, ha=side)
        self.y += 0.44
        for name, shade in zip(MEMORY_PARTS, _SHADES, strict=True):
            self._entry(shade, name, size(getattr(memory, name)))
        self.y += 0.3

    def key(self, variables: Sequence[Cell], inputs: Sequence[Cell]) -> None:
        """Draw the states that occur, each with its number of variables."""
        self._heading("partitioned dimension", "variables", color=QUIET)
        variable_count = Counter(cell.state for cell in variables)
        input_count = Counter(cell.state for cell in inputs)
        for state in sorted({*variable_count, *input_count}, key=lambda s: (s < 0, abs(s))):
            self.sheet.boxes[state].append(Box(self.x, self.y, 0.22, 0.15))
            counts = f"{variable_count[state]:,}"
            if input_count[state]:
                counts += f" + {plural(input_count[state], 'input')}"
            self._line(name_of(state), counts, INK)
        if any(cell.fault for cell in (*variables, *inputs)):
            self.sheet.faults.append(Box(self.x, self.y, 0.22, 0.15))
            self._line("breaks a rule", f"{sum(cell.fault for cell in variables):,}", RED)

    def _heading(self, words: str, right: str = "", **style: Any) -> None:
        self.sheet.text(self.x, self.y + 0.08, words, size=9, color=QUIET)
        self.sheet.text(self.x + _SIDE, self.y + 0.08, right, size=9, ha="right", **style)
        self.y += 0.28

    def _entry(self, fill: str, name: str, value: str) -> None:
        """A line of a legend: the color of a bar's part, its name and value."""
        self.sheet.bar(Box(self.x, self.y + 0.02, 0.15, 0.12), fill)
        self._line(name, value, INK)

    def _line(self, name: str, value: str, color: str) -> None:
        y = self.y + 0.08
        self.sheet.text(self.x + 0.3, y, name, size=8.5, color=color)
        self.sheet.text(self.x + _SIDE, y, value, size=8.5, ha="right", color=color)
        self.y += _STEP_DOWN + 0.02
