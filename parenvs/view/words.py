"""Words, units and colours that all texts and pictures share."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from parenvs.errors import printable

SEPARATOR = "  ·  "
"""Stands between the parts of a line."""
_PALETTE = (33, 214, 36, 133, 74, 143, 61, 180)  # of 256 colours, in the order of STAGE_COLOURS
_PAINT = re.compile(r"(\x1b\[(?:38;5;\d{1,3}|0)m)")  # what ``paint`` adds
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def duration(seconds: float) -> str:
    """Seconds with four digits and the unit that suits them: ``1.234 s``, ``56.78 ms``."""
    scale, unit = time_unit(seconds)
    return f"{_digits(seconds / scale, 4)} {unit}"


def milliseconds(seconds: float) -> str:
    """A number of milliseconds for a table whose head gives the unit: ``12.345``, ``1234.5``."""
    value = seconds * 1e3
    if not value:
        return "0"
    return f"{value:.3g}" if value >= 1e6 else f"{value:.{3 if value < 100 else 1}f}"


def time_unit(seconds: float) -> tuple[float, str]:
    """``(seconds in the unit, its name)`` of the largest unit in which ``seconds`` is over one."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= scale:
            return scale, unit
    return (1e-9, "ns") if seconds else (1.0, "s")


def size(count: float, tick: bool = False) -> str:
    """Bytes with a decimal unit and three digits, ``28.8 GB``; as few digits as a ``tick`` needs.

    A negative count, which is a difference, keeps its sign.
    """
    if not count:
        return "0"
    for scale, unit in _SIZES:
        if abs(count) >= scale * 0.9995:
            return f"{f'{count / scale:g}' if tick else _digits(count / scale, 3)} {unit}"
    return f"{count:.0f} B"


def plural(count: int, noun: str, ending: str = "s") -> str:
    """``1 variable``, ``1,114 variables``, ``2 classes`` (with the ``ending`` ``es``)."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def signed(words: str) -> str:
    """A difference in words, with a plus sign where it has no minus: ``+12.3 ms``, ``0 s``."""
    return words if words.startswith(("-", "0 ")) or words == "0" else f"+{words}"


def clip(line: str, width: int) -> str:
    """The line, cut to ``width`` characters with an ellipsis where it is longer."""
    return line if len(line) <= width else line[: width - 1] + "…"


def clip_start(name: str, width: int) -> str:
    """The end of a name, which tells more than its start, in at most ``width`` characters."""
    name = printable(name)
    return name if len(name) <= width else f"…{name[len(name) - max(width - 1, 1) :]}"


def paint(words: str, index: int, colour: bool) -> str:
    """The words in the terminal's colour of a stage or dimension, or plain without ``colour``."""
    return f"\x1b[38;5;{_PALETTE[index % len(_PALETTE)]}m{words}\x1b[0m" if colour else words


def printable_text(text: str, painted: bool = False) -> str:
    """Lines fit for a terminal, whose only escapes are those of ``paint`` if it is ``painted``."""
    lines = text.split("\n")
    if not painted:
        return "\n".join(map(printable, lines))
    parts = (enumerate(_PAINT.split(line)) for line in lines)
    return "\n".join("".join(x if k % 2 else printable(x) for k, x in row) for row in parts)


def reason_lines(reasons: Iterable[str], width: int) -> list[str]:
    """Why a plan is illegal, each reason marked with ``!`` and wrapped to ``width`` columns."""
    return [
        line
        for reason in reasons
        for line in textwrap.wrap(
            printable(reason), width, initial_indent="  ! ", subsequent_indent="    "
        )
    ]


def _digits(value: float, digits: int) -> str:
    """A number with ``digits`` significant digits, never in scientific form."""
    if not value:
        return "0"
    before = int(f"{value:.{digits - 1}e}".partition("e")[2]) + 1
    return f"{value:,.{max(digits - before, 0)}f}"
