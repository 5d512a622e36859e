"""Tables of the terminal, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from parenvs.errors import printable


class _PrintableTable(Table):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cells: list[list[str]] = []

    def add_row(self, *cells: Any, **options: Any) -> None:
        self.cells.append([str(cell) for cell in cells])
        super().add_row(*(Text(printable(cell)) for cell in cells), **options)


def to_json(table: Table) -> dict[str, Any]:
    """Return a table made by ``empty`` as an object of JSON types: title, columns and rows."""
    assert isinstance(table, _PrintableTable)
    columns = [str(column.header) for column in table.columns]
    return {"title": str(table.title or ""), "columns": columns, "rows": table.cells}


def empty(title: str, *columns: str, rows: Iterable[Sequence[str]] = (), names: int = 1) -> Table:
    """A table; its first ``names`` columns are left-justified and the others right."""
    head = Text(printable(title), style="bold") if title else None
    table = _PrintableTable(title=head, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < names else "right")
    for row in rows:
        table.add_row(*row)
    return table
