"""The page of a partition plan: maps of the variables by layer, seconds and bytes of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from parenvs.tasks.partition.problem import PartitionReport
from parenvs.tasks.partition.view import (
    BLOCKED,
    MEMORY_PARTS,
    REPLICATED,
    STATE_NAMES,
    LayerTable,
    cells,
    grid,
)
from parenvs.tasks.partition.view import Cell as VariableCell
from parenvs.view.layers import merged
from parenvs.view.web import Cell, Chip, Figure, Picture, PlanPage, Row, Shape, Table, label, shape
from parenvs.view.words import duration, size

_CELL_WIDTH, _CELL_HEIGHT, _MARGIN = 19, 13, 8
"""Size of a cell and right margin of a map, pixels."""
_MAX_ROWS = 60
"""Rows of the table of partitioned variables; more are left to the entry's file."""
_STYLES = {REPLICATED: "none", BLOCKED: "blocked"}


def page(name: str, report: PartitionReport) -> PlanPage:
    """Return the maps with their key, the figures of a step, and what is partitioned.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    variables, inputs = cells(report.problem, report)
    if report.plan.scope == "inputs":
        variables = []  # the plan decides no variable
    tables, groups = grid(variables)
    lists = [(x.title or "other variables", [_listed(*item) for item in x.cells]) for x in groups]
    if inputs:
        lists.append(("batch inputs", [_listed(cell.path, cell) for cell in inputs]))
    figure = Figure(
        [_map(name, table) for table in tables],
        "A cell per variable, a row per layer; colour and digit: the partitioned dimension."
        if tables
        else "",
        _key([*variables, *inputs]),
        lists,
        "map",
    )
    rows = [*_rows(variables), *_rows(inputs, " (batch input)")]
    caption = f"What is partitioned in {name}; equal layers are one row."
    if len(rows) > _MAX_ROWS:
        caption += f" The first {_MAX_ROWS} of {len(rows)} rows; the entry's file has all."
    return PlanPage(
        "" if rows else "Nothing is partitioned: every device does everything.",
        _facts(report) if report.legal else (),
        [figure],
        [Table(caption, rows[:_MAX_ROWS], head=1)] if rows else (),
    )


def _facts(report: PartitionReport) -> list[tuple[str, str, str]]:
    """Return the seconds and bytes of a legal plan."""
    memory, limit = report.memory, report.problem.memory_limit
    faster = report.replicate_seconds / report.step_seconds
    parts = ", ".join(f"{x} {size(getattr(memory, x))}" for x in MEMORY_PARTS)
    return [
        (
            "Step",
            f"{duration(report.step_seconds)}, {faster:.2f} × as fast as replicated "
            f"({duration(report.replicate_seconds)})",
            "",
        ),
        (
            "Compute and communication",
            f"{duration(report.compute_seconds)} and "
            f"{duration(report.communication_seconds)} in {report.all_reduces:,} all-reduces",
            "",
        ),
        ("Utilisation", f"{100 * report.utilisation:.1f} %", ""),
        (
            "Memory per device",
            f"{size(memory.peak)} of {size(limit)} ({parts})",
            "" if report.fits else "over the limit, no part of this task",
        ),
        (
            "Partitioned",
            f"{report.partitioned_dimensions:,} of {report.dimensions:,} dimensions, in "
            f"{report.variables:,} variables",
            "",
        ),
    ]


def _style(state: int) -> str:
    """Return the class of a cell: ``d0``, ``d1``, ... for the partitioned dimension."""
    return _STYLES.get(state, f"d{min(state, 3)}")


def _words(state: int) -> str:
    """Return the state of a cell in words."""
    return STATE_NAMES.get(state, f"dimension {state}")


def _chip(state: int, words: str, note: str = "", fault: bool = False) -> Chip:
    """Return a chip with the partitioned dimension."""
    letter = f"{state}" if state >= 0 else "\N{MIDDLE DOT}"
    return Chip(_style(state) + " fault" * fault, letter, words, note)


def _listed(name: str, cell: VariableCell) -> Chip:
    """Return the chip of a variable in no layer, or of a batch input."""
    return _chip(cell.state, name, _shape(cell), cell.fault)


def _shape(cell: VariableCell) -> str:
    """Return the shape of a variable in words."""
    return "×".join(map(str, cell.shape)) or "scalar"


def _key(several: Sequence[VariableCell]) -> list[Chip]:
    """Return the key: each state with its number of variables."""
    counts = Counter(cell.state for cell in several)
    states = sorted(counts, key=lambda state: (state < 0, abs(state)))
    key = [_chip(state, f"{_words(state)}: {counts[state]:,}") for state in states]
    faults = sum(cell.fault for cell in several)
    broken = Chip("fault", "\N{MIDDLE DOT}", f"breaks a rule: {faults:,}")
    return [*key, broken] if faults else key


def _map(name: str, table: LayerTable) -> Picture:
    """Draw a table of layers: a row for each layer, a column for each variable."""
    left = round(6.6 * max(len(row.label) for row in table.rows)) + 10
    slanted = 6.2 * max(len(column) for column in table.columns)
    top, right = round(0.78 * slanted) + 12, left + len(table.columns) * _CELL_WIDTH
    counts = Counter(cell.state for row in table.rows for group in row.cells for cell in group)
    states = ", ".join(f"{_words(state)} {counts[state]}" for state in sorted(counts, reverse=True))
    names = []
    for column_index, column in enumerate(table.columns):
        turned = f"translate({left + column_index * _CELL_WIDTH + 7} {top - 5})rotate(-50)"
        names.append(shape("text", "quiet", column, transform=turned))
    return Picture(
        f"Partition map of {name}, {table.title or 'layers'}: {states}",
        [*names, *_cells(table, left, top)],
        top + len(table.rows) * _CELL_HEIGHT + 4,
        round(right + 0.62 * slanted) + _MARGIN,
        table.title,
    )


def _cells(table: LayerTable, left: int, top: int) -> list[Shape]:
    """Draw the layers: cells of one state are dashes of one path, the digits of a row one text."""
    shapes, digits, paths = [], [], dict[str, str]()
    for line, row in enumerate(table.rows):
        y = top + line * _CELL_HEIGHT
        shapes.append(label(left - 6, y + 10, row.label, "quiet", "end"))
        ends, numbers = dict[str, int](), dict[int, str]()
        for cell_index, group in enumerate(row.cells):
            if not group:
                continue
            x, styles = left + cell_index * _CELL_WIDTH, {_style(cell.state) for cell in group}
            style = styles.pop() if len(styles) == 1 else "mixed"
            for drawn in (style, "fault") if any(cell.fault for cell in group) else (style,):
                start = "" if ends.get(drawn) == x else f"M{x} {y + 6}"
                paths[drawn] = f"{paths.get(drawn, '')}{start}h{_CELL_WIDTH}"
                ends[drawn] = x + _CELL_WIDTH
            if style[0] == "d":
                numbers[x + 6] = style[1]
        if numbers:
            xs = " ".join(map(str, numbers))
            digits.append(shape("text", "on", "".join(numbers.values()), x=xs, y=y + 10))
    order = sorted(paths, key=lambda style: (style == "fault", style))
    return [*shapes, *(shape("path", style, d=paths[style]) for style in order), *digits]


def _rows(several: Sequence[VariableCell], note: str = "") -> list[Row]:
    """Return the rows of what is partitioned; equal layers are one row."""
    split = [cell for cell in several if cell.state >= 0]
    keys = [(cell.state, cell.shape, cell.fault) for cell in split]
    rows: list[Row] = []
    for path, indices in merged([cell.path for cell in split], keys):
        equal = [split[index] for index in indices]
        state, fault = equal[0].state, equal[0].fault
        total, on_each = (sum(getattr(x, key) for x in equal) for key in ("bytes", "device_bytes"))
        rows.append(
            {
                "dimension": Cell(
                    f"{state}{', breaks a rule' * fault}", state, "", _chip(state, "")
                ),
                "variable": path + note,
                "shape": _shape(equal[0]),
                "count": len(equal),
                "bytes": Cell(size(total), total),
                "on each device": Cell(size(on_each), on_each),
            }
        )
    return rows
