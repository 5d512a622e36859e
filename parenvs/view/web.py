"""What a web page shows of a plan, as data: words, figures, tables; the site's templates write it.

Colours of pictures are classes of the site's style sheet, so that they follow its themes, light and
dark. Every text may be a stranger's: the templates escape it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

WIDTH = 880
"""Width of a wide picture, pixels."""
STAGE_COLOURS = 8
"""Classes ``s0``, ``s1``, ... of the style sheet."""


class Shape(NamedTuple):
    """An element of an SVG picture.

    Attributes:
        element: its name, ``"path"``, ``"rect"``, ...
        attributes: name -> value; None leaves an attribute out.
        words: its text.
    """

    element: str
    attributes: dict[str, Any]
    words: str = ""


def shape(element: str, style: str = "", words: str = "", **attributes: Any) -> Shape:
    """Return a shape of the class ``style``; ``_`` stands for ``-``, numbers get two decimals."""
    rounded = {
        name.replace("_", "-"): f"{round(float(value), 2):g}"
        if isinstance(value, (int, float))
        else value
        for name, value in attributes.items()
    }
    return Shape(element, {**rounded, "class": style or None}, words)


def label(x: float, y: float, words: str, style: str = "", anchor: str | None = None) -> Shape:
    """Return a text that begins, ends or has its middle at x, as ``anchor`` says."""
    return shape("text", style, words, x=x, y=y, text_anchor=anchor)


class Picture(NamedTuple):
    """An SVG picture.

    Attributes:
        words: what it shows, for those who do not see it.
        shapes: its shapes, from the back to the front.
        height: pixels.
        width: pixels.
        title: stands above it.
    """

    words: str
    shapes: Sequence[Shape]
    height: float
    width: float = WIDTH
    title: str = ""


class Chip(NamedTuple):
    """A coloured mark, with a letter or digit in it, and what it stands for.

    Attributes:
        style: classes of the mark.
        letter: stands in the mark; may be empty.
        words: stand beside it.
        note: stands after them, in small letters.
    """

    style: str
    letter: str
    words: str
    note: str = ""


class Figure(NamedTuple):
    """Pictures with one key and caption.

    Attributes:
        pictures: one as wide as the page, or several ``"map"``, each of its own size.
        caption: stands below; may be empty.
        key: stands above.
        lists: titles and chips, below the pictures.
        style: ``"wide"`` or ``"map"``.
    """

    pictures: Sequence[Picture]
    caption: str
    key: Sequence[Chip] = ()
    lists: Sequence[tuple[str, Sequence[Chip]]] = ()
    style: str = "wide"


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        words: its text.
        sort: number or text that it is sorted by; None: its text, and numbers come last.
        style: classes.
        chip: stands before the text.
    """

    words: str
    sort: float | str | None = None
    style: str = ""
    chip: Chip | None = None


class Table(NamedTuple):
    """A table that readers can sort.

    Attributes:
        caption: its caption.
        columns: title, ``"text"`` or ``"number"``, and the order of the first click,
            ``"ascending"`` or ``"descending"``; the last two may be left out.
        rows: a cell for each column.
        head: column that names each row.
    """

    caption: str
    columns: Sequence[tuple[str, ...]]
    rows: Sequence[Sequence[Cell]]
    head: int = 0


class PlanPage(NamedTuple):
    """What is shown of a plan, in this order.

    Attributes:
        words: a paragraph; may be empty.
        facts: names, values, and marks that warn; these may be empty.
        figures: pictures.
        tables: tables.
    """

    words: str = ""
    facts: Sequence[tuple[str, str, str]] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
