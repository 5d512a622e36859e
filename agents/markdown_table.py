"""Tables of Markdown, as GitHub shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], left: int | Sequence[int] = 1
) -> str:
    """A table; the first ``left`` columns, or those, are flush left, the others right."""
    flush = range(left) if isinstance(left, int) else left
    rule = [":--" if i in flush else "--:" for i in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(str(x) for x in line) + " |" for line in lines)
