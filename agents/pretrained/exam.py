"""How far from proven optima an agent plans the problems of a set, all of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from parenvs.agents.heuristics.pipeline import even_cut
from parenvs.agents.pretrained.examples import Labelled
from parenvs.datasets.instance_sets import load_set
from parenvs.pipeline.batch import PointBatch
from parenvs.pipeline.judge import plan_values
from parenvs.pipeline.points import POINTS, STAGES, UNITS, PointSpace

VALIDATION = "plan-validation"
Choose = Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray]
"""(k,) actions, of observations of ``PipelinePlan-v0`` and (k, 192) bool masks."""


@dataclass(frozen=True)
class Exam:
    """Problems with the lengths of their optimal plans.

    Attributes:
        spaces: b problems.
        batch: the same as arrays.
        constant: what their observations hold throughout.
        lengths: (b,) of the optima over points, in units of the bubble-free time.
    """

    spaces: Sequence[PointSpace]
    batch: PointBatch
    constant: dict[str, np.ndarray]
    lengths: np.ndarray

    @classmethod
    def of(cls, spaces: Sequence[PointSpace]) -> Exam:
        """Solve these problems."""
        solved = Labelled.of(spaces)
        return cls(spaces, solved.episodes.batch, solved.episodes.constant, solved.lengths)

    def play(self, choose: Choose) -> tuple[np.ndarray, np.ndarray]:
        """(b, 7) points and (b, 7) units that ``choose`` chooses; 0 behind the last."""
        b = len(self.spaces)
        chosen = np.zeros((2, b, STAGES), dtype=np.int64)  # where each stage starts
        plan = np.full((b, 2, STAGES - 1), -1.0, dtype=np.float32)
        for step in range(2 * (int(self.batch.stages.max()) - 1)):
            stage, turn = divmod(step, 2)
            who = np.flatnonzero(self.batch.stages - 1 > stage)
            masks = np.zeros((len(who), POINTS + UNITS), dtype=bool)
            point, unit = chosen[:, who, stage]
            if turn:
                end = chosen[0, who, stage + 1]
                masks[:, POINTS:] = self.batch.legal_units(stage, point, unit, end, who)
            else:
                masks[:, :POINTS] = self.batch.legal_points(stage, point, unit, who)
            seen = {key: value[who] for key, value in self.constant.items()}
            seen |= {"plan": plan[who], "step": np.full(len(who), step)}
            actions = choose(seen, masks) - turn * POINTS
            chosen[turn, who, stage + 1] = actions
            plan[who, turn, stage] = actions / np.float32(UNITS if turn else POINTS)
        return chosen[0, :, 1:], chosen[1, :, 1:]

    def ratios(self, choose: Choose) -> np.ndarray:
        """(b,) lengths of plans over those of the optima; infinite where the judge refuses one."""
        cuts, units = self.play(choose)
        plans = [
            space.plan(cuts[row, : space.stages - 1], units[row, : space.stages - 1])
            for row, space in enumerate(self.spaces)
        ]
        return self._judged(plans)

    def even(self) -> np.ndarray:
        """(b,) the same of the even cut, which knows no memory."""
        answers = [even_cut(space.pipeline, space.stages) for space in self.spaces]
        return self._judged([(answer.cuts, answer.device_cuts) for answer in answers])

    def _judged(self, plans: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        pairs = zip(self.spaces, plans, strict=True)
        values = np.array([float(plan_values(space.pipeline, *plan)) for space, plan in pairs])
        return np.where(values > 0, 1 / np.abs(values), np.inf) / self.lengths


@lru_cache
def exam(name: str = VALIDATION, most: int | None = None) -> Exam:
    """The exam of a set, or of so many problems of it."""
    return Exam.of([problem.space for problem in load_set(name)[:most]])


def greedy(model: Any) -> Choose:
    """The best rated legal actions of an agent."""
    return lambda seen, masks: model.predict(seen, action_masks=masks, deterministic=True)[0]


def at_random(rng: np.random.Generator) -> Choose:
    """Legal actions, all alike."""
    return lambda seen, masks: np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)


def summary(ratios: np.ndarray) -> dict[str, float]:
    """Median and 95th percentile of the plans that are legal, and the share of those that are not.

    Args:
        ratios: of ``Exam``.
    """
    legal = ratios[np.isfinite(ratios)]
    median, p95 = np.percentile(legal, (50, 95)) if legal.size else (np.inf, np.inf)
    return {
        "median": round(float(median), 4),
        "p95": round(float(p95), 4),
        "illegal": round(1 - legal.size / ratios.size, 4),
    }
