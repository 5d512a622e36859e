"""Measures how far from proven optima an agent plans the problems of a set, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from parenvs.agents.heuristics.pipeline import even_cut
from parenvs.agents.pretrained.examples import OptimalPlans
from parenvs.datasets.instance_sets import load_set
from parenvs.pipeline.batch import PointBatch
from parenvs.pipeline.points import POINTS, STAGES, UNITS, PointSpace

VALIDATION = "plan-validation"
"""The set of problems that trainings are evaluated on."""
MaskedPolicy = Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray]
"""Gives (k,) actions for k observations of ``PipelinePlan-v0`` and their (k, 192) bool masks."""


@dataclass(frozen=True)
class Exam:
    """Problems with the lengths of their optimal plans.

    Attributes:
        spaces: the search spaces of the b problems.
        batch: the same problems as arrays.
        constant: the entries of their observations that never change, (b, ...).
        lengths: (b,) lengths of the optima over points, in units of the bubble-free time.
    """

    spaces: Sequence[PointSpace]
    batch: PointBatch
    constant: dict[str, np.ndarray]
    lengths: np.ndarray

    @classmethod
    def of(cls, spaces: Sequence[PointSpace]) -> Exam:
        """Solve the problems of these search spaces."""
        optima = OptimalPlans.of(spaces)
        return cls(spaces, optima.episodes.batch, optima.episodes.constant, optima.lengths)

    def play(self, choose: MaskedPolicy) -> tuple[np.ndarray, np.ndarray]:
        """Plan all problems with an agent.

        Args:
            choose: the agent; it is asked for the next action of all unfinished problems at once.

        Returns:
            the chosen points and the chosen units, (b, 7) int64 each; 0 behind the last cut.
        """
        b = len(self.spaces)
        starts = np.zeros(
            (2, b, STAGES), dtype=np.int64
        )  # point and unit that each stage starts on
        plan = np.full((b, 2, STAGES - 1), -1.0, dtype=np.float32)
        for step in range(2 * (int(self.batch.stages.max()) - 1)):
            stage, turn = divmod(step, 2)
            rows = np.flatnonzero(self.batch.stages - 1 > stage)
            masks = np.zeros((len(rows), POINTS + UNITS), dtype=bool)
            point, unit = starts[:, rows, stage]
            if turn:
                end = starts[0, rows, stage + 1]
                masks[:, POINTS:] = self.batch.legal_units(stage, point, unit, end, rows)
            else:
                masks[:, :POINTS] = self.batch.legal_points(stage, point, unit, rows)
            seen = {key: value[rows] for key, value in self.constant.items()}
            seen |= {"plan": plan[rows], "step": np.full(len(rows), step)}
            actions = choose(seen, masks) - turn * POINTS
            starts[turn, rows, stage + 1] = actions
            plan[rows, turn, stage] = actions / np.float32(UNITS if turn else POINTS)
        return starts[0, :, 1:], starts[1, :, 1:]

    def ratios(self, choose: MaskedPolicy) -> np.ndarray:
        """(b,) lengths of an agent's plans over the optima; infinite where a plan is illegal."""
        cuts, units = self.play(choose)
        plans = [
            space.plan(cuts[row, : space.stages - 1], units[row, : space.stages - 1])
            for row, space in enumerate(self.spaces)
        ]
        return self._judged(plans)

    def even(self) -> np.ndarray:
        """(b,) the same ratios of the even cut, which does not look at memory."""
        answers = [even_cut(space.pipeline) for space in self.spaces]
        return self._judged([(answer.cuts, answer.device_cuts) for answer in answers])

    def _judged(self, plans: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """(b,) lengths of plans, given as cuts and device cuts, over the optima."""
        pairs = zip(self.spaces, plans, strict=True)
        values = np.array([float(space.pipeline.values(*plan)) for space, plan in pairs])
        return np.where(values > 0, 1 / np.abs(values), np.inf) / self.lengths


@lru_cache
def exam(name: str = VALIDATION, count: int | None = None) -> Exam:
    """The exam of the set ``name``, or of its first ``count`` problems; solved once a process."""
    return Exam.of([problem.space for problem in load_set(name)[:count]])


def greedy(model: Any) -> MaskedPolicy:
    """Takes the legal actions that an agent of SB3 rates best."""
    return lambda seen, masks: model.predict(seen, action_masks=masks, deterministic=True)[0]


def at_random(rng: np.random.Generator) -> MaskedPolicy:
    """Draws legal actions uniformly."""
    return lambda seen, masks: np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)


def summary(ratios: np.ndarray) -> dict[str, float]:
    """Median and 95th percentile of the ratios of legal plans, and the share of illegal plans.

    Args:
        ratios: what ``Exam.ratios`` gives.

    Returns:
        ``median``, ``p95`` and ``illegal``, rounded to four digits.
    """
    legal = ratios[np.isfinite(ratios)]
    median, p95 = np.percentile(legal, (50, 95)) if legal.size else (np.inf, np.inf)
    return {
        "median": round(float(median), 4),
        "p95": round(float(p95), 4),
        "illegal": round(1 - legal.size / ratios.size, 4),
    }
