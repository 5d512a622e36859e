"""What a network learns from: each choice of a proven optimum beside all others that were legal.

JOINED: Generated problems with their proven optima: what the pretrained network learns from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parenvs.agents.exact.points import exact_points
from parenvs.agents.pretrained.policy import Episodes, Turn
from parenvs.datasets import generators
from parenvs.files import replacing
from parenvs.pipeline.points import STAGES, PointSpace


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


SECONDS = 60.0
"""Most of a search, some thousand times what one takes: so labels are the same on any machine."""


@dataclass(frozen=True)
class Labelled:
    """Problems, and the shortest plan of each.

    Attributes:
        episodes: b problems.
        cuts: (b, 7) int64, points; 0 behind the last cut.
        units: (b, 7) int64.
        lengths: (b,) float64, in units of the bubble-free time.
    """

    episodes: Episodes
    cuts: np.ndarray
    units: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, spaces: Sequence[PointSpace]) -> Labelled:
        """Solve the problems."""
        cuts, units = np.zeros((2, len(spaces), STAGES - 1), dtype=np.int64)
        for row, space in enumerate(spaces):
            answer, last = exact_points(space, time_limit=SECONDS), space.stages - 1
            cuts[row, :last] = np.searchsorted(space.pivots, answer.cuts)
            units[row, :last] = np.searchsorted(space.devices, answer.device_cuts)
        return cls._of_plans(spaces, cuts, units)

    @classmethod
    def _of_plans(cls, spaces: Sequence[PointSpace], cuts: np.ndarray, units: np.ndarray) -> Any:
        episodes = Episodes.of(spaces)
        return cls(episodes, cuts, units, episodes.lengths(cuts, units))


def labelled(
    seed: int, number: int, count: int, family: str | None = None, file: Path | None = None
) -> Labelled:
    """Part ``number`` of the training problems of a seed, the same whenever it is asked for.

    Args:
        seed: of the problems.
        number: the part.
        count: problems in it.
        family: problems of this family only.
        file: .npz that keeps the plans; written if it is not there.
    """
    rng = np.random.default_rng([seed, number])
    drawn = [generators.draw(rng, family) for _ in range(count)]
    spaces = [problem.space for problem in drawn]
    if file is not None and file.exists():
        with np.load(file) as kept:
            return Labelled._of_plans(spaces, kept["cuts"], kept["units"])
    part = Labelled.of(spaces)
    if file is not None:
        with replacing(file) as stream:
            np.savez_compressed(stream, cuts=part.cuts, units=part.units)
    return part
