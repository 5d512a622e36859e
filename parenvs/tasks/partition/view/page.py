"""Pictures of partition plans: maps of the variables by layer, seconds and bytes of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from parenvs.leaderboard.site.html import Child, Markup, badge, facts, markup, scrolling, tag
from parenvs.leaderboard.site.sortable_table import Column, Field, Row, number, sortable_table
from parenvs.tasks.partition.plan import BatchPlan
from parenvs.tasks.partition.problem import PartitionReport
from parenvs.tasks.partition.view.grid import (
    BLOCKED,
    REPLICATED,
    Cell,
    Group,
    NamedCell,
    Table,
    cells,
    grid,
    merged,
)
from parenvs.tasks.partition.view.text import MEMORY_PARTS
from parenvs.tasks.pipeline.view.page import label
from parenvs.view.words import duration, size

_CELL_WIDTH, _CELL_HEIGHT, _MARGIN = 19, 13, 8
"""Size of a cell and right margin of a map, pixels."""
_MAX_ROWS = 60
"""Rows of the table of partitioned variables; more are left to the entry's file."""
_STYLES = {REPLICATED: "none", BLOCKED: "blocked"}
_NAMES = {REPLICATED: "replicated", BLOCKED: "cannot be partitioned"}
_MIXED = "mixed"


