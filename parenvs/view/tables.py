"""Tables of the terminal, whatever they hold."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from parenvs.errors import printable


class _PrintableTable(Table):
    """A table whose cells and title stand as they are: no markup, no control characters."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of texts."""
        super().add_row(*(Text(printable(cell)) for cell in cells), **options)


def empty(title: str, *columns: str, names: int = 1) -> Table:
    """An empty table; its first ``names`` columns are left-justified and the others right."""
    table = _PrintableTable(
        title=Text(printable(title), style="bold") if title else None,
        title_justify="left",
        header_style="bold",
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < names else "right")
    return table
