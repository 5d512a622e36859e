"""Generated problems with their proven optima: what the pretrained network learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.exact_points import exact_points
from parenvs.agents.plan_policy import Episodes
from parenvs.datasets import generators
from parenvs.files import replacing
from parenvs.plan_space import STAGES, PlanSpace

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
    def of(cls, spaces: Sequence[PlanSpace]) -> Labelled:
        """Solve the problems."""
        cuts, units = np.zeros((2, len(spaces), STAGES - 1), dtype=np.int64)
        for row, space in enumerate(spaces):
            answer, last = exact_points(space, time_limit=SECONDS), space.stages - 1
            cuts[row, :last] = np.searchsorted(space.pivots, answer.cuts)
            units[row, :last] = np.searchsorted(space.devices, answer.device_cuts)
        return cls._of_plans(spaces, cuts, units)

    @classmethod
    def _of_plans(cls, spaces: Sequence[PlanSpace], cuts: np.ndarray, units: np.ndarray) -> Any:
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
