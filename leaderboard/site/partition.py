"""Pictures of partition plans: maps of the variables by layer, and the figures of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from parenvs.leaderboard.site.html import Child, Markup, badge, facts, markup, scrolling, tag
from parenvs.leaderboard.site.pipeline import label
from parenvs.leaderboard.site.tables import Column, Field, Row, number, table
from parenvs.partitioning.problem import PartitionReport
from parenvs.plan import BatchPlan
from parenvs.viewer.partition_grid import (
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
from parenvs.viewer.partition_text import MEMORY_PARTS
from parenvs.viewer.words import duration, size

_WIDE, _TALL, _MARGIN = 19, 13, 8  # of a cell; of a map
_MOST_LINES = 60
_STYLES = {REPLICATED: "none", BLOCKED: "blocked"}
_NAMES = {REPLICATED: "replicated", BLOCKED: "cannot be partitioned"}
_MIXED = "mixed"


def partition_figure(name: str, report: PartitionReport) -> Markup:
    """The maps with their key, the figures of a step, and what is partitioned as a table."""
    variables, inputs = cells(report.problem, report)
    if isinstance(report.plan, BatchPlan):
        variables = []  # it decides none of them
    tables, groups = grid(variables) if variables else ([], [])
    caption = "A cell per variable, a row per layer; colour and digit: the partitioned dimension."
    maps = [_map(name, held) for held in tables]
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
    """Seconds and bytes of a legal plan."""
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
    return _STYLES.get(state, f"d{min(state, 3)}")


def _words(state: int) -> str:
    return _NAMES.get(state, f"dimension {state}")


def _state(held: Sequence[Cell]) -> str:
    styles = {_style(cell.state) for cell in held}
    return styles.pop() if len(styles) == 1 else _MIXED


def _key(held: Sequence[Cell]) -> Markup:
    count = Counter(cell.state for cell in held)
    states = sorted(count, key=lambda state: (state < 0, abs(state)))
    items = [
        tag("li", _chip(_style(state), state), f"{_words(state)}: {count[state]:,}")
        for state in states
    ]
    faults = sum(cell.fault for cell in held)
    if faults:
        items.append(tag("li", _chip("fault", None), f"breaks a rule: {faults:,}"))
    return tag("ul", items, class_="key")


def _chip(style: str, state: int | None) -> Markup:
    words = str(state) if state is not None and state >= 0 else "\N{MIDDLE DOT}"
    return tag("span", words, class_=f"chip {style}", aria_hidden="true")


def _map(name: str, held: Table) -> Markup:
    """One table of layers."""
    margin = 6.6 * max(len(row) for row, _ in held.rows) + 10
    over = 6.2 * max(len(column) for column in held.columns)
    top, wide = 0.78 * over + 12, margin + len(held.columns) * _WIDE
    count = Counter(cell.state for _, row in held.rows for some in row for cell in some)
    told = ", ".join(f"{_words(state)} {count[state]}" for state in sorted(count, reverse=True))
    words = f"Partition map of {name}, {held.title or 'layers'}: {told}"
    size_ = (wide + 0.62 * over + _MARGIN, top + len(held.rows) * _TALL + 4)
    picture = tag(
        "svg", _columns(held, margin, top), _cells(held, margin, top), role="img",
        class_="map", width=f"{size_[0]:.0f}", height=f"{size_[1]:.0f}",
        viewBox=f"0 0 {size_[0]:.0f} {size_[1]:.0f}", aria_label=words,
    )  # fmt: skip
    title = tag("p", held.title, class_="group") if held.title else None
    return tag("div", title, scrolling(words, picture))


def _columns(held: Table, margin: float, top: float) -> list[Child]:
    parts: list[Child] = []
    for place, column in enumerate(held.columns):
        x, y = margin + place * _WIDE + 7, top - 5
        turned = f"translate({x:.0f} {y:.0f})rotate(-50)"
        parts.append(tag("text", column, transform=turned, class_="quiet"))
    return parts


def _cells(held: Table, margin: float, top: float) -> list[Child]:
    """Cells of one state are one path, the digits of a row one text."""
    paths: dict[str, str] = {}
    parts: list[Child] = []
    digits: list[Child] = []
    for number_, (name, row) in enumerate(held.rows):
        y = top + number_ * _TALL
        parts.append(label(margin - 6, y + 10, name, "quiet", "end"))
        places, text, before = [], "", ("", -2)
        for place, some in enumerate(row):
            if not some:
                continue
            x = f"{margin + place * _WIDE:.0f}"
            style = _state(some)
            if before == (style, place - 1):  # cells are dashes of one line
                paths[style] += f"h{_WIDE}"
            else:
                paths[style] = paths.get(style, "") + f"M{x} {y + 6:.0f}h{_WIDE}"
            before = (style, place)
            if any(cell.fault for cell in some):
                paths["fault"] = paths.get("fault", "") + f"M{x} {y + 6:.0f}h{_WIDE}"
            if style[0] == "d":
                places.append(f"{margin + place * _WIDE + 6:.0f}")
                text += style[1]
        if text:
            digits.append(tag("text", text, x=" ".join(places), y=f"{y + 10:.0f}", class_="on"))
    order = sorted(paths, key=lambda style: (style == "fault", style))
    return [*parts, *(tag("path", d=paths[style], class_=style) for style in order), *digits]


def _chips(group: Group) -> Markup:
    """Variables in no layer, and batch inputs: a chip each, with its name."""
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
    """What is partitioned; equal layers are one row."""
    rows = []
    for held, what in ((variables, ""), (inputs, " (batch input)")):
        split = [cell for cell in held if cell.state >= 0]
        keys = [(cell.state, cell.shape, cell.fault) for cell in split]
        for path, places in merged([cell.path for cell in split], keys):
            rows.append(_line(path + what, [split[place] for place in places]))
    if not rows:
        return tag("p", "Nothing is partitioned: every device does everything.")
    more = len(rows) - _MOST_LINES
    words = f"What is partitioned in {name}; equal layers are one row."
    if more > 0:
        words += f" The first {_MOST_LINES} of {len(rows)} rows; the entry's file has all."
    return table(words, _COLUMNS, rows[:_MOST_LINES], head=1)


def _line(name: str, some: Sequence[Cell]) -> Row:
    whole, each = (sum(getattr(cell, x) for cell in some) for x in ("bytes", "device_bytes"))
    first = some[0]
    words = f"{first.state}{', breaks a rule' if first.fault else ''}"
    return Row(
        (
            Field([_chip(_style(first.state), first.state), " ", words], float(first.state)),
            Field(name),
            Field(_shape(first)),
            number(len(some), f"{len(some):,}"),
            number(whole, size(whole)),
            number(each, size(each)),
        )
    )
