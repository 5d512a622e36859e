"""The page of every picture: its measures in inches, its colors and its heading.

Where a picture is an SVG file, it has the colors of a dark page, too, and follows the reader's.

Matplotlib is imported when a picture is asked for, and pyplot never: figures are plain objects with
an Agg canvas, so no display is needed and no global state is left changed.
"""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.errors import ParenvsError, printable
from parenvs.files import replacing
from parenvs.view.words import SEPARATOR, clip

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
_STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.grid": False,
    "axes.unicode_minus": True,
    "hatch.linewidth": 0.7,
    "path.simplify": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "parenvs",
}


@contextmanager
def style() -> Iterator[None]:
    """Use matplotlib's defaults with ours on top; the user's settings return afterwards."""
    import matplotlib

    # These belong to the user's session; setting them would switch windows on or off.
    keep = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}
    settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_STYLE}
    with matplotlib.rc_context({k: v for k, v in settings.items() if k not in keep}):
        yield


def blank_figure() -> Figure:
    """A white figure of ``WIDTH`` times ``HEIGHT`` inches with an Agg canvas; needs ``style``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def pixels(draw: Callable[[], Figure]) -> np.ndarray:
    """What ``draw`` returns as a new array of shape (pixels down, pixels across, 3), uint8."""
    with style():
        canvas: Any = draw().canvas
        canvas.draw()
        return np.array(canvas.buffer_rgba())[..., :3].copy()


def write(path: str | os.PathLike[str], draw: Callable[[], Figure]) -> None:
    """Write what ``draw`` returns; equal figures give equal bytes, a failure leaves the old file.

    Raises:
        ParenvsError: another ending.
    """
    suffix = ending(path)
    with replacing(path) as stream:
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


def ending(path: str | os.PathLike[str]) -> str:
    """``".png"``, ``".svg"`` or ``".pdf"``, in lower case.

    Raises:
        ParenvsError: another ending.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _METADATA:
        raise ParenvsError(f"{os.fspath(path)}: a picture ends in {', '.join(_METADATA)}")
    return suffix


@dataclass(frozen=True)
class Page:
    """A figure with places given in inches, y from the top."""

    figure: Figure

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """New axes without spines."""
        box = (x / WIDTH, 1 - (y + height) / HEIGHT, width / WIDTH, height / HEIGHT)
        axes = self.figure.add_axes(box)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(length=3, width=0.7, color=QUIET, labelcolor=QUIET, labelsize=8.5)
        return axes

    def heading(
        self,
        title: str,
        verdict: Sequence[str],
        reasons: Sequence[str],
        legal: bool,
        font: float = 10.5,
        gap: float = 0.34,
        pitch: float = 0.19,
    ) -> float:
        """Write title, verdict and reasons from the upper left corner.

        Args:
            title: one line, cut where it is very long.
            verdict: the parts of the next line; of the next lines where one is too narrow.
            reasons: lines of their own, in red.
            legal: False writes the verdict in red, too.
            font: points of the verdict.
            gap: inches from the last line of the verdict to what follows.
            pitch: inches from one line of ``reasons`` to the next.

        Returns:
            Where the rest of the page may begin, inches from the top.
        """
        self._line(0.22, clip(title, _MOST_LETTERS), size=14, weight="bold", color=INK)
        ink = INK if legal else RED
        top, line = 0.56, ""
        # A part that would run off the page begins a new line.
        for part in verdict:
            longer = f"{line}{SEPARATOR}{part}" if line else part
            if line and text_inches(longer, font) > WIDTH - 2 * MARGIN:
                self._line(top, line, size=font, color=ink)
                top, longer = top + 0.23, part
            line = longer
        self._line(top, line, size=font, color=ink)
        top += gap
        for line in reasons:
            self._line(top, line, size=9, color=RED)
            top += pitch
        return top + 0.12

    def _line(self, top: float, words: str, size: float, **look: Any) -> None:
        position = (MARGIN / WIDTH, 1 - top / HEIGHT)
        text = self.figure.text(*position, words, size=size, va="top", **look)
        # A line that is still too long, by the font's true width, is made smaller.
        room = (WIDTH - 2 * MARGIN) * DPI
        text.set_fontsize(size * min(1.0, 0.98 * room / max(text.get_window_extent().width, 1.0)))


def reasons_shown(reasons: Sequence[str]) -> list[str]:
    """Why a plan is illegal, wrapped, as many lines as a page has room for."""
    wrapper = textwrap.TextWrapper(150, subsequent_indent="   ")
    lines = [line for reason in reasons for line in wrapper.wrap(printable(reason))]
    if len(lines) > _MOST_REASONS:
        hidden = len(lines) - _MOST_REASONS + 1
        lines[_MOST_REASONS - 1 :] = [f"and {hidden} lines more"]
    return lines


def text_inches(words: str, font: float, bold: bool = False) -> float:
    """Width of a text, estimated from its length (a little generous)."""
    return len(words) * font * (0.63 if bold else 0.54) / 72


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
