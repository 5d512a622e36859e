"""Plans pipelines with a trained network, in milliseconds and without torch.

An *episode* plans one problem; many are played in step, and those of a problem that have made the
same choices so far share a situation, which the network rates once. Shapes: k episodes, b problems,
d situations, r rows of features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from parenvs.agents.learning.pretrained.features import (
    POINT_FEATURES,
    UNIT_FEATURES,
    point_features,
    unit_features,
)
from parenvs.agents.learning.pretrained.outlook import outlook
from parenvs.agents.learning.pretrained.situation import CONTEXT, Situation
from parenvs.core.plan import ILLEGAL
from parenvs.errors import ParenvsError, one_line
from parenvs.graph.checks.npz import UNREADABLE, read_arrays
from parenvs.tasks.pipeline.batch import PointBatch
from parenvs.tasks.pipeline.game.tables import observe
from parenvs.tasks.pipeline.points import POINTS, UNITS, PointSpace
from parenvs.tasks.pipeline.problem import Pipeline


@dataclass(frozen=True)
class Turn:
    """A choice that k episodes have to make now, in d situations.

    Attributes:
        kind: ``"points"`` or ``"units"``.
        rows: (r, features) float32 of the legal choices, one situation after the other.
        context: (d, CONTEXT) float32, features that all choices of a situation share.
        masks: (d, n) bool, which points or units are legal; r of them in all.
        owner: (k,) int64, the situation of each episode.
        episodes: (k,) int64, the numbers of the episodes.
    """

    kind: str
    rows: np.ndarray
    context: np.ndarray
    masks: np.ndarray
    owner: np.ndarray
    episodes: np.ndarray

    @property
    def examples(self) -> np.ndarray:
        """(d,) int64, the number of an episode that is in each situation."""
        return self.episodes[np.unique(self.owner, return_index=True)[1]]


Choose = Callable[[Turn], np.ndarray]
"""Gives the point or unit that each episode of a turn chooses, (k,) int64."""


@dataclass(frozen=True)
class Episodes:
    """Problems that are planned in step.

    Attributes:
        batch: b problems.
        constant: the arrays of their observations that never change, by name, (b, ...) each.
        outlooks: (b, stages, 129, 65) int8, the table of ``outlook`` of each problem, for as many
            stages as ``batch`` is padded to.
    """

    batch: PointBatch
    constant: dict[str, np.ndarray]
    outlooks: np.ndarray

    @classmethod
    def of(cls, spaces: Sequence[PointSpace]) -> Episodes:
        """The problems of these spaces."""
        observations = [observe(space) for space in spaces]
        constant = {key: np.stack([row[key] for row in observations]) for key in observations[0]}
        batch = PointBatch.stack(spaces)
        stages = batch.starts.shape[1] - 1
        outlooks = np.stack([outlook(observation, stages) for observation in observations])
        return cls(batch, constant, outlooks)

    def play(self, choose: Choose, problems: np.ndarray | None = None) -> tuple[Any, Any]:
        """Play k episodes, one stage after the other.

        Args:
            choose: makes the choices.
            problems: (k,) int64, the problem of each episode (default: one episode of each).

        Returns:
            The points and the units of the cuts, (k, stages - 1) int64 each, for as many stages as
            ``batch`` is padded to; 0 behind the last cut.
        """
        if problems is None:
            problems = np.arange(len(self.batch))
        run = _Run(self, problems)
        for stage in range(int(self.batch.stages[problems].max()) - 1):
            active = np.flatnonzero(self.batch.stages[problems] - 1 > stage)
            run.choose(choose, "points", stage, active)
            run.choose(choose, "units", stage, active)
        return run.cuts, run.units

    def lengths(
        self, cuts: np.ndarray, units: np.ndarray, problems: np.ndarray | None = None
    ) -> np.ndarray:
        """(k,) lengths of plans that ``play`` returned, in units of the bubble-free time."""
        return self.batch.lengths(cuts, units, problems)


class _Run:
    """Episodes under way.

    Attributes:
        cuts, units: (k, stages - 1) int64, chosen so far.
        plan: (k, 2, stages - 1) float32, the same as the environment shows it.
        node: (k,) int64, equal for episodes that are in one situation.
    """

    def __init__(self, episodes: Episodes, problems: np.ndarray) -> None:
        self.batch, self.constant = episodes.batch, episodes.constant
        self.outlooks, self.problems = episodes.outlooks, problems
        k, most = len(problems), episodes.outlooks.shape[1] - 1
        self.cuts, self.units = np.zeros((2, k, most), np.int64)
        self.plan = np.full((k, 2, most), -1.0, dtype=np.float32)
        self.node = problems.astype(np.int64)

    def choose(self, choose: Choose, kind: str, stage: int, active: np.ndarray) -> None:
        """Let the active episodes choose a point or unit.

        Args:
            choose: makes the choices.
            kind: ``"points"`` or ``"units"``.
            stage: number of the cut, from 0.
            active: numbers of the episodes.
        """
        _, first, owner = np.unique(self.node[active], return_index=True, return_inverse=True)
        examples = active[first]
        masks = self._masks(kind, stage, examples)
        features = self._features(kind, stage, examples, masks)
        chosen = choose(Turn(kind, *features, masks, owner, active))
        choices, scale = (self.cuts, POINTS) if kind == "points" else (self.units, UNITS)
        choices[active, stage] = chosen
        self.plan[active, int(kind == "units"), stage] = chosen / np.float32(scale)
        self.node[active] = owner * POINTS + chosen

    def _masks(self, kind: str, stage: int, examples: np.ndarray) -> np.ndarray:
        """(d, n) bool, the legal choices in the situations of the episodes ``examples``, (d,)."""
        problems = self.problems[examples]
        point, unit = np.zeros((2, len(examples)), np.int64)
        if stage:
            point, unit = self.cuts[examples, stage - 1], self.units[examples, stage - 1]
        if kind == "points":
            return self.batch.legal_points(stage, point, unit, problems)
        return self.batch.legal_units(stage, point, unit, self.cuts[examples, stage], problems)

    def _features(
        self, kind: str, stage: int, examples: np.ndarray, masks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """``Turn.rows`` and ``Turn.context`` of the situations of the episodes ``examples``."""
        problems = self.problems[examples]
        observation = {key: value[problems] for key, value in self.constant.items()}
        observation["plan"] = self.plan[examples]
        observation["step"] = np.full(len(examples), 2 * stage + (kind == "units"))
        behind = self.batch.stages[problems] - stage - 1
        observation["outlook"] = self.outlooks[problems, behind]
        situation = Situation(observation)
        owner, column = np.nonzero(masks)
        features_of = point_features if kind == "points" else unit_features
        rows = features_of(situation, owner, column).astype(np.float32)
        return rows, situation.context().astype(np.float32)


@dataclass(frozen=True)
class Draws:
    """Plans of one problem, the shortest first.

    Attributes:
        cuts: (k, S-1) int64, points of the cuts.
        units: (k, S-1) int64, units of the cuts.
        lengths: (k,) float64, in units of the bubble-free time.
    """

    cuts: np.ndarray
    units: np.ndarray
    lengths: np.ndarray


def shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the parameters of ``network.RatingNetwork`` of some width."""
    found: dict[str, tuple[int, ...]] = {}
    for kind, features in (("points", POINT_FEATURES), ("units", UNIT_FEATURES)):
        layers = {
            "row.weight": (hidden, features), "row.bias": (hidden,),
            "whole.weight": (hidden, CONTEXT), "common.weight": (hidden, 2 * hidden + CONTEXT),
            "second.weight": (hidden, hidden), "second.bias": (hidden,),
            "third.weight": (hidden, hidden), "third.bias": (hidden,),
            "out.weight": (1, hidden), "out.bias": (1,),
        }  # fmt: skip
        found |= {f"{kind}.{name}": shape for name, shape in layers.items()}
    return found


