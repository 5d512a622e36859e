"""Pictures of partition plans: variables by layer, colored by their partitioned dimension."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import parenvs.tasks.partition.view as view
import parenvs.view.page as page_style
from parenvs.tasks.partition.problem import MEMORY_PARTS
from parenvs.tasks.partition.view import BLOCKED, UNDECIDED, Block, Cell, LayerTable
from parenvs.view.page import HEIGHT, INK, MARGIN, QUIET, RED, WIDTH, Page, text_inches
from parenvs.view.words import SEPARATOR, clip_start, duration, plural, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.tasks.partition.problem import Partitioning, PartitionReport

FONT = 7.5
"""Points of the words in and beside cells."""
_FILLS = {view.REPLICATED: "#D3D3D3", BLOCKED: "#F5F5F5", UNDECIDED: "#FFFFFF"}
_EDGES = {BLOCKED: "#CACACA", UNDECIDED: "#8E8E8E"}
_TALL = 0.13  # inches of a cell that can hold words
_LETTERS = 30  # of the name of a column
_TILT = 60  # degrees
_WIDEST, _NARROW = 1.8, 0.5  # inches, of cells with and without their shape
_SHARE = 0.35  # of the width, at most, for the names of layers
_LABEL = 0.125  # inches from the name of a layer to the next
_SIDE, _GAP = 2.75, 0.4  # inches: width of the column at the right, gap beside it
_LISTS = 1.6  # inches, the largest height of the lists below tables
_LINE, _CELL = 0.22, 0.14  # inches from one line of a list to the next, side of its cells
_INDENT = 1.0  # inches from the title of a list to its first cell
_FEW = 12  # batch inputs that keep their names where variables have none
_SHADES = ("#37424D", "#5D6B79", "#8391A0", "#A9B4BE", "#CBD3DA")
_COMPUTE = _SHADES[1]


def color_of(state: int) -> str:
    """Fill of a cell: one hue per dimension, grays for the other states."""
    return _FILLS[state] if state < 0 else page_style.stage_color(state)


def name_of(state: int) -> str:
    """``dimension 1``, ``replicated``, ..."""
    return view.STATE_NAMES[state] if state < 0 else f"dimension {state}"


def look_of(state: int) -> dict[str, Any]:
    """Colors and lines of a cell; white lines are the gaps between cells."""
    hatch = "////" if state == BLOCKED else None
    return {"facecolor": color_of(state), "edgecolor": _EDGES.get(state, "white"), "hatch": hatch}


class Box(NamedTuple):
    """A rectangle in inches, y from the top."""

    x: float
    y: float
    width: float
    height: float

    @property
    def corners(self) -> list[tuple[float, float]]:
        """Its corners, one after the other."""
        right, bottom = self.x + self.width, self.y + self.height
        return [(self.x, self.y), (right, self.y), (right, bottom), (self.x, bottom)]


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

    def cell(self, box: Box, cell: Cell) -> None:
        """Add a cell."""
        self.boxes[cell.state].append(box)
        if cell.fault:
            self.faults.append(box)

    def finish(self) -> None:
        """Draw the cells."""
        from matplotlib.collections import PolyCollection

        fault = {"facecolor": "none", "edgecolor": RED, "linewidth": 1.5, "gid": "fault"}
        looks = [
            (boxes, {"linewidth": 0.7, "gid": name_of(state), **look_of(state)})
            for state, boxes in self.boxes.items()
        ]
        for boxes, look in [*looks, (self.faults, fault)]:
            if boxes:
                self.axes.add_collection(PolyCollection([box.corners for box in boxes], **look))


def draw_tables(
    sheet: Sheet, tables: Sequence[LayerTable], top: float, width: float, height: float
) -> float:
    """Draw tables side by side, layers by variables; return the lower end, inches from the top."""
    letters = max(int(width * _SHARE / len(tables) / text_inches("x", FONT)), 4)
    names = [clip_start(name, letters) for table in tables for name in table.rows]
    margin = max(text_inches(name, FONT, bold=True) for name in names) + 0.1
    names = [clip_start(name, _LETTERS) for table in tables for name in table.columns]
    longest = max(text_inches(name, FONT) for name in names)
    overhang = 0.5 * longest  # by which the slanted names stick out at the right
    gap = overhang + 0.12
    room = width - (margin + gap) * len(tables)
    header = 0.87 * longest + 0.3
    rows = max(len(table.rows) for table in tables)
    tall = min((height - header - 0.2) / rows, 0.28)
    variables = [cell for table in tables for row in table.rows.values() for cell in row.values()]
    shape = max(text_inches(shape_words(cell), 7, bold=True) for cell in variables) + 0.12
    pitch = room / sum(len(table.columns) for table in tables)
    shapes = pitch >= shape and tall >= _TALL
    pitch = min(pitch, max(_WIDEST, shape) if shapes else _NARROW)
    left = MARGIN
    for table in tables:
        table_width = margin + pitch * len(table.columns)
        title = clip_start(table.title, max(int(table_width / text_inches("x", 9, bold=True)), 6))
        sheet.text(left, top + 0.08, title, size=9, weight="bold")
        first = Box(left + margin, top + header, pitch, tall)
        _draw_table(sheet, table, first, letters, shapes)
        left += table_width + gap
    return top + header + rows * tall


def _draw_table(sheet: Sheet, table: LayerTable, first: Box, letters: int, shapes: bool) -> None:
    left, top, pitch, tall = first
    for k, name in enumerate(table.columns if pitch >= 0.115 else ()):
        slanted = {"rotation": _TILT, "rotation_mode": "anchor", "color": QUIET}
        sheet.text(left + (k + 0.5) * pitch, top - 0.05, clip_start(name, _LETTERS), **slanted)
    for number, (label, cells) in enumerate(table.rows.items()):
        y = top + number * tall
        if number % int(np.ceil(_LABEL / tall)) == 0:
            words = clip_start(label, letters)
            sheet.text(left - 0.06, y + tall / 2, words, ha="right", color=QUIET)
        for name, cell in cells.items():
            x = left + table.columns.index(name) * pitch
            sheet.cell(Box(x, y, pitch, tall), cell)
            if shapes or (cell.state >= 0 and min(pitch, tall) >= _TALL):
                words = shape_words(cell) if shapes else f"{cell.state}"
                style = {"size": min(7, tall * 43.2), "ha": "center"}
                ink = page_style.ink_on(color_of(cell.state))
                sheet.text(x + pitch / 2, y + tall / 2, words, color=ink, **style)


def shape_words(cell: Cell) -> str:
    """``3×3×64×[128]``, the partitioned dimension in brackets; ``scalar``."""
    words = [f"[{n}]" if d == cell.state else f"{n}" for d, n in enumerate(cell.shape)]
    return "×".join(words) or "scalar"


class Line(NamedTuple):
    """A line of a list.

    Attributes:
        height: inches to the next line.
        items: inches from the left end, words and cell of each item.
    """

    title: str
    height: float
    items: list[tuple[float, str, Cell]]


def arranged(groups: Block, inputs: dict[str, Cell], width: float, height: float) -> list[Line]:
    """Variables in no layer and batch inputs in lines, in as many words as fit in the height.

    These are their names and shapes, their names, or none: cells that are as small as necessary.
    """
    named = {title or "top level": cells for title, cells in groups.items()}
    others = {cell.path: cell for cells in groups.values() for cell in cells.values()}
    few = [(named, True, _LINE), (named, False, _LINE)]
    many = [({"other variables": others}, False, 0.2 * 0.8**k) for k in range(16)]
    for lists, shapes, pitch in few + many:
        lists = {**lists, "batch inputs": inputs}
        lines = [
            line
            for title, cells in lists.items()
            for line in _flow(title, cells, width, shapes, _LINE if len(cells) <= _FEW else pitch)
        ]
        if sum(line.height for line in lines) <= height:
            break
    return lines


def _flow(
    title: str, cells: dict[str, Cell], width: float, shapes: bool, pitch: float
) -> list[Line]:
    """Cells in lines with their names, or without where lines are closer than ``_LINE``."""
    lines: list[Line] = []
    x = width
    for name, cell in cells.items():
        words = f"{clip_start(name, 40)}  {shape_words(cell)}" if shapes else clip_start(name, 40)
        step = 0.35 + text_inches(words, FONT, bold=True)
        if pitch < _LINE:
            words, step = "", pitch
        if x + step > width:
            lines.append(Line("" if lines else clip_start(title, 20), pitch, []))
            x = _INDENT
        lines[-1].items.append((x, words, cell))
        x += step
    return lines


def draw(
    viewable: PartitionReport | Partitioning, undecided: Collection[str] | None = None
) -> Figure:
    """The picture of a partition plan; ``style`` has to be in force.

    A cell per variable, a row per layer; its color is the partitioned dimension. Variables outside
    of any layer and the batch inputs stand below. At the right, the key, and the step time against
    that of replication and memory per device against the limit.

    Args:
        viewable: what the judge says of the plan, or the problem where nothing is decided yet.
        undecided: paths that an episode has not settled, shown as empty cells.
    """
    problem, report = view.problem_and_report(viewable)
    page = Page()
    variables, inputs = view.cells(problem, report, undecided)
    open_ = sum(cell.state == UNDECIDED for cell in (*variables, *inputs))
    legal = report is None or report.legal
    verdict = view.verdict(problem, report, open_)
    top = page.heading(view.title(problem), verdict, report.reasons if report else ())
    sheet = Sheet(page)
    tables, groups = view.grid(variables)
    width, height = WIDTH - 2 * MARGIN - _SIDE - _GAP, HEIGHT - MARGIN - top
    below = min(height, _LISTS) if tables else height
    lines = arranged(groups, {cell.path: cell for cell in inputs}, width, below)
    y = top
    if tables:
        below = sum(line.height for line in lines)
        y = draw_tables(sheet, tables, top, width, height - below) + 0.3
    for line in lines:
        sheet.text(MARGIN, y + _CELL / 2, line.title, color=QUIET)
        side = min(line.height, _CELL)
        for x, words, cell in line.items:
            sheet.cell(Box(MARGIN + x, y, side, side), cell)
            sheet.text(MARGIN + x + 0.2, y + side / 2, words)
        y += line.height
    sheet.finish()
    _draw_key(page, top, variables, inputs)
    if legal:  # an illegal plan has neither seconds nor bytes
        _draw_seconds(page, top + 2.2, problem, report)
        _draw_memory(page, top + 4.1, problem, report)
    return page.figure


def _side_axes(page: Page, top: float, height: float, title: str, color: str = QUIET) -> Axes:
    axes = page.axes(WIDTH - MARGIN - _SIDE, top + 0.2, _SIDE, height)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, loc="left", size=9, color=color)
    return axes


def _legend(axes: Axes, top: float, **handles: Any) -> None:
    axes.legend(
        loc="upper left", bbox_to_anchor=(0, top), frameon=False, borderaxespad=0, borderpad=0,
        handlelength=1.8, handleheight=1.2, labelspacing=0.55, fontsize=8.5,
        labelcolor=INK, **handles,
    )  # fmt: skip


def _draw_key(page: Page, top: float, variables: Sequence[Cell], inputs: Sequence[Cell]) -> None:
    from matplotlib.patches import Patch

    axes = _side_axes(page, top, 1.0, "partitioned dimension, variables")
    variable_count = Counter(cell.state for cell in variables)
    input_count = Counter(cell.state for cell in inputs)
    handles = []
    for state in sorted({*variable_count, *input_count}, key=lambda s: (s < 0, abs(s))):
        words = f"{name_of(state)}: {variable_count[state]:,}"
        if input_count[state]:
            words += f" + {plural(input_count[state], 'input')}"
        handles.append(Patch(**look_of(state), label=words))
    faults = sum(cell.fault for cell in (*variables, *inputs))
    if faults:
        handles.append(Patch(facecolor="none", edgecolor=RED, label=f"breaks a rule: {faults:,}"))
    _legend(axes, 1.0, handles=handles)


def _draw_seconds(
    page: Page, top: float, problem: Partitioning, report: PartitionReport | None
) -> None:
    bars = [("replicated", problem.replicate_seconds, 0.0)]
    title = "step time"
    if report is not None and report.step_seconds > 0:
        faster = problem.replicate_seconds / report.step_seconds
        title += f"{SEPARATOR}{faster:.2f} × as fast as replicated"
        bars.append(("this plan", report.compute_seconds, report.communication_seconds))
    names, compute, sent = zip(*bars, strict=True)
    axes = _side_axes(page, top, 0.5, title)
    parts = [f"compute: {duration(compute[-1])}", f"communication: {duration(sent[-1])}"]
    axes.barh(names, compute, color=_COMPUTE, label=parts[0])
    hatch: dict[str, Any] = {"color": "white", "edgecolor": _COMPUTE, "hatch": "//////"}
    ends = axes.barh(names, sent, left=compute, label=parts[1], **hatch)
    words = [f"{name}: {duration(a + b)}" for name, a, b in bars]
    axes.bar_label(ends, words, padding=4, size=8.5, color=INK)
    axes.set(xlim=(0, 2.2 * max(map(sum, zip(compute, sent, strict=True)))), ylim=(1.6, -0.6))
    _legend(axes, -0.1)


def _draw_memory(
    page: Page, top: float, problem: Partitioning, report: PartitionReport | None
) -> None:
    nothing = np.zeros(len(problem.classes), dtype=bool)
    memory = report.memory if report else problem.footprint.memory(nothing)
    limit = problem.memory_limit
    ink = RED if memory.peak > limit else QUIET
    title = f"memory per device: {size(memory.peak)} of {size(limit)}"
    axes = _side_axes(page, top, 0.2, title, ink)
    axes.set(facecolor=page_style.TRACK, xlim=(0, 1.02 * max(memory.peak, limit)))
    begin = 0.0
    for name, shade in zip(MEMORY_PARTS, _SHADES, strict=True):
        held = getattr(memory, name)
        axes.barh(0, held, left=begin, color=shade, label=f"{name}: {size(held)}")
        begin += held
    axes.axvline(limit, color=ink, linestyle="--", label="limit", gid="limit")
    _legend(axes, -0.4)
