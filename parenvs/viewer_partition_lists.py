"""The lists of a partition picture: variables in no layer, and batch inputs."""

from __future__ import annotations

from collections.abc import Sequence

from parenvs.partition_grid import Cell, Group
from parenvs.viewer_page import QUIET, text_inches
from parenvs.viewer_partition_cells import FONT, PIXEL, Sheet, shape_words, shortened, whole

_LINE = 0.22  # inches from one line to the next
_PITCHES = (0.2, 0.16, 0.13, 0.1, 0.08, 0.06, 0.05)  # of cells without names, inches


class Lists:
    """Variables in no layer and batch inputs: a line a group, each cell with its name beside it.

    What would take more lines than there is room for becomes a field of cells without names.

    Args:
        groups: the variables.
        inputs: the batch inputs.
        width: inches.
        room: most inches of height.
        rest: whether there are tables, too.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        inputs: Sequence[Cell],
        width: float,
        room: float,
        rest: bool,
    ) -> None:
        self.width, self.room = width, room
        named = [(group.title or "top level", list(group.cells)) for group in groups]
        last = [("batch inputs", [(cell.path, cell) for cell in inputs])] if inputs else []
        self.margin = min(
            max((text_inches(shortened(t, 20), FONT) for t, _ in named + last), default=0) + 0.15,
            1.5,
        )
        self.lines: list[tuple[str, list[tuple[float, str, Cell]]]] = []
        self.field: list[Cell] = []
        self.title = "other variables" if rest else "variables"
        for shapes in (True, False):
            self.lines = self._flow(named, shapes) + self._flow(last, shapes)
            if len(self.lines) * _LINE <= room:
                break
        else:
            self.field = [cell for _, held in named for _, cell in held]
            self.lines = self._flow(last, False)
            if len(self.lines) > 3:
                self.field += [cell for _, held in last for _, cell in held]
                self.title += " and inputs"
                self.lines = []
            self.margin = max(self.margin, text_inches(self.title, FONT) + 0.15)
        self.height = len(self.lines) * _LINE
        if self.field:
            self.height += self._arrange(room - self.height - 0.15) + 0.15

    def _flow(
        self, named: list[tuple[str, list[tuple[str, Cell]]]], shapes: bool
    ) -> list[tuple[str, list[tuple[float, str, Cell]]]]:
        """Lines: title, and places, words and cells."""
        lines: list[tuple[str, list[tuple[float, str, Cell]]]] = []
        for title, held in named:
            x = self.width
            for name, cell in held:
                words = shortened(name, 30)
                wide = 0.2 + text_inches(words, FONT) + 0.2
                if shapes:
                    wide += text_inches(f"  {shape_words(cell)}", FONT, bold=True)
                    words += f"  {shape_words(cell)}"
                if x + wide > self.width:
                    first = not lines or x == self.width
                    lines.append((shortened(title, 20) if first else "", []))
                    x = self.margin
                lines[-1][1].append((x, words, cell))
                x += wide
        return lines

    def _arrange(self, height: float) -> float:
        """Pitch of the field, cells in a row, variables that one cell stands for; its height."""
        width, count = self.width - self.margin, len(self.field)
        for self.pitch in _PITCHES:
            self.across = int(width / self.pitch)
            down = max(int(height / self.pitch), 1)
            if self.across * down >= count:
                break
        self.each = -(-count // (self.across * down))
        return max(-(-count // (self.each * self.across)) * self.pitch, 3 * 0.16)

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        """Draw them."""
        left, y = whole(left), whole(top)
        if self.field:
            sheet.text(left, y + 0.08, self.title, color=QUIET)
            sheet.text(left, y + 0.24, f"{len(self.field):,}", color=QUIET)
            if self.each > 1:
                sheet.text(left, y + 0.4, f"{self.each} a cell", color=QUIET)
            starts = range(0, len(self.field), self.each)
            for k, start in enumerate(starts):
                down, across = divmod(k, self.across)
                x = whole(left + self.margin) + across * self.pitch
                side = self.pitch - PIXEL
                held = self.field[start : start + self.each]
                sheet.cell(x, y + down * self.pitch, side, side, held)
            y = whole(top + self.height - len(self.lines) * _LINE)
        for title, items in self.lines:
            sheet.text(left, y + 0.07, title, color=QUIET)
            for x, words, cell in items:
                sheet.cell(whole(left + x), y, 0.14, 0.14, [cell])
                sheet.text(left + x + 0.2, y + 0.07, words)
            y += _LINE
