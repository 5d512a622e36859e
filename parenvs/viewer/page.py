"""What all parts of a picture share: the page, its measures in inches, and the colours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAGE_COLOURS = (
    "#3B75B5", "#E3A02B", "#2A9D84", "#A0569F", "#5FB3DE", "#A3A13A", "#4B4AA0", "#D3B77A",
)  # fmt: skip
"""Told apart with every common colour blindness; red is kept for what breaks a rule."""
INK, QUIET, TRACK, LINK, RED = "#222222", "#6B6B6B", "#F2F2F2", "#8A8A8A", "#C1121F"
WIDTH, HEIGHT, DPI = 12.8, 8.0, 100  # inches; 1280 x 800 pixels
LEFT, RIGHT, MEMORY = 1.75, 0.3, 2.35  # inches: margins, width of the memory panel
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
    """Matplotlib's defaults with ours on top, whatever the user has set; his return afterwards."""
    import matplotlib

    keep = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}
    settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_STYLE}
    with matplotlib.rc_context({k: v for k, v in settings.items() if k not in keep}):
        yield


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

    def text(self, x: float, y: float, words: str, **style: Any) -> None:
        """Words whose upper left corner is at (x, y)."""
        self.figure.text(x / WIDTH, 1 - y / HEIGHT, words, va="top", **style)


def text_inches(words: str, font: float, bold: bool = False) -> float:
    """Width of a text, estimated from its length (a little generous)."""
    return len(words) * font * (0.63 if bold else 0.54) / 72


def stage_colour(stage: int) -> str:
    """Colour of a compute stage."""
    return STAGE_COLOURS[stage % len(STAGE_COLOURS)]


def mix(colour: str, other: str, share: float) -> str:
    """``share`` of ``other`` and the rest of ``colour``."""
    parts = [(int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a * (1 - share) + b * share):02X}" for a, b in parts)


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on ``colour``."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return INK if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else "white"
