"""What a network learns from: each choice of a proven optimum beside all others that were legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from parenvs.agents.plan_labels import Labelled
from parenvs.agents.plan_policy import Turn


@dataclass
class Lessons:
    """Choices of one kind, as tensors.

    Attributes:
        kind: ``"points"`` or ``"units"``.
        rows: (r, features) float32 of what was legal, one choice after the other.
        context: (b, CONTEXT) float32.
        count: (b,) int64, rows of each choice.
        right: (b,) int64, which of its rows the optimum takes.
    """

    kind: str
    rows: torch.Tensor
    context: torch.Tensor
    count: torch.Tensor
    right: torch.Tensor

    @classmethod
    def of(cls, turn: Turn, columns: np.ndarray) -> Lessons:
        """The choices of a turn; in the optimum they are these ``columns``, (b,)."""
        before = np.arange(turn.masks.shape[1]) < columns[:, None]
        right = (turn.masks & before).sum(axis=1)
        arrays = (turn.rows, turn.context, turn.masks.sum(axis=1), right)
        return cls(turn.kind, *map(torch.from_numpy, arrays))

    @classmethod
    def join(cls, parts: Sequence[Lessons]) -> Lessons:
        """All of them together; of one kind."""
        columns = zip(*((x.rows, x.context, x.count, x.right) for x in parts), strict=True)
        return cls(parts[0].kind, *map(torch.cat, columns))


def lessons(part: Labelled) -> tuple[Lessons, Lessons]:
    """The choices of points and those of units in all plans of a part."""
    made: list[Lessons] = []

    def choose(turn: Turn) -> np.ndarray:
        labels = part.cuts if turn.kind == "points" else part.units
        stage = len(made) // 2
        made.append(Lessons.of(turn, labels[turn.examples, stage]))
        return labels[turn.episodes, stage]

    part.episodes.play(choose)
    return Lessons.join(made[::2]), Lessons.join(made[1::2])
