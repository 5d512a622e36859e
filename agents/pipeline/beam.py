"""Beam search over a ``PointSpace``: stage by stage, the most promising beginnings stay."""

from __future__ import annotations

import time

import numpy as np

from parenvs.agents.learning.pretrained.features import lookahead
from parenvs.agents.learning.pretrained.policy import Episodes
from parenvs.agents.learning.pretrained.situation import Situation
from parenvs.core.answer import Answer
from parenvs.tasks.pipeline.points import POINTS, UNITS, PointSpace

WIDTH = 16
"""Default number of beginnings that stay."""


def beam(space: PointSpace, width: int = WIDTH) -> Answer:
    """The shortest plan that a beam search finds; it fits the memory.

    A beginning is the first cuts of a plan. Beginnings are compared by ``lookahead``, an estimate
    of the length if the rest is balanced as well as its bottlenecks allow; for the last cut, it
    gives the length itself.

    Args:
        space: the problem.
        width: number of beginnings that stay after each stage.
    """
    begin = time.perf_counter()
    episodes = Episodes.of([space])
    batch, last = episodes.batch, space.stages - 1
    cuts, units = np.zeros((2, 1, episodes.outlooks.shape[1] - 1), dtype=np.int64)
    evaluations = 0
    for stage in range(last):
        point, unit = (starts[:, max(stage - 1, 0)] for starts in (cuts, units))
        problems = np.zeros(len(cuts), dtype=np.int64)
        owner, end = np.nonzero(batch.legal_points(stage, point, unit, problems))
        estimates = lookahead(_situation(episodes, cuts, units, stage), owner, end)
        estimate = estimates[1 if stage == last - 1 else 0]
        legal = batch.legal_units(stage, point[owner], unit[owner], end, problems[owner])
        estimate = np.where(legal[:, : estimate.shape[1]], estimate, np.inf)
        legal_count = int(legal.sum())
        evaluations += legal_count
        beam_places = np.argsort(estimate, axis=None, kind="stable")[: min(width, legal_count)]
        row, end_unit = np.unravel_index(beam_places, estimate.shape)
        cuts, units = cuts[owner[row]], units[owner[row]]
        cuts[:, stage], units[:, stage] = end[row], end_unit
    lengths = batch.lengths(cuts, units, np.zeros(len(cuts), dtype=np.int64))
    best = int(lengths.argmin())
    plan = space.plan(cuts[best, :last], units[best, :last])
    length = float(space.pipeline.length(*plan))
    seconds = time.perf_counter() - begin
    return Answer(
        problem=space.pipeline,
        plan=space.pipeline.plan(*plan),
        cost=length,
        method="beam",
        evaluations=evaluations,
        seconds=seconds,
    )


def _situation(episodes: Episodes, cuts: np.ndarray, units: np.ndarray, stage: int) -> Situation:
    """The beginnings as the environment shows them when the next point is to be chosen.

    Args:
        episodes: the problem.
        cuts: (k, s) int64 points; the first ``stage`` of them are chosen.
        units: (k, s) int64 units likewise.
        stage: number of cuts that are chosen.
    """
    k = len(cuts)
    plan = np.full((k, 2, cuts.shape[1]), -1.0, dtype=np.float32)
    plan[:, 0, :stage] = cuts[:, :stage] / np.float32(POINTS)
    plan[:, 1, :stage] = units[:, :stage] / np.float32(UNITS)
    behind = int(episodes.batch.stages[0]) - stage - 1
    observation = {key: value.repeat(k, axis=0) for key, value in episodes.constant.items()}
    observation["outlook"] = episodes.outlooks[:, behind].repeat(k, axis=0)
    return Situation({**observation, "plan": plan, "step": np.full(k, 2 * stage)})
