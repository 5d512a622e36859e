"""A text with colors as a picture, as a terminal shows it: a frame takes milliseconds."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

import numpy as np

_HIGH, _WIDE = 20, 10  # pixels of a character
_LINES, _COLUMNS = 40, 112
# Of a pixel each; such letters are as wide as a character.
_POINTS = 16.6
_COLOR = re.compile(r"\x1b\[(?:38;5;(\d+)|0)m")
# Of red, green and blue in the palette of terminals.
_LEVELS = (0, 95, 135, 175, 215, 255)


def picture(text: str) -> np.ndarray:
    """Return a text of ``parenvs.view.text`` as an array of shape (800, 1120, 3), uint8."""
    frame = np.full((_LINES, _HIGH, _COLUMNS, _WIDE, 3), 255, np.uint8)
    lines = text.split("\n")
    if len(lines) > _LINES - 2:
        lines[_LINES - 3 :] = ["…"]
    for row, line in enumerate(lines, 1):
        column = 1
        for number, words in enumerate(_COLOR.split(line)):
            if number % 2:
                color = words
                continue
            for character in words[: _COLUMNS - column]:
                if character != " ":
                    frame[row, :, column] = _glyph(character, color if number else None)
                column += 1
    return frame.reshape(_LINES * _HIGH, _COLUMNS * _WIDE, 3)


@cache
def _glyph(character: str, color: str | None) -> np.ndarray:
    """(20, 10, 3) uint8, a character in one of the 256 colors of terminals, or in black."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    red, rest = divmod(int(color or 16) - 16, 36)
    ink = [_LEVELS[x] / 255 for x in (red, *divmod(rest, 6))]
    figure = Figure((_WIDE / 72, _HIGH / 72), dpi=72)
    canvas: Any = FigureCanvasAgg(figure)
    look: Any = {"family": "DejaVu Sans Mono", "size": _POINTS, "parse_math": False}
    figure.text(0, 0.25, character, color=ink, **look)
    with warnings.catch_warnings():  # a character that the font lacks is a box
        warnings.simplefilter("ignore")
        canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]
