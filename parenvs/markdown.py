"""Tables in Markdown, as GitHub shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], left: int | Sequence[int] = 1
) -> str:
    """Return a table in Markdown.

    Args:
        header: a title for each column.
        rows: a cell for each column; ``str`` makes its text.
        left: the columns that are aligned left, by number, or how many of the first ones; the
            others are aligned right.
    """
    aligned_left = range(left) if isinstance(left, int) else left
    rule = [":--" if column in aligned_left else "--:" for column in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
