"""Examples to imitate: each choice of a proven optimum beside all choices that were legal there.

``draw_optimal_plans`` draws problems and solves them, ``examples_of`` turns the plans into tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from parenvs.agents.learning.pretrained.policy import Episodes, Turn
from parenvs.agents.pipeline.points import exact_points
from parenvs.datasets.pipeline import generators
from parenvs.errors import ParenvsError, one_line
from parenvs.files import replacing
from parenvs.graph.checks.npz import UNREADABLE, read_arrays
from parenvs.tasks.pipeline.points import STAGES, PointSpace

SECONDS = 60.0
"""Time limit of each search, about a thousand times what one takes: it never decides a plan, so the
plans are the same on any machine."""


@dataclass(frozen=True)
class OptimalPlans:
    """Problems with the shortest plan of each.

    Attributes:
        episodes: the b problems.
        cuts: (b, 7) int64, the points at which stages start; 0 behind the last cut.
        units: (b, 7) int64, the units on which stages start; 0 behind the last cut.
        lengths: (b,) float64, lengths of the plans in units of the bubble-free time.
    """

    episodes: Episodes
    cuts: np.ndarray
    units: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, spaces: Sequence[PointSpace]) -> OptimalPlans:
        """Solve the problems of these search spaces."""
        cuts, units = np.zeros((2, len(spaces), STAGES - 1), dtype=np.int64)
        for row, space in enumerate(spaces):
            answer, last = exact_points(space, time_limit=SECONDS), space.stages - 1
            cuts[row, :last] = np.searchsorted(space.pivots, answer.plan.cuts)
            units[row, :last] = np.searchsorted(space.devices, answer.plan.device_cuts)
        return cls._of_plans(spaces, cuts, units)

    @classmethod
    def _of_plans(
        cls, spaces: Sequence[PointSpace], cuts: np.ndarray, units: np.ndarray
    ) -> OptimalPlans:
        """The problems with plans that are known already."""
        episodes = Episodes.of(spaces)
        return cls(episodes, cuts, units, episodes.lengths(cuts, units))


def draw_optimal_plans(
    seed: int, number: int, count: int, family: str | None = None, file: Path | None = None
) -> OptimalPlans:
    """Draw a part of the training problems that belong to a seed, and solve it.

    Equal arguments give equal problems and plans.

    Args:
        seed: seed of the problems.
        number: number of the part.
        count: number of problems in the part.
        family: draw problems of this family only.
        file: an .npz that holds the plans; if it does not exist, it is written.
    """
    rng = np.random.default_rng([seed, number])
    problems = [generators.draw(rng, family) for _ in range(count)]
    spaces = [problem.space for problem in problems]
    if file is not None and file.exists():
        return _kept(file, spaces)
    part = OptimalPlans.of(spaces)
    if file is not None:
        with replacing(file) as stream:
            np.savez_compressed(stream, cuts=part.cuts, units=part.units)
    return part


def _kept(file: Path, spaces: Sequence[PointSpace]) -> OptimalPlans:
    """The problems of a part with the plans that were written.

    Raises:
        ParenvsError: the file is damaged, or of another part.
    """
    try:
        arrays = read_arrays(file)
        cuts, units = (arrays[name].astype(np.int64, casting="safe") for name in ("cuts", "units"))
        if cuts.shape != (len(spaces), STAGES - 1) or units.shape != cuts.shape:
            raise ValueError(f"no plans of {len(spaces)} problems")
        if min(cuts.min(initial=0), units.min(initial=0)) < 0:
            raise ValueError("negative numbers of points")
        return OptimalPlans._of_plans(spaces, cuts, units)
    except (*UNREADABLE, IndexError) as error:
        raise ParenvsError(f"{file}: damaged ({one_line(error)}); remove it") from None


@dataclass
class Examples:
    """Choices of one kind as tensors, each with the row that the optimum takes.

    Attributes:
        kind: ``"points"`` or ``"units"``.
        rows: (r, features) float32, a row per legal alternative, one choice after the other.
        context: (b, CONTEXT) float32, numbers that all alternatives of a choice share.
        count: (b,) int64, number of rows of each choice; they add up to r.
        right: (b,) int64, which of its rows the optimum takes.
    """

    kind: str
    rows: torch.Tensor
    context: torch.Tensor
    count: torch.Tensor
    right: torch.Tensor

    @classmethod
    def of(cls, turn: Turn, columns: np.ndarray) -> Examples:
        """The choices of a turn, in which the optimum takes ``columns``, (b,) int64."""
        before = np.arange(turn.masks.shape[1]) < columns[:, None]
        right = (turn.masks & before).sum(axis=1)
        arrays = (turn.rows, turn.context, turn.masks.sum(axis=1), right)
        return cls(turn.kind, *map(torch.from_numpy, arrays))

    @classmethod
    def join(cls, parts: Sequence[Examples]) -> Examples:
        """Concatenate examples; all must have the same ``kind``."""
        columns = zip(*((x.rows, x.context, x.count, x.right) for x in parts), strict=True)
        return cls(parts[0].kind, *map(torch.cat, columns))


def examples_of(plans: OptimalPlans) -> tuple[Examples, Examples]:
    """Every choice of a point, and every choice of a unit, that leads to the optimal plans."""
    by_turn: list[Examples] = []

    def choose(turn: Turn) -> np.ndarray:
        optimal = plans.cuts if turn.kind == "points" else plans.units
        stage = len(by_turn) // 2  # in each stage a turn of points and one of units
        by_turn.append(Examples.of(turn, optimal[turn.examples, stage]))
        return optimal[turn.episodes, stage]

    plans.episodes.play(choose)
    return Examples.join(by_turn[::2]), Examples.join(by_turn[1::2])
