"""The page of every picture: its measures in inches, its colors and its heading.

Matplotlib is imported when a picture is asked for, and pyplot never: figures are plain objects with
an Agg canvas, so no display is needed and no global state is left changed.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.errors import ParenvsError, printable
from parenvs.files import StrPath, replacing
from parenvs.view.words import SEPARATOR, clip, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAGE_COLORS = (
    "#3B75B5", "#E3A02B", "#2A9D84", "#A0569F", "#5FB3DE", "#A3A13A", "#4B4AA0", "#D3B77A",
)  # fmt: skip
"""Told apart with every common color blindness; red is kept for what breaks a rule."""
INK, QUIET, TRACK, LINK, RED = "#222222", "#6B6B6B", "#F2F2F2", "#8A8A8A", "#C1121F"
ON_LIGHT = "#1B1B1B"
"""Ink on cells that are light, on a dark page, too."""
_DARK = {
    "#FFFFFF": "#16181D", INK: "#E8E8E8", QUIET: "#ABABAB", TRACK: "#262A30", RED: "#FF6B6B",
    "#DDDDDD": "#3E434A", "#ECECEC": "#33373D", "#CACACA": "#565B62", "#3C4652": "#B5C2D0",
    "#F5F5F5": "#202329",
}  # fmt: skip
"""Color of paper, ink and lines -> the one that it has on a dark page."""
WIDTH, HEIGHT, DPI = 12.8, 8.0, 100
"""Inches and pixels an inch: 1280 x 800 pixels."""
MARGIN = 0.3
"""Inches at the left and the right of the heading."""
_MOST_REASONS = 6  # lines
_MOST_LETTERS = 120  # of the title
_METADATA = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}
"""Ending of a picture's file -> what is left out of it, as it would change with the day."""
_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font-family: system-ui, sans-serif; max-width: 1280px; margin: auto; padding: 1rem; }
svg { width: 100%; height: auto; }
pre { overflow-x: auto; }
</style></head>
<body>{{ svg | safe }}
{% for heading, text in words.items() %}<details open><summary>{{ heading }}</summary>
<pre>{{ text }}</pre></details>
{% endfor %}</body></html>
"""
"""A page that needs no other file."""
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,
    "hatch.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.linewidth": 0.7,
    "axes.titlecolor": QUIET,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.0,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    "xtick.color": QUIET,
    "xtick.labelsize": 8.5,
    "xtick.major.size": 3.0,
    "xtick.major.width": 0.7,
    "ytick.color": QUIET,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 0.0,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.borderaxespad": 0.2,
    "legend.borderpad": 0.1,
    "legend.columnspacing": 1.0,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handleheight": 0.9,
    "legend.handlelength": 1.3,
    "legend.handletextpad": 0.5,
    "legend.labelcolor": QUIET,
    "pdf.fonttype": 42,
    "svg.hashsalt": "parenvs",
}


def style() -> AbstractContextManager[None]:
    """Use matplotlib's defaults with ours on top; the user's settings return afterwards."""
    import matplotlib.style

    return matplotlib.style.context(["default", _STYLE])


def _blank_figure() -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def write(
    path: StrPath, draw: Callable[[], Figure], words: Mapping[str, str] | None = None
) -> None:
    """Write what ``draw`` returns; equal figures give equal bytes, a failure leaves the old file.

    Args:
        path: of the file.
        draw: makes the figure.
        words: heading -> text below the picture, where the file is a page (.html).

    Raises:
        ParenvsError: another ending.
    """
    suffix = ending(path)
    with replacing(path) as stream:
        if suffix == ".html":
            from jinja2 import Template

            svg = content(".svg", draw).decode()
            svg = svg[svg.index("<svg") :]
            page = Template(_HTML, autoescape=True)
            stream.write(page.render(title=Path(path).stem, svg=svg, words=words or {}).encode())
        else:
            stream.write(content(suffix, draw))


def content(suffix: str, draw: Callable[[], Figure]) -> bytes:
    """Return what ``draw`` returns as the content of a file with this ending."""
    drawn = io.BytesIO()
    with style():
        draw().savefig(drawn, format=suffix[1:], dpi=1.5 * DPI, metadata={_METADATA[suffix]: None})
    data = drawn.getvalue()
    return with_dark(data.decode()).encode() if suffix == ".svg" else data


def with_dark(svg: str) -> str:
    """Return an SVG picture with the colors of a dark page added, which readers' settings choose.

    White letters stay white, as they stand on cells.
    """
    rules = [
        f'{tag}[style*="{part}: {light.lower()}"]{{{part}:{dark}!important}}'
        for light, dark in _DARK.items()
        for part, tag in (("fill", "path" if light == "#FFFFFF" else ""), ("stroke", ""))
    ]
    sheet = f"@media (prefers-color-scheme: dark){{{''.join(rules)}}}"
    return svg.replace("<defs>", f'<style type="text/css">{sheet}</style>\n <defs>', 1)


def ending(path: StrPath) -> str:
    """``".png"``, ``".svg"``, ``".pdf"`` or ``".html"``, in lower case.

    Raises:
        ParenvsError: another ending.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (known := (*_METADATA, ".html")):
        raise ParenvsError(f"{os.fspath(path)}: a picture ends in {', '.join(known)}")
    return suffix


