"""Tables of the site that readers can sort: columns, rows, cells with their sort keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parenvs.leaderboard.problem import Reference
from parenvs.leaderboard.site.html import Child, Markup, badge, bar, markup, scrolling, tag


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: header of the column.
        kind: ``"text"``, or ``"number"``, which is aligned right.
        first: order that the first click sorts by, ``"ascending"`` or ``"descending"``.
        extra: whether small screens leave the column out.
    """

    title: Child
    kind: str = "text"
    first: str = "ascending"
    extra: bool = False

    def style(self, *more: str) -> str | None:
        """Return the classes of the column's cells, ``more`` among them; None if there are none."""
        return " ".join([*more, *(["extra"] if self.extra else [])]) or None


@dataclass(frozen=True)
class Field:
    """A cell of a table."""

    content: Child
    sort: str | float | None = None  # key; in a column of numbers, None stands last
    style: str = ""  # class


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    fields: Sequence[Field]
    learned: bool | None = None  # for the filter "learned"
    words: str = ""  # for the filter by text


def sortable_table(
    caption: str, columns: Sequence[Column], rows: Iterable[Row], head: int = 0
) -> Markup:
    """Make a table in a frame that scrolls sideways if needed.

    Args:
        caption: caption of the table.
        columns: its columns.
        rows: its rows, with a field for each column.
        head: number of the column that names each row.
    """
    header = tag("tr", (_header(column) for column in columns))
    body = [_row(row, columns, head) for row in rows]
    whole = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", header),
        tag("tbody", body),
        class_="sortable",
    )
    return scrolling(caption, whole)


def _header(column: Column) -> Markup:
    """Make the header of a column."""
    return tag(
        "th",
        column.title,
        scope="col",
        class_=column.style(),
        data_kind=column.kind,
        data_first=column.first,
    )


def _row(row: Row, columns: Sequence[Column], head: int) -> Markup:
    """Make a row; see ``sortable_table``."""
    cells = []
    for place, (field, column) in enumerate(zip(row.fields, columns, strict=True)):
        name, scope = ("th", "row") if place == head else ("td", None)
        number_key, text_key = None, field.sort if isinstance(field.sort, str) else None
        if column.kind == "number":
            number_key = "" if field.sort is None else f"{field.sort:.9g}"
        style = column.style(*field.style.split())
        cells.append(
            tag(
                name,
                field.content,
                scope=scope,
                class_=style,
                data_n=number_key,
                data_sort=text_key,
            )
        )
    learned = None if row.learned is None else "yes" if row.learned else "no"
    return tag("tr", cells, data_learned=learned, data_words=row.words.lower() or None)


def number(value: float, words: str, style: str = "") -> Field:
    """Make a cell that shows ``words`` and is sorted by ``value``."""
    return Field(words, float(value), style)


def score_field(score: float) -> Field:
    """Make a cell with a score and its bar."""
    return Field(markup(f"{score:.4f}", bar(score)), score, "score")


def seconds_field(seconds: float | None) -> Field:
    """Make a cell with the seconds that an entry tells, empty for None."""
    if seconds is None:
        return Field("")
    if 0 < seconds < 0.0005:
        return Field("< 0.001", seconds)
    return Field(f"{seconds:,.3f}" if seconds < 100 else f"{seconds:,.0f}", seconds)


def proof_words(reference: Reference) -> str:
    """Return in words whether a reference is proven, and else how far it is from its bound."""
    if reference.proven:
        return "proven optimum"
    among = f"; optimal among {reference.among}" if reference.among else ""
    return f"best known, within {100 * (reference.cost / reference.bound - 1):.1f} %{among}"


def proof(reference: Reference) -> Markup:
    """Return ``proof_words`` as a mark."""
    return badge(proof_words(reference), "plain" if reference.proven else "warn")
