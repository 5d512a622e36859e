"""What a web page shows of a plan, as data: words, figures, tables; the site's templates write it.

Colours of pictures are classes of the site's style sheet, so that they follow its themes, light and
dark. Every text may be a stranger's: the templates escape it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

WIDTH = 880
"""Width of a wide picture, pixels."""
STAGE_COLOURS = 8
"""Classes ``s0``, ``s1``, ... of the style sheet."""


class Shape(NamedTuple):
    """An element of an SVG picture; see ``shape``."""

    element: str  # "path", "rect", ...
    attributes: dict[str, Any]  # name -> value; None leaves an attribute out
    words: str = ""  # its text


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


def steps(x: Iterable[float], y: Iterable[float], end: float) -> str:
    """Return the path of a curve that has the value y from x on, up to ``end``."""
    points = [(round(a, 1), round(b, 1)) for a, b in zip(x, y, strict=True)]
    return (
        f"M{points[0][0]:g} {points[0][1]:g}"
        + "".join(f"H{a:g}V{b:g}" for a, b in points)
        + f"H{end:g}"
    )


class Picture(NamedTuple):
    """An SVG picture."""

    words: str  # what it shows, for those who do not see it
    shapes: Sequence[Shape]  # from the back to the front
    height: float  # pixels
    width: float = WIDTH  # pixels
    title: str = ""  # stands above it


class Chip(NamedTuple):
    """A coloured mark and what it stands for."""

    style: str  # classes of the mark
    letter: str  # in the mark; may be empty
    words: str
    note: str = ""  # after the words, in small letters


class Figure(NamedTuple):
    """Pictures with one key and caption."""

    pictures: Sequence[Picture]
    caption: str  # below; may be empty
    key: Sequence[Chip] = ()  # above
    lists: Sequence[tuple[str, Sequence[Chip]]] = ()  # titles and chips, below the pictures
    style: str = "wide"  # or "map": pictures of their own sizes, beside each other


class Cell(NamedTuple):
    """A cell of a table that is more than a text or a number."""

    words: str
    sort: float | str  # what it is sorted by; in a column, all are of the same type
    style: str = ""  # classes
    chip: Chip | None = None  # before the words


Row = Mapping[str, "Cell | str | int"]
"""Title of a column -> cell, text or number, in the order of the columns."""


class Table(NamedTuple):
    """A table that readers can sort, columns of numbers from the greatest on."""

    caption: str
    rows: Sequence[Row]  # at least one; all have the same columns
    head: int = 0  # the column that names each row


class PlanPage(NamedTuple):
    """What is shown of a plan, in this order."""

    words: str = ""  # a paragraph; may be empty
    facts: Sequence[tuple[str, str, str]] = ()  # names, values, and marks that warn or are empty
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