@dataclass(frozen=True)
class Page:
    """A white figure with places given in inches, y from the top; needs ``style``."""

    figure: Figure = field(default_factory=_blank_figure)

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """New axes."""
        box = (x / WIDTH, 1 - (y + height) / HEIGHT, width / WIDTH, height / HEIGHT)
        return self.figure.add_axes(box)

    def heading(self, title: str, verdict: Sequence[str], reasons: Sequence[str] = ()) -> float:
        """Write title, verdict and reasons from the upper left corner.

        Args:
            title: one line, cut where it is very long.
            verdict: the parts of the next line; of the next lines where one is too narrow.
            reasons: why a plan is illegal; in red, as the verdict then, in as many lines as there
                is room for.

        Returns:
            Where the rest of the page may begin, inches from the top.
        """
        self._line(0.22, clip(title, _MOST_LETTERS), size=14, weight="bold")
        ink = RED if reasons else INK
        top, line = 0.56, ""
        # A part that would run off the page begins a new line.
        for part in verdict:
            longer = f"{line}{SEPARATOR}{part}" if line else part
            if line and text_inches(longer, 10.5) > WIDTH - 2 * MARGIN:
                self._line(top, line, size=10.5, color=ink)
                top, longer = top + 0.23, part
            line = longer
        self._line(top, line, size=10.5, color=ink)
        top += 0.34
        wrapper = textwrap.TextWrapper(150, subsequent_indent="   ")
        lines = [line for reason in reasons for line in wrapper.wrap(printable(reason))]
        if len(lines) > _MOST_REASONS:
            lines[_MOST_REASONS - 1 :] = [f"and {len(lines) - _MOST_REASONS + 1} lines more"]
        for line in lines:
            self._line(top, line, size=9, color=RED)
            top += 0.19
        return top + 0.12

    def _line(self, top: float, words: str, size: float, **look: Any) -> None:
        position = (MARGIN / WIDTH, 1 - top / HEIGHT)
        text = self.figure.text(*position, words, size=size, va="top", **look)
        # A line that is still too long, by the font's true width, is made smaller.
        room = (WIDTH - 2 * MARGIN) * DPI
        text.set_fontsize(size * min(1.0, 0.98 * room / max(text.get_window_extent().width, 1.0)))


def note(axes: Axes, words: str, at: tuple[float, float], shift: Any, **look: Any) -> None:
    """Write words beside a point of the axes, ``shift`` points away, outside of them, too."""
    look = {"xycoords": "axes fraction", "color": QUIET, "annotation_clip": False, **look}
    axes.annotate(words, at, shift, textcoords="offset points", **look)


def legend(axes: Axes, colors: Mapping[str, str], **look: Any) -> None:
    """List words with their colors above the axes, hatched ones without, and what has a label."""
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=x or "white", edgecolor=x or LINK, hatch="" if x else "/////", label=words)
        for words, x in colors.items()
    ]
    handles += axes.get_legend_handles_labels()[0]
    where = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": len(handles), **look}
    axes.legend(handles=handles, **where)


