"""The page of a measurement: title, command, machine, sections; tables are told by columns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from parenvs.machine import cores, counted, processor, versions
from parenvs.markdown import table

Row = dict[str, Any]
"""Figures that were measured together, as JSON types."""
Column = tuple[str, "str | Callable[[Any], object]"]
"""Title of a column, and what is in it: a template (see ``cell``), or a function of the row."""


def page(title: str, command: str, machine: str, sections: Iterable[str]) -> str:
    """A page of Markdown.

    Args:
        title: the heading.
        command: what makes the page.
        machine: where it was measured; left out if empty.
        sections: paragraphs and tables.
    """
    return "\n\n".join(filter(None, [f"# {title}", f"`{command}`", machine, *sections])) + "\n"


def host() -> str:
    """The processor, its cores, and the versions that change times."""
    installed = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"{processor()}, {counted(cores())}; {installed}"


def columns(
    rows: Iterable[Mapping[str, Any]], told: Sequence[Column], left: int | Sequence[int] = 1
) -> str:
    """A table with a line for each row.

    Args:
        rows: the rows.
        told: the columns.
        left: as of ``markdown.table``.
    """
    lines = [[cell(shown, row) for _, shown in told] for row in rows]
    return table([title for title, _ in told], lines, left)


def cell(shown: str | Callable[[Any], object], row: Mapping[str, Any]) -> object:
    """What a column shows of a row.

    Args:
        shown: a function of the row, or a template of ``str.format`` with the row's fields:
            ``"{plan[seconds]:.2f}"``. None, NaN and what it lacks are empty, ``:.1%`` has a
            space before the sign, and a factor may follow: ``:.1f*1e3``, ``:.1f/1e9``.
        row: the row.
    """
    return shown(row) if callable(shown) else _FORM.vformat(shown, (), row)


def percent(share: float | None, digits: int = 2) -> str:
    """A share as per cent; empty if it is None or NaN."""
    if share is None or math.isnan(share):
        return ""
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"  # + 0.0: no minus before a zero


class _Form(Formatter):
    """The templates of ``cell``."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        """Look a field up; None if it is not there."""
        try:
            return super().get_field(field_name, args, kwargs)
        except (KeyError, IndexError, TypeError):
            return None, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format a value, empty where there is none."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        match = re.fullmatch(r"(.*?)(?:([*/])([\d.e]+))?", format_spec)
        assert match is not None
        form, sign, factor = match.groups()
        if sign:
            value = value * float(factor) if sign == "*" else value / float(factor)
        if form.endswith("%"):
            return percent(value, int(form[1:-1]))
        return format(value, form)


_FORM = _Form()
