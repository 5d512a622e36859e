"""``Groups``: what plays each row of a game, where problems need parts of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from parenvs.core.game import EVERY, Rows

Part = TypeVar("Part")


class Groups(Generic[Part]):
    """The parts of a game of n episodes.

    Args:
        count: n.
        home: plays all rows that nothing else plays, and is kept.

    Attributes:
        home: the first part.
        only: whether it plays all rows.
    """

    def __init__(self, count: int, home: Part) -> None:
        self.home, self.only = home, True
        self._parts: list[Part] = [home]
        self._of = np.zeros(count, dtype=np.int64)

    def give(self, rows: Rows, is_its: Callable[[Part], bool], make: Callable[[], Part]) -> None:
        """Let the part play rows that answers to ``is_its``; it is made if there is none."""
        number = next((i for i, part in enumerate(self._parts) if is_its(part)), None)
        if number is None:
            number = len(self._parts)
            self._parts.append(make())
        self._of[rows] = number
        self.only = not self._of.any()
        if self.only:
            del self._parts[1:]

    def part(self, row: int) -> Part:
        """Return the part that plays a row."""
        return self._parts[self._of[row]]

    def of(self, rows: Rows) -> list[tuple[Part, Rows, Rows]]:
        """Return the parts of some rows: each part, its rows, and where these are among them."""
        if self.only:
            return [(self.home, rows, EVERY)]
        indices = np.arange(len(self._of))[rows]
        numbers = self._of[indices]
        groups: list[tuple[Part, Rows, Rows]] = []
        for number in np.unique(numbers).tolist():
            positions = np.flatnonzero(numbers == number)
            groups.append((self._parts[number], indices[positions], positions))
        return groups
