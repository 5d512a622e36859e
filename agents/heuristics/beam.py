"""Beam search over a ``PointSpace``: stage by stage, the most promising plans are kept."""

from __future__ import annotations

import time

import numpy as np

from parenvs.agents.answer import Answer
from parenvs.agents.pretrained.features import lookahead
from parenvs.agents.pretrained.policy import Episodes
from parenvs.agents.pretrained.situation import Situation
from parenvs.pipeline.points import POINTS, STAGES, UNITS, PointSpace

WIDTH = 16


def beam(space: PointSpace, width: int = WIDTH) -> Answer:
    """The shortest plan that a beam of that width finds; it fits the memory.

    Beginnings are compared by ``lookahead``: the length, if the rest can be balanced
    as well as its bottlenecks allow; the last cut is compared by the length itself.

    Args:
        space: the problem.
        width: beginnings that are kept.
    """
    begin = time.perf_counter()
    episodes = Episodes.of([space])
    batch, last = episodes.batch, space.stages - 1
    cuts, units = np.zeros((2, 1, STAGES - 1), dtype=np.int64)
    evaluations = 0
    for stage in range(last):
        point, unit = (x[:, stage - 1] if stage else x[:, 0] for x in (cuts, units))
        one = np.zeros(len(cuts), dtype=np.int64)
        owner, end = np.nonzero(batch.legal_points(stage, point, unit, one))
        estimate = lookahead(_situation(episodes, cuts, units, stage), owner, end)
        lengths = estimate[1 if stage == last - 1 else 0]
        legal = batch.legal_units(stage, point[owner], unit[owner], end, one[owner])
        lengths = np.where(legal[:, : lengths.shape[1]], lengths, np.inf)
        evaluations += int(legal.sum())
        kept = np.argsort(lengths, axis=None, kind="stable")[: min(width, int(legal.sum()))]
        row, unit = np.unravel_index(kept, lengths.shape)
        cuts, units = cuts[owner[row]], units[owner[row]]
        cuts[:, stage], units[:, stage] = end[row], unit
    found = batch.lengths(cuts, units, np.zeros(len(cuts), dtype=np.int64))
    best = int(found.argmin())
    plan = space.plan(cuts[best, :last], units[best, :last])
    length = float(space.pipeline.length(*plan))
    seconds = time.perf_counter() - begin
    return Answer(*plan, length, "beam", evaluations=evaluations, seconds=seconds)


def _situation(episodes: Episodes, cuts: np.ndarray, units: np.ndarray, stage: int) -> Situation:
    """The beginnings as the environment shows them when the next point is due."""
    k = len(cuts)
    plan = np.full((k, 2, STAGES - 1), -1.0, dtype=np.float32)
    plan[:, 0, :stage] = cuts[:, :stage] / np.float32(POINTS)
    plan[:, 1, :stage] = units[:, :stage] / np.float32(UNITS)
    behind = int(episodes.batch.stages[0]) - stage - 1
    observation = {key: value.repeat(k, axis=0) for key, value in episodes.constant.items()}
    observation["outlook"] = episodes.outlooks[:, behind].repeat(k, axis=0)
    return Situation({**observation, "plan": plan, "step": np.full(k, 2 * stage)})
