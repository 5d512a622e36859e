"""Pictures of partition plans: variables by layer, colored by their partitioned dimension."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import parenvs.tasks.partition.view as view
import parenvs.view.page as page_style
from parenvs.tasks.partition.problem import MEMORY_PARTS
from parenvs.tasks.partition.view import BLOCKED, UNDECIDED, Cell, LayerTable
from parenvs.view.page import HEIGHT, INK, MARGIN, QUIET, RED, WIDTH, Page
from parenvs.view.words import SEPARATOR, clip_start, duration, plural, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.tasks.partition.problem import Partitioning, PartitionReport

FONT = 7.5
"""Points of the words in and beside cells."""
_FILLS = {view.REPLICATED: "#D3D3D3", BLOCKED: "#F5F5F5", UNDECIDED: "#FFFFFF"}
_EDGES = {BLOCKED: "#CACACA", UNDECIDED: "#8E8E8E"}
_LETTERS = 30  # of the name of a column or a row
_TILT = 60  # degrees
_NARROW, _TALLEST, _LABEL = 0.13, 0.28, 0.125  # inches of a column with a name, a row, and its name
_NAMES, _HEAD = 1.7, 1.5  # inches for the names of rows and of columns
_SIDE, _GAP = 2.75, 0.4  # inches: width of the column at the right, gap beside it
_ACROSS = 60  # cells in a row of variables outside of any layer
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


def _draw_table(axes: Axes, table: LayerTable, named: bool, height: float) -> None:
    """Draw layers by variables, a cell each, in so many inches; ``named``: with their names."""
    from matplotlib.collections import PolyCollection

    corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])
    boxes: dict[int, list[np.ndarray]] = defaultdict(list)  # by state
    faults: list[np.ndarray] = []
    for y, cells in enumerate(table.rows.values()):
        for name, cell in cells.items():
            box = corners + np.array([table.columns.index(name), y])
            boxes[cell.state].append(box)
            if cell.fault:
                faults.append(box)
    for state, places in boxes.items():
        look = {"linewidth": 0.7, "gid": name_of(state), **look_of(state)}
        axes.add_collection(PolyCollection(places, **look))
    if faults:
        fault = {"facecolor": "none", "edgecolor": RED, "linewidth": 1.5, "gid": "fault"}
        axes.add_collection(PolyCollection(faults, **fault))
    count, rows = len(table.columns), list(table.rows)
    axes.set(xlim=(0, count), ylim=(len(rows), 0), xticks=[], yticks=[])
    if named:
        names = [clip_start(name, _LETTERS) for name in table.columns]
        axes.set_xticks(np.arange(count) + 0.5, names, rotation=_TILT, ha="left", size=FONT)
        axes.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False, length=0)
    step = max(int(np.ceil(_LABEL * len(rows) / height)), 1)
    shown = range(0, len(rows), step)
    labels = [clip_start(rows[k], _LETTERS) for k in shown]
    axes.set_yticks([k + 0.5 for k in shown], labels, size=FONT)


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
    verdict = view.verdict(problem, report, open_)
    top = side = page.heading(view.title(problem), verdict, report.reasons if report else ())
    tables, loose = view.grid(variables)
    others = [cell for cells in loose.values() for cell in cells.values()] + inputs
    numbers = [str(k) for k in range(min(len(others), _ACROSS))]
    rows = {
        "others" if k == 0 else f"others {k}": dict(zip(numbers, others[k:], strict=False))
        for k in range(0, len(others), _ACROSS)
    }
    tables += [LayerTable("", numbers, rows)] if rows else []
    width = WIDTH - 2 * MARGIN - _SIDE - _GAP - _NAMES
    # As high as their rows, below the names of their columns.
    named = [x for x in tables if len(x.columns) * _NARROW <= width and x.rows is not rows]
    heads = [_HEAD if x in named else 0.2 for x in tables]
    tall = (HEIGHT - MARGIN - top - sum(heads)) / sum(len(x.rows) for x in tables)
    for table, head in zip(tables, heads, strict=True):
        height, top = min(tall, _TALLEST) * len(table.rows), top + head
        axes = page.axes(MARGIN + _NAMES, top, width, height)
        _draw_table(axes, table, table in named, height)
        page_style.note(
            axes, clip_start(table.title, 24), (0, 1), (-6, 6), ha="right", weight="bold"
        )
        top += height
    _draw_key(page, side, variables, inputs)
    if report is None or report.legal:  # an illegal plan has neither seconds nor bytes
        _draw_seconds(page, side + 2.2, problem, report)
        _draw_memory(page, side + 4.1, problem, report)
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
