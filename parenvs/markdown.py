"""Tables of Markdown, as GitHub shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], left: int | Sequence[int] = 1
) -> str:
    """A table with one line per row.

    Args:
        header: the titles of the columns.
        rows: the cells of each row; they are written by ``str``.
        left: how many of the first columns are flush left, or which columns are; the others are
            flush right.
    """
    flush_left = range(left) if isinstance(left, int) else left
    rule = [":--" if column in flush_left else "--:" for column in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def escaped(text: str) -> str:
    """Return a text of strangers so that Markdown shows it as it is, on one line.

    Backslashes escape what Markdown or HTML reads. An empty comment parts what GitHub would make a
    mention, the number of an issue or a link of thereafter, and a span keeps dollars from formulas.
    """
    words = "".join(c for c in " ".join(text.split()) if c.isprintable())
    words = re.sub(r"([\\`*_{}\[\]<>|~&])", r"\\\1", words)
    words = re.sub(r"[@#]|:(?=//)|(?i:www)(?=\.)", r"\g<0><!-- -->", words)
    return words.replace("$", "<span>$</span>")