def draw_passes(
    axes: Axes, row: float, begin: np.ndarray, end: np.ndarray, color: str, tall: float = 0.84
) -> None:
    """Draw passes as boxes ``tall`` rows high, with their micro-batches' numbers if they fit.

    The time of the axes has its end, and ``begin`` and ``end``, (M,), are in its unit.
    """
    box, right = axes.get_position(), axes.get_xlim()[1]
    across = WIDTH * box.width / right  # inches
    high = tall * HEIGHT * box.height / abs(np.diff(axes.get_ylim()).item())
    numbers = np.flatnonzero(begin < right)
    begin, end = begin[numbers], np.minimum(end[numbers], right)
    pixel, span = 1 / (DPI * across), end - begin
    # A gap keeps neighbors of one color apart; the least width keeps short passes visible.
    shown = np.maximum(span - np.minimum(1.3 * pixel, span / 3), 0.8 * pixel)
    boxes = [*zip(begin.tolist(), shown.tolist(), strict=True)]
    look: Any = {"facecolors": color, "linewidth": 0, "gid": "passes"}
    axes.broken_barh(boxes, (row - tall / 2, tall), **look)
    font = min(7.5, 36 * high)
    if font < 4.5 or not len(numbers):
        return
    if across * np.median(span) >= text_inches(f"{numbers.max()}", font) + 0.02:
        for number, x in zip(numbers, begin + span / 2, strict=True):
            write_on(axes, x, row, f"{number}", font, color)


def write_on(axes: Axes, x: float, y: float, words: str, font: float, color: str) -> None:
    """Write words in the middle of a box of a color."""
    axes.text(x, y, words, size=font, color=ink_on(color), ha="center", va="center")


def draw_memory(
    axes: Axes,
    stages: Sequence[str],
    parts: Sequence[tuple[Sequence[float], str | Sequence[str]]],
    limit: float,
) -> None:
    """Draw stacked bars of the bytes on a device of each stage, and the limit.

    Args:
        axes: where.
        stages: names, (S,); those of full ones are red.
        parts: bytes, (S,), and the color of each part, or its colors by stage.
        limit: bytes.
    """
    rows, total = np.arange(len(stages)), np.sum([part_bytes for part_bytes, _ in parts], axis=0)
    right_end = max(limit, total.max()) * 1.02
    axes.barh(rows, right_end, 0.76, color=TRACK)
    begin = np.zeros(len(stages))
    for part_bytes, color in parts:
        axes.barh(rows, part_bytes, 0.76, left=begin, color=color)
        begin = begin + part_bytes
    axes.axvline(limit, color=INK, linewidth=1.2, linestyle="--")
    side = "right" if limit > right_end / 2 else "left"
    look = {"xycoords": ("data", "axes fraction"), "color": INK, "ha": side, "size": 8.5}
    note(axes, f"limit {size(limit)}", (limit, 1), (0, 3), **look)
    named = rows[:: math.ceil(len(stages) * 0.15 / (HEIGHT * axes.get_position().height))]
    axes.set(xlim=(0, right_end), ylim=(len(stages) - 0.5, -0.5))
    axes.set_yticks(named, [stages[k] for k in named])
    for label, k in zip(axes.get_yticklabels(), named, strict=True):
        label.set_color(RED if total[k] > limit else QUIET)
    axes.xaxis.set_major_formatter(lambda x, _: size(x, tick=True))


def text_inches(words: str, font: float) -> float:
    """Width of a text, estimated from its length (a little generous)."""
    return len(words) * font * 0.54 / 72


def stage_color(stage: int) -> str:
    """Color of a compute stage."""
    return STAGE_COLORS[stage % len(STAGE_COLORS)]


def mix(color: str, other: str, share: float) -> str:
    """``share`` of ``other`` and the rest of ``color``."""
    parts = zip(bytes.fromhex(color[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(a * (1 - share) + b * share):02X}" for a, b in parts)


def ink_on(color: str) -> str:
    """Black or white, whichever reads better on ``color``."""
    red, green, blue = bytes.fromhex(color[1:])
    # The eye sees green brightest: luma of ITU-R BT.601.
    return ON_LIGHT if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else "white"