class PlanPolicy:
    """Runs ``network.RatingNetwork`` in NumPy.

    Args:
        weights: the network's parameters by name.
    """

    env_id: ClassVar[str] = "PipelinePlan-v0"
    """The environment that it plays."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights = dict(weights)

    @classmethod
    def load(cls, path: str | Path) -> PlanPolicy:
        """Read weights that a training wrote, such as ``fused-policy.npz``.

        Raises:
            ParenvsError: there is no such file, it is damaged, or the arrays are none of a
                ``RatingNetwork``.
        """
        try:
            weights = read_arrays(path)
            wanted = shapes(len(weights["points.row.bias"]))
            wrong = [
                name for name in wanted.keys() | weights.keys()
                if name not in weights or weights[name].shape != wanted.get(name)
            ]  # fmt: skip
            finite = all(np.isfinite(array).all() for array in weights.values())
            if wrong or not finite:
                words = f"array {min(wrong)!r}" if wrong else "a number that is not finite"
                raise ValueError(f"{words} does not belong to such a network")
        except UNREADABLE as error:
            raise ParenvsError(f"{path}: no weights of a planner ({one_line(error)})") from None
        return cls(weights)

    def ratings(self, turn: Turn) -> np.ndarray:
        """(d, n) float32 ratings as by ``network.Rater``, -inf for illegal choices."""

        def linear(name: str, x: np.ndarray) -> Any:
            y = x @ self.weights[f"{turn.kind}.{name}.weight"].T
            bias = self.weights.get(f"{turn.kind}.{name}.bias")
            return y if bias is None else y + bias

        count = turn.masks.sum(axis=1)
        owner, first = np.repeat(np.arange(len(count)), count), np.cumsum(count) - count
        h = np.maximum(linear("row", turn.rows) + linear("whole", turn.context)[owner], 0)
        mean = np.add.reduceat(h, first) / count[:, None].astype(np.float32)
        shared = [np.maximum.reduceat(h, first), mean, turn.context]
        common = linear("common", np.concatenate(shared, axis=1))
        h = np.maximum(linear("second", h) + common[owner], 0)
        h = np.maximum(linear("third", h), 0) + h
        result = np.full(turn.masks.shape, -np.inf, dtype=np.float32)
        result[turn.masks] = linear("out", h)[:, 0]
        return result

    def best(self, turn: Turn) -> np.ndarray:
        """The best rated choices, for ``Episodes.play``."""
        return self.ratings(turn).argmax(axis=1)[turn.owner]

    def drawing(self, rng: np.random.Generator, group: int) -> Choose:
        """Draw choices with the softmax of the ratings as probabilities, for ``Episodes.play``.

        Args:
            rng: generator of the draws.
            group: episodes whose number is a multiple of it take the best rated choices.
        """

        def choose(turn: Turn) -> np.ndarray:
            # With Gumbel noise added, a rating is the largest with the softmax's probability.
            ratings = self.ratings(turn)[turn.owner]
            draws = turn.episodes % group > 0
            noise = rng.gumbel(size=ratings.shape) * draws[:, None]
            return (ratings + noise).argmax(axis=1)

        return choose

    def plan(self, space: PointSpace, draws: int, rng: np.random.Generator) -> Draws:
        """The best rated plan and others drawn from the network, the shortest first.

        Args:
            space: the problem.
            draws: number of plans; 1: the best rated one alone.
            rng: generator of the draws.
        """
        episodes, problems = Episodes.of([space]), np.zeros(draws, np.int64)
        cuts, units = episodes.play(self.drawing(rng, draws), problems)
        lengths = episodes.lengths(cuts, units, problems)
        order, last = np.argsort(lengths, kind="stable"), space.stages - 1
        return Draws(cuts[order, :last], units[order, :last], lengths[order])

    def lengths(self, episodes: Episodes) -> np.ndarray:
        """(b,) lengths of the best rated plans, in units of the bubble-free time."""
        return episodes.lengths(*episodes.play(self.best))

    def values(self, spaces: Sequence[PointSpace]) -> np.ndarray:
        """(b,) returns of the best rated plans in ``PipelinePlan-v0``; ``ILLEGAL`` without one."""
        values = 1 / self.lengths(Episodes.of(list(spaces)))
        return np.where(np.isfinite(values) & (values > 0), values, ILLEGAL)

    def values_of(self, problems: Sequence[Pipeline]) -> np.ndarray:
        """(b,) returns of the best rated plans of problems, see ``values``."""
        return self.values([PointSpace.build(problem) for problem in problems])
