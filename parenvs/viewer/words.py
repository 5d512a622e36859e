"""The words and units that text and pictures share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def short_name(name: str, width: int = 24) -> str:
    """The telling part of a pivot's name.

    Args:
        name: its full name, for example ``jit(forward)/encoder/layer_3/ffn/norm/add``.
        width: most characters to return.

    >>> short_name("jit(forward)/encoder/layer_3/ffn/norm/add")
    'encoder/layer_3/ffn'
    """
    whole = printable(name).split("/")
    parts = [x for x in whole if not re.fullmatch(r"j\w+\(.*\)", x)]
    if len(parts) < len(whole):  # a scope of JAX: the last part is the instruction's own name
        parts = parts[:-1] or parts
    return clip("/".join(parts[:3]) or printable(name), width)


def duration(seconds: float) -> str:
    """Seconds with four digits and the unit that suits them: ``1.234 s``, ``56.78 ms``."""
    scale, unit = time_unit(seconds)
    return f"{_digits(seconds / scale, 4)} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """``(seconds in the unit, its name)`` of the largest unit in which ``seconds`` is over one."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= scale:
            return scale, unit
    return (1e-9, "ns") if seconds else (1.0, "s")


def size(count: float, tick: bool = False) -> str:
    """Bytes with a decimal unit and three digits, ``28.8 GB``; on an axis, as few as it takes."""
    if not count:
        return "0"
    for scale, unit in _SIZES:
        if count >= scale * 0.9995:
            return f"{f'{count / scale:g}' if tick else _digits(count / scale, 3)} {unit}"
    return f"{count:.0f} B"


def printable(name: str) -> str:
    """``name`` with a question mark for every control character."""
    return "".join(x if x.isprintable() else "?" for x in name)


def _digits(value: float, digits: int) -> str:
    """A number with so many significant digits, never in scientific form."""
    if not value:
        return "0"
    before = int(f"{value:.{digits - 1}e}".partition("e")[2]) + 1
    return f"{value:,.{max(digits - before, 0)}f}"


def clip(line: str, width: int) -> str:
    """The line, cut to ``width`` characters with an ellipsis where it is longer."""
    return line if len(line) <= width else line[: width - 1] + "…"
