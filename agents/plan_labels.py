"""Generated problems with their proven optima: what the pretrained network first learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parenvs.agents.exact_points import exact_points
from parenvs.agents.plan_policy import Episodes
from parenvs.datasets import generators
from parenvs.plan_space import STAGES, PlanSpace

SECONDS = 2.0
"""Most of a search; the best plan found is the label of the few problems that take longer."""


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
    def of(cls, spaces: Sequence[PlanSpace], seconds: float = SECONDS) -> Labelled:
        """Solve the problems, each for at most so many seconds."""
        cuts, units = np.zeros((2, len(spaces), STAGES - 1), dtype=np.int64)
        lengths = np.empty(len(spaces))
        for row, space in enumerate(spaces):
            answer = exact_points(space, time_limit=seconds)
            last = space.stages - 1
            cuts[row, :last] = np.searchsorted(space.pivots, answer.cuts)
            units[row, :last] = np.searchsorted(space.devices, answer.device_cuts)
            lengths[row] = answer.length / space.pipeline.bubble_free
        return cls(Episodes.of(spaces), cuts, units, lengths)


def labelled(seed: int, number: int, count: int, family: str | None = None) -> Labelled:
    """Part ``number`` of the training problems of a seed, the same whenever it is asked for."""
    rng = np.random.default_rng([seed, number])
    drawn = [generators.draw(rng, family) for _ in range(count)]
    return Labelled.of([problem.space for problem in drawn])