def partition_figure(name: str, report: PartitionReport) -> Markup:
    """Make the maps with their key, the figures of a step, and a table of partitioned variables.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    variables, inputs = cells(report.problem, report)
    if isinstance(report.plan, BatchPlan):
        variables = []  # the plan decides no variable
    tables, groups = grid(variables) if variables else ([], [])
    caption = "A cell per variable, a row per layer; colour and digit: the partitioned dimension."
    maps = [_map(name, layers) for layers in tables]
    return markup(
        facts(_figures(report)) if report.legal else None,
        tag(
            "figure",
            _key([*variables, *inputs]),
            tag("div", maps, class_="maps") if maps else None,
            [_chips(group) for group in groups],
            _chips(Group("batch inputs", tuple(NamedCell(cell.path, cell) for cell in inputs)))
            if inputs
            else None,
            tag("figcaption", caption) if maps else None,
        ),
        _listing(name, variables, inputs),
    )


def _figures(report: PartitionReport) -> list[tuple[str, Child]]:
    """Return names and values of the seconds and bytes of a legal plan."""
    memory, limit = report.memory, report.problem.memory_limit
    faster = report.replicate_seconds / report.step_seconds
    over: Child = (
        None if report.fits else [badge("over the limit", "warn"), ", no part of this task"]
    )
    parts = ", ".join(f"{x} {size(getattr(memory, x))}" for x in MEMORY_PARTS)
    return [
        (
            "Step",
            f"{duration(report.step_seconds)}, {faster:.2f} × as fast as replicated "
            f"({duration(report.replicate_seconds)})",
        ),
        (
            "Compute and communication",
            f"{duration(report.compute_seconds)} and "
            f"{duration(report.communication_seconds)} in {report.all_reduces:,} all-reduces",
        ),
        ("Utilisation", f"{100 * report.utilisation:.1f} %"),
        ("Memory per device", [f"{size(memory.peak)} of {size(limit)} ", over, f" ({parts})"]),
        (
            "Partitioned",
            f"{report.partitioned_dimensions:,} of {report.dimensions:,} dimensions, in "
            f"{report.variables:,} variables",
        ),
    ]


def _style(state: int) -> str:
    """Return the class of a cell: ``d0``, ``d1``, ... for the partitioned dimension."""
    return _STYLES.get(state, f"d{min(state, 3)}")


def _words(state: int) -> str:
    """Return the state of a cell in words."""
    return _NAMES.get(state, f"dimension {state}")


def _common_style(cells_: Sequence[Cell]) -> str:
    """Return the class of cells drawn as one, ``_MIXED`` if theirs differ."""
    styles = {_style(cell.state) for cell in cells_}
    return styles.pop() if len(styles) == 1 else _MIXED


def _key(all_cells: Sequence[Cell]) -> Markup:
    """Make the key: each state with its number of variables."""
    count = Counter(cell.state for cell in all_cells)
    states = sorted(count, key=lambda state: (state < 0, abs(state)))
    items = [
        tag("li", _chip(_style(state), state), f"{_words(state)}: {count[state]:,}")
        for state in states
    ]
    faults = sum(cell.fault for cell in all_cells)
    if faults:
        items.append(tag("li", _chip("fault", None), f"breaks a rule: {faults:,}"))
    return tag("ul", items, class_="key")


def _chip(style: str, state: int | None) -> Markup:
    """Make a coloured chip with the partitioned dimension."""
    words = str(state) if state is not None and state >= 0 else "\N{MIDDLE DOT}"
    return tag("span", words, class_=f"chip {style}", aria_hidden="true")


def _map(name: str, layers: Table) -> Markup:
    """Draw the map of a table of layers: a row for each layer, a column for each variable."""
    margin = 6.6 * max(len(row) for row, _ in layers.rows) + 10
    title_length = 6.2 * max(len(column) for column in layers.columns)
    top, right = 0.78 * title_length + 12, margin + len(layers.columns) * _CELL_WIDTH
    count = Counter(cell.state for _, row in layers.rows for group in row for cell in group)
    counts = ", ".join(f"{_words(state)} {count[state]}" for state in sorted(count, reverse=True))
    words = f"Partition map of {name}, {layers.title or 'layers'}: {counts}"
    width = right + 0.62 * title_length + _MARGIN
    height = top + len(layers.rows) * _CELL_HEIGHT + 4
    picture = tag(
        "svg", _columns(layers, margin, top), _cells(layers, margin, top), role="img",
        class_="map", width=f"{width:.0f}", height=f"{height:.0f}",
        viewBox=f"0 0 {width:.0f} {height:.0f}", aria_label=words,
    )  # fmt: skip
    title = tag("p", layers.title, class_="group") if layers.title else None
    return tag("div", title, scrolling(words, picture))


def _columns(layers: Table, margin: float, top: float) -> list[Child]:
    """Draw the names of the columns, turned; ``margin`` and ``top`` are pixels."""
    parts: list[Child] = []
    for place, column in enumerate(layers.columns):
        x, y = margin + place * _CELL_WIDTH + 7, top - 5
        turned = f"translate({x:.0f} {y:.0f})rotate(-50)"
        parts.append(tag("text", column, transform=turned, class_="quiet"))
    return parts


def _cells(layers: Table, margin: float, top: float) -> list[Child]:
    """Draw the cells: those of one state are one path, the digits of a row one text."""
    paths: dict[str, str] = {}
    parts: list[Child] = []
    digits: list[Child] = []
    for line, (name, row) in enumerate(layers.rows):
        y = top + line * _CELL_HEIGHT
        parts.append(label(margin - 6, y + 10, name, "quiet", "end"))
        digit_xs, text, previous = [], "", ("", -2)
        for place, group in enumerate(row):
            if not group:
                continue
            x = f"{margin + place * _CELL_WIDTH:.0f}"
            style = _common_style(group)
            if previous == (style, place - 1):  # neighbours of one state are dashes of one line
                paths[style] += f"h{_CELL_WIDTH}"
            else:
                paths[style] = paths.get(style, "") + f"M{x} {y + 6:.0f}h{_CELL_WIDTH}"
            previous = (style, place)
            if any(cell.fault for cell in group):
                paths["fault"] = paths.get("fault", "") + f"M{x} {y + 6:.0f}h{_CELL_WIDTH}"
            if style[0] == "d":
                digit_xs.append(f"{margin + place * _CELL_WIDTH + 6:.0f}")
                text += style[1]
        if text:
            digits.append(tag("text", text, x=" ".join(digit_xs), y=f"{y + 10:.0f}", class_="on"))
    order = sorted(paths, key=lambda style: (style == "fault", style))
    return [*parts, *(tag("path", d=paths[style], class_=style) for style in order), *digits]


def _chips(group: Group) -> Markup:
    """Make a list of variables in no layer, or of batch inputs: a chip and a name for each."""
    items = (
        tag(
            "li",
            _chip(f"{_style(cell.state)}{' fault' if cell.fault else ''}", cell.state),
            name,
            " ",
            tag("small", _shape(cell)),
        )
        for name, cell in group.cells
    )
    title = tag("p", group.title or "other variables", class_="group")
    return tag("div", title, tag("ul", items, class_="chips"))


def _shape(cell: Cell) -> str:
    """Return the shape of a variable in words."""
    return "×".join(map(str, cell.shape)) or "scalar"


_COLUMNS = (
    Column("dimension", "number"),
    Column("variable"),
    Column("shape"),
    Column("count", "number", "descending"),
    Column("bytes", "number", "descending"),
    Column("on each device", "number", "descending"),
)


def _listing(name: str, variables: Sequence[Cell], inputs: Sequence[Cell]) -> Markup:
    """Make the table of what is partitioned; equal layers are one row."""
    rows = []
    for all_cells, what in ((variables, ""), (inputs, " (batch input)")):
        split = [cell for cell in all_cells if cell.state >= 0]
        keys = [(cell.state, cell.shape, cell.fault) for cell in split]
        for path, places in merged([cell.path for cell in split], keys):
            rows.append(_row(path + what, [split[place] for place in places]))
    if not rows:
        return tag("p", "Nothing is partitioned: every device does everything.")
    more = len(rows) - _MAX_ROWS
    words = f"What is partitioned in {name}; equal layers are one row."
    if more > 0:
        words += f" The first {_MAX_ROWS} of {len(rows)} rows; the entry's file has all."
    return sortable_table(words, _COLUMNS, rows[:_MAX_ROWS], head=1)


def _row(name: str, equal: Sequence[Cell]) -> Row:
    """Make the row of equal variables."""
    total_bytes, device_bytes = (
        sum(getattr(cell, key) for cell in equal) for key in ("bytes", "device_bytes")
    )
    first = equal[0]
    words = f"{first.state}{', breaks a rule' if first.fault else ''}"
    return Row(
        (
            Field([_chip(_style(first.state), first.state), " ", words], float(first.state)),
            Field(name),
            Field(_shape(first)),
            number(len(equal), f"{len(equal):,}"),
            number(total_bytes, size(total_bytes)),
            number(device_bytes, size(device_bytes)),
        )
    )
