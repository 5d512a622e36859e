"""Words, units and colors that all texts and pictures share."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache

from parenvs.errors import printable

WIDTH = 110
"""Columns of texts."""
SEPARATOR = "  ·  "
"""Stands between the parts of a line."""
_PALETTE = (33, 214, 36, 133, 74, 143, 61, 180)  # of 256 colors, in the order of STAGE_COLORS
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
    # From 0.9995 on three digits round up to 1 of the unit.
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


def wrapped(lines: Iterable[str]) -> list[str]:
    """The lines, those that are wider than ``WIDTH`` in several, all but the first indented."""
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return [x for line in lines for x in ([line] if len(line) <= WIDTH else wrapper.wrap(line))]


def clip_start(name: str, width: int) -> str:
    """The end of a name, which tells more than its start, in at most ``width`` characters."""
    name = printable(name)
    return name if len(name) <= width else f"…{name[len(name) - max(width - 1, 1) :]}"


def columns(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Rows of a table as lines: the first ``left`` cells are flush left, the others right.

    Two blanks separate the columns, or one where lines would be wider than ``WIDTH``.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) - 2 <= WIDTH else " "
    lines = []
    for row in rows:
        cells = [x.ljust(n) for x, n in zip(row[:left], widths, strict=False)]
        cells += [x.rjust(n) for x, n in zip(row[left:], widths[left:], strict=True)]
        lines.append(gap.join(cells).rstrip())
    return lines


def paint(words: str, index: int, color: bool) -> str:
    """The words in the terminal's color of a stage or dimension, or plain without ``color``."""
    return f"\x1b[38;5;{_PALETTE[index % len(_PALETTE)]}m{words}\x1b[0m" if color else words


def printable_text(text: str, painted: bool = False) -> str:
    """Lines fit for a terminal, whose only escapes are those of ``paint`` if it is ``painted``."""
    lines = text.split("\n")
    if not painted:
        return "\n".join(map(printable, lines))
    # Splitting by a group of a pattern gives texts and escapes in turn.
    parts = (enumerate(_PAINT.split(line)) for line in lines)
    return "\n".join("".join(x if k % 2 else printable(x) for k, x in row) for row in parts)


def reason_lines(reasons: Iterable[str]) -> list[str]:
    """Why a plan is illegal, each reason marked with ``!`` and wrapped to ``WIDTH`` columns."""
    marked = textwrap.TextWrapper(WIDTH, initial_indent="  ! ", subsequent_indent="    ")
    return [line for reason in reasons for line in marked.wrap(printable(reason))]


def _digits(value: float, digits: int) -> str:
    if not value:
        return "0"
    # Digits before the point, taken after rounding: 9.9996 has two of them with four digits.
    before = int(f"{value:.{digits - 1}e}".partition("e")[2]) + 1
    return f"{value:,.{max(digits - before, 0)}f}"


MAX_COLUMNS = 48
"""Columns of a table of layers, beyond which it becomes a list."""
# Of numbers of layers, in a name that stands for several.
_MAX_RANGES = 4


def layers(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Layer of each variable, empty if it is in none, and its name within the layer.

    A layer's name ends in the last part of the path that is a number (``h/0``), else in the first
    with a number that other paths have differently (``encoder/layer_0``), else in the first with
    any number. The last part of a path is never a layer.

    >>> layers(["encoder/layer_0/conv1/bias", "encoder/layer_1/conv1/bias", "norm/bias"])
    [('encoder/layer_0', 'conv1/bias'), ('encoder/layer_1', 'conv1/bias'), ('', 'norm/bias')]
    """
    variants: dict[str, set[str]] = {}
    prefixes = []  # of each path, those that end in a number
    for path in paths:
        parts = path.split("/")
        ends = [k for k, part in enumerate(parts[:-1]) if re.search(r"\d", part)]
        prefixes.append(["/".join(parts[: k + 1]) for k in ends])
        for prefix in prefixes[-1]:
            variants.setdefault(kind_of(prefix), set()).add(prefix)
    named = []
    for path, numbered in zip(paths, prefixes, strict=True):
        exact = [x for x in numbered if x.rpartition("/")[2].isdecimal()]
        varied = [x for x in numbered if len(variants[kind_of(x)]) > 1]
        layer = exact[-1] if exact else (varied or numbered or [""])[0]
        named.append((layer, path[len(layer) + 1 :] if layer else path))
    return named


@lru_cache(4096)
def kind_of(name: str) -> str:
    """A name with ``#`` for every number."""
    return re.sub(r"\d+", "#", name)


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts ``layer_2`` before ``layer_10``."""
    return [(int(x), "") if x.isdecimal() else (-1, x) for x in re.split(r"(\d+)", name)]


def merged(paths: Sequence[str], keys: Sequence[Hashable]) -> list[tuple[str, list[int]]]:
    """Paths with equal keys that differ in the layer's number only, as ``layer_0..23/self/q``.

    Returns:
        The common name and the positions in ``paths``, in the order of their first one.
    """
    # Equal but for the last number of the layer: the same part of several layers.
    groups: dict[tuple[str, str, Hashable], list[tuple[str, int]]] = {}
    for index, (layer, name) in enumerate(layers(paths)):
        # The layer begins the path; without one, the name is the path.
        path, spans = paths[index], [x.span() for x in re.finditer(r"\d+", layer or name)]
        start, end = spans[-1] if spans else (len(path), len(path))
        group = path[:start], path[end:], keys[index]
        groups.setdefault(group, []).append((path[start:end], index))
    names = []
    for (before, after, _), members in groups.items():
        several, indices = zip(*members, strict=True)
        names.append((f"{before}{_ranges(several)}{after}", list(indices)))
    return names


def _ranges(numbers: Sequence[str]) -> str:
    """``0..23``, or ``{0,2,5..7}``; long lists are cut short."""
    if len(numbers) == 1:
        return numbers[0]
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda x: (int(x), x)):
        if runs and int(number) == int(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ranges = [run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    if len(ranges) > _MAX_RANGES:
        ranges[_MAX_RANGES - 1 : -1] = ["…"]
    text = ",".join(ranges)
    return text if len(ranges) == 1 else f"{{{text}}}"
