"""Plans pipelines with a trained network, in milliseconds and without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenvs.agents.pretrained.features import point_features, unit_features
from parenvs.agents.pretrained.outlook import outlook
from parenvs.agents.pretrained.situation import Situation
from parenvs.envs.pipeline_plan import observe
from parenvs.pipeline.batch import PointBatch
from parenvs.pipeline.points import POINTS, STAGES, UNITS, PointSpace


@dataclass(frozen=True)
class Turn:
    """What k episodes have to choose now; those that chose alike so far are in one situation.

    Attributes:
        kind: ``"points"`` or ``"units"``.
        rows: (r, features) float32 of the legal choices of d situations, one after the other.
        context: (d, CONTEXT) float32.
        masks: (d, n) bool, which columns are legal; r in all.
        owner: (k,) int64, the situation of each episode.
        episodes: (k,) int64, which episodes these are.
    """

    kind: str
    rows: np.ndarray
    context: np.ndarray
    masks: np.ndarray
    owner: np.ndarray
    episodes: np.ndarray

    @property
    def examples(self) -> np.ndarray:
        """(d,) int64, an episode that is in each situation."""
        return self.episodes[np.unique(self.owner, return_index=True)[1]]


Choose = Callable[[Turn], np.ndarray]
"""The column that each episode chooses, (k,) int64."""


@dataclass(frozen=True)
class Episodes:
    """Problems that are planned in step.

    Attributes:
        batch: b problems.
        constant: what their observations hold throughout.
        outlooks: (b, 8, 129, 65) int8.
    """

    batch: PointBatch
    constant: dict[str, np.ndarray]
    outlooks: np.ndarray

    @classmethod
    def of(cls, spaces: Sequence[PointSpace]) -> Episodes:
        """The problems of these spaces."""
        seen = [observe(space) for space in spaces]
        constant = {key: np.stack([s[key] for s in seen]) for key in seen[0]}
        return cls(PointBatch.stack(spaces), constant, np.stack([outlook(s) for s in seen]))

    def play(self, choose: Choose, problems: np.ndarray | None = None) -> tuple[Any, Any]:
        """(k, 7) points and (k, 7) units that ``choose`` chooses, one stage after the other.

        Args:
            choose: what to do.
            problems: (k,) int64, the problem of each episode; by default one of each.
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
    """Episodes on their way; ``node`` is equal for those that chose alike so far."""

    def __init__(self, episodes: Episodes, problems: np.ndarray) -> None:
        self.batch, self.constant = episodes.batch, episodes.constant
        self.outlooks, self.problems = episodes.outlooks, problems
        k = len(problems)
        self.cuts, self.units = np.zeros((2, k, STAGES - 1), np.int64)
        self.plan = np.full((k, 2, STAGES - 1), -1.0, dtype=np.float32)
        self.node = problems.astype(np.int64)

    def choose(self, choose: Choose, kind: str, stage: int, active: np.ndarray) -> None:
        """Let the active episodes choose."""
        _, first, owner = np.unique(self.node[active], return_index=True, return_inverse=True)
        some = active[first]
        masks = self._masks(kind, stage, some)
        chosen = choose(Turn(kind, *self._seen(kind, stage, some, masks), masks, owner, active))
        place, scale = (self.cuts, POINTS) if kind == "points" else (self.units, UNITS)
        place[active, stage] = chosen
        self.plan[active, int(kind == "units"), stage] = chosen / np.float32(scale)
        self.node[active] = owner * POINTS + chosen

    def _masks(self, kind: str, stage: int, some: np.ndarray) -> np.ndarray:
        problems, start = self.problems[some], stage - 1
        point, unit = np.zeros((2, len(some)), np.int64)
        if stage:
            point, unit = self.cuts[some, start], self.units[some, start]
        if kind == "points":
            return self.batch.legal_points(stage, point, unit, problems)
        return self.batch.legal_units(stage, point, unit, self.cuts[some, stage], problems)

    def _seen(
        self, kind: str, stage: int, some: np.ndarray, masks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows and context of the situations that the episodes ``some`` are in."""
        problems = self.problems[some]
        observation = {key: value[problems] for key, value in self.constant.items()}
        observation["plan"] = self.plan[some]
        observation["step"] = np.full(len(some), 2 * stage + (kind == "units"))
        behind = self.batch.stages[problems] - stage - 1
        observation["outlook"] = self.outlooks[problems, behind]
        situation = Situation(observation)
        owner, column = np.nonzero(masks)
        features = point_features if kind == "points" else unit_features
        rows = features(situation, owner, column).astype(np.float32)
        return rows, situation.context().astype(np.float32)


@dataclass(frozen=True)
class Draws:
    """Plans of one problem, the shortest first.

    Attributes:
        cuts: (k, S-1) int64, points.
        units: (k, S-1) int64.
        lengths: (k,) float64, in units of the bubble-free time.
    """

    cuts: np.ndarray
    units: np.ndarray
    lengths: np.ndarray


class PlanPolicy:
    """The network of ``network.RatingNetwork`` in NumPy.

    Args:
        weights: its parameters by name.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights = dict(weights)

    def ratings(self, turn: Turn) -> np.ndarray:
        """(d, n) float32, -inf where illegal; see ``network.Rater``."""

        def linear(name: str, x: np.ndarray) -> Any:
            y = x @ self.weights[f"{turn.kind}.{name}.weight"].T
            bias = self.weights.get(f"{turn.kind}.{name}.bias")
            return y if bias is None else y + bias

        count = turn.masks.sum(axis=1)
        owner, first = np.repeat(np.arange(len(count)), count), np.cumsum(count) - count
        h = np.maximum(linear("row", turn.rows) + linear("whole", turn.context)[owner], 0)
        mean = np.add.reduceat(h, first) / count[:, None].astype(np.float32)
        seen = [np.maximum.reduceat(h, first), mean, turn.context]
        common = linear("common", np.concatenate(seen, axis=1))
        h = np.maximum(linear("second", h) + common[owner], 0)
        h = np.maximum(linear("third", h), 0) + h
        result = np.full(turn.masks.shape, -np.inf, dtype=np.float32)
        result[turn.masks] = linear("out", h)[:, 0]
        return result

    def best(self, turn: Turn) -> np.ndarray:
        """The best rated choices, for ``Episodes.play``."""
        return self.ratings(turn).argmax(axis=1)[turn.owner]

    def drawing(self, rng: np.random.Generator, group: int) -> Choose:
        """Choices drawn with the probabilities that the ratings stand for.

        Of every ``group`` episodes, the first takes the best rated choices.
        """

        def choose(turn: Turn) -> np.ndarray:
            # The largest of the ratings with Gumbel's noise is drawn by the softmax.
            ratings = self.ratings(turn)[turn.owner]
            drawn = turn.episodes % group > 0
            noise = rng.gumbel(size=ratings.shape) * drawn[:, None]
            return (ratings + noise).argmax(axis=1)

        return choose

    def plan(self, space: PointSpace, draws: int, rng: np.random.Generator) -> Draws:
        """The shortest of the best rated plan and others drawn from the network.

        Args:
            space: the problem.
            draws: plans to choose from; 1: the best rated one alone.
            rng: generator of the draws.
        """
        episodes, problems = Episodes.of([space]), np.zeros(draws, np.int64)
        cuts, units = episodes.play(self.drawing(rng, draws), problems)
        lengths = episodes.lengths(cuts, units, problems)
        order, last = np.argsort(lengths, kind="stable"), space.stages - 1
        return Draws(cuts[order, :last], units[order, :last], lengths[order])

    def lengths(self, episodes: Episodes) -> np.ndarray:
        """(b,) lengths of its best rated plans, in units of the bubble-free time."""
        return episodes.lengths(*episodes.play(self.best))
