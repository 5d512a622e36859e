"""Tables of the site: captions, headers and what they are sorted by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parenvs.leaderboard.problem import Problem, Reference
from parenvs.leaderboard.site.html import Child, Markup, badge, bar, markup, scrolling, tag
from parenvs.viewer.words import duration


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: its header.
        kind: ``"text"``, or ``"number"``: aligned at the right.
        first: the order that the first click gives.
        extra: whether a phone does without it; the entry's own page has it too.
    """

    title: Child
    kind: str = "text"
    first: str = "ascending"
    extra: bool = False

    def style(self, *more: str) -> str | None:
        """Classes of its cells."""
        return " ".join([*more, *(["extra"] if self.extra else [])]) or None


@dataclass(frozen=True)
class Field:
    """A cell: what it shows, what it is sorted by (None: always last), and its class."""

    content: Child
    sort: str | float | None = None
    style: str = ""


@dataclass(frozen=True)
class Row:
    """A row: its cells, and what filters look at."""

    fields: Sequence[Field]
    learned: bool | None = None
    words: str = ""


def table(caption: str, columns: Sequence[Column], rows: Iterable[Row], head: int = 0) -> Markup:
    """A sortable table in a frame that scrolls sideways where it has to.

    Args:
        caption: what it shows.
        columns: the columns.
        rows: the rows.
        head: the column that names a row.
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
    return tag(
        "th",
        column.title,
        scope="col",
        class_=column.style(),
        data_kind=column.kind,
        data_first=column.first,
    )


def _row(row: Row, columns: Sequence[Column], head: int) -> Markup:
    cells = []
    for place, (field, column) in enumerate(zip(row.fields, columns, strict=True)):
        name, scope = ("th", "row") if place == head else ("td", None)
        number_, text = None, field.sort if isinstance(field.sort, str) else None
        if column.kind == "number":
            number_ = "" if field.sort is None else f"{field.sort:.9g}"
        style = column.style(*field.style.split())
        cells.append(
            tag(name, field.content, scope=scope, class_=style, data_n=number_, data_sort=text)
        )
    learned = None if row.learned is None else "yes" if row.learned else "no"
    return tag("tr", cells, data_learned=learned, data_words=row.words.lower() or None)


def number(value: float, words: str, style: str = "") -> Field:
    """A cell with a number."""
    return Field(words, float(value), style)


def score_field(score: float) -> Field:
    """A cell with a score and its bar."""
    return Field(markup(f"{score:.4f}", bar(score)), score, "score")


def seconds_field(seconds: float | None) -> Field:
    """A cell with the seconds that an entry tells; empty without."""
    if seconds is None:
        return Field("")
    if 0 < seconds < 0.0005:
        return Field("< 0.001", seconds)
    return Field(f"{seconds:,.3f}" if seconds < 100 else f"{seconds:,.0f}", seconds)


def cost_words(problem: Problem, cost: float) -> str:
    """A cost in the unit of the task."""
    return f"{cost:.4g}" if problem.reward == "paper" else duration(cost)


def proof_words(reference: Reference) -> str:
    """What is proven of a reference."""
    if reference.status == "optimal":
        return "proven optimum"
    return f"best known, within {100 * (reference.cost / reference.bound - 1):.1f} %"


def proof(reference: Reference) -> Markup:
    """The same, as a mark."""
    return badge(proof_words(reference), "plain" if reference.status == "optimal" else "warn")
