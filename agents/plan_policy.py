"""Plans pipelines with a trained network, in milliseconds and without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenvs.agents.plan_features import Situation, point_features, unit_features
from parenvs.plan_batch import PlanBatch
from parenvs.plan_observation import observe
from parenvs.plan_space import STAGES, UNITS, PlanSpace
from parenvs.points import POINTS

Choose = Callable[[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""``choose(kind, rows, context, masks, active)``: the chosen row of each problem, (b,)."""


@dataclass(frozen=True)
class Episodes:
    """Problems that are planned in step.

    Attributes:
        batch: b problems.
        constant: what their observations hold throughout.
    """

    batch: PlanBatch
    constant: dict[str, np.ndarray]

    @classmethod
    def of(cls, spaces: Sequence[PlanSpace]) -> Episodes:
        """One episode of each problem."""
        seen = [observe(space) for space in spaces]
        constant = {key: np.stack([s[key] for s in seen]) for key in seen[0]}
        return cls(PlanBatch.stack(spaces), constant)

    def take(self, index: np.ndarray) -> Episodes:
        """Episodes of the problems of an index array, which may name one several times."""
        constant = {key: value[index] for key, value in self.constant.items()}
        return Episodes(self.batch.take(index), constant)

    def play(self, choose: Choose) -> tuple[np.ndarray, np.ndarray]:
        """(b, 7) points and (b, 7) units that ``choose`` chooses, one stage after the other."""
        batch, b = self.batch, len(self.batch)
        cuts, units = np.zeros((b, STAGES - 1), np.int64), np.zeros((b, STAGES - 1), np.int64)
        plan = np.full((b, 2, STAGES - 1), -1.0, dtype=np.float32)
        point, unit = np.zeros(b, np.int64), np.zeros(b, np.int64)
        for stage in range(int(batch.stages.max()) - 1):
            active = np.flatnonzero(batch.stages - 1 > stage)
            masks = batch.legal_points(stage, point, unit)
            end = point.copy()
            end[active] = self._chosen("points", choose, plan, 2 * stage, masks, active)
            plan[active, 0, stage] = end[active] / np.float32(POINTS)
            masks = batch.legal_units(stage, point, unit, end)
            unit = unit.copy()
            unit[active] = self._chosen("units", choose, plan, 2 * stage + 1, masks, active)
            plan[active, 1, stage] = unit[active] / np.float32(UNITS)
            point = end
            cuts[:, stage], units[:, stage] = point, unit
        return cuts, units

    def _chosen(
        self, kind: str, choose: Choose, plan: np.ndarray, step: int, masks: np.ndarray,
        active: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """What is chosen where the episode is not over."""
        observation = {key: value[active] for key, value in self.constant.items()}
        steps = np.full(len(active), step)
        situation = Situation({**observation, "plan": plan[active], "step": steps})
        rows = point_features(situation) if kind == "points" else unit_features(situation)
        rows, context = rows.astype(np.float32), situation.context().astype(np.float32)
        return choose(kind, rows, context, masks[active, : rows.shape[1]], active)


class PlanPolicy:
    """The network of ``plan_network.PlanNetwork`` in NumPy.

    Args:
        weights: its parameters by name.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights = dict(weights)

    def ratings(
        self, kind: str, rows: np.ndarray, context: np.ndarray, masks: np.ndarray
    ) -> np.ndarray:
        """(b, n) float32, -inf where illegal; see ``plan_network.Rater``."""

        def linear(name: str, x: np.ndarray) -> Any:
            y = x @ self.weights[f"{kind}.{name}.weight"].T
            bias = self.weights.get(f"{kind}.{name}.bias")
            return y if bias is None else y + bias

        legal = masks[:, :, None]
        h = np.maximum(linear("row", rows) + linear("whole", context)[:, None], 0)
        seen = h * legal
        mean = seen.sum(axis=1) / np.maximum(legal.sum(axis=1), 1)
        common = linear("common", np.concatenate([seen.max(axis=1), mean, context], axis=1))
        h = np.maximum(linear("second", h) + common[:, None], 0)
        h = np.maximum(linear("third", h), 0) + h
        return np.where(masks, linear("out", h)[:, :, 0], -np.inf)

    def best(
        self, kind: str, rows: np.ndarray, context: np.ndarray, masks: np.ndarray, _: np.ndarray
    ) -> np.ndarray:
        """The best rated rows, for ``Episodes.play``."""
        return self.ratings(kind, rows, context, masks).argmax(axis=1)

    def lengths(self, episodes: Episodes) -> np.ndarray:
        """(b,) lengths of its plans, in units of the bubble-free time."""
        return episodes.batch.lengths(*episodes.play(self.best))

    def plans(self, spaces: Sequence[PlanSpace]) -> tuple[np.ndarray, np.ndarray]:
        """The best rated choices, one after the other: (b, 7) points and (b, 7) units."""
        return Episodes.of(spaces).play(self.best)
