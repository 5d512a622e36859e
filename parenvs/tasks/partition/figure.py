"""Pictures of partition plans: variables by layer, colored by their partitioned dimension."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import parenvs.tasks.partition.view as view
from parenvs.tasks.partition.view import BLOCKED, UNDECIDED, Cell, LayerTable, Viewable
from parenvs.view.page import HEIGHT, INK, MARGIN, QUIET, RED, WIDTH, Page, note, stage_color
from parenvs.view.words import clip_start, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT = 7.5
"""Points of the words in and beside cells."""
_FILLS = {view.REPLICATED: "#D3D3D3", BLOCKED: "#F5F5F5", UNDECIDED: "#FFFFFF"}
_EDGES = {BLOCKED: "#CACACA", UNDECIDED: "#8E8E8E"}
# Of the name of a column or a row, and its degrees.
_LETTERS, _TILT = 30, 60
# Inches of a column with a name, a row, and its name.
_NARROW, _TALLEST, _LABEL = 0.13, 0.28, 0.125
_NAMES, _HEAD = 1.7, 1.5  # inches for the names of rows and of columns
# Inches: width of the column at the right, gap beside it.
_SIDE, _GAP = 2.75, 0.4
# Cells in a row of variables outside of any layer.
_ACROSS = 60


def name_of(state: int) -> str:
    """``dimension 1``, ``replicated``, ..."""
    return view.STATE_NAMES[state] if state < 0 else f"dimension {state}"


def look_of(state: int) -> dict[str, Any]:
    """Colors and lines of a cell; white lines are the gaps between cells."""
    hatch = "////" if state == BLOCKED else None
    fill = _FILLS[state] if state < 0 else stage_color(state)
    return {"facecolor": fill, "edgecolor": _EDGES.get(state, "white"), "hatch": hatch}


def _draw_table(axes: Axes, table: LayerTable, named: bool, height: float) -> None:
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
        look: Any = {"linewidth": 0.7, "gid": name_of(state), **look_of(state)}
        axes.add_collection(PolyCollection(places, **look))
    if faults:
        fault: Any = {"facecolor": "none", "edgecolor": RED, "linewidth": 1.5, "gid": "fault"}
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


def draw(viewable: Viewable, undecided: Collection[str] | None = None) -> Figure:
    """The picture of a partition plan; ``style`` has to be in force.

    A cell per variable, a row per layer; its color is the partitioned dimension. Variables outside
    of any layer and the batch inputs stand below, the key at the right.

    Args:
        viewable: what the judge says of the plan, or the problem where nothing is decided yet.
        undecided: paths that an episode has not settled, shown as empty cells.
    """
    problem, report = view.problem_and_report(viewable)
    page = Page()
    variables, inputs = view.cells(problem, report, undecided)
    verdict = view.verdict(problem, report, [*variables, *inputs])
    top = side = page.heading(view.title(problem), verdict, report.reasons if report else ())
    tables, loose = view.grid(variables)
    others = [*loose, *inputs]
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
        note(axes, clip_start(table.title, 24), (0, 1), (-6, 6), ha="right", weight="bold")
        top += height
    _draw_key(page, side, variables, inputs)
    return page.figure


def _draw_key(page: Page, top: float, variables: Sequence[Cell], inputs: Sequence[Cell]) -> None:
    from matplotlib.patches import Patch

    axes = page.axes(WIDTH - MARGIN - _SIDE, top + 0.2, _SIDE, 1.0)
    axes.set(xticks=[], yticks=[])
    axes.set_title("partitioned dimension, variables", loc="left", size=9, color=QUIET)
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
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 1), labelcolor=INK)
