"""What can be said of every choice of a job before it is made: tables of ``ElasticPlan-v1``.

A library of plans is judged whole, once: changes from every plan to every other one, with whatever
happened to it; what may happen to every plan, by the rate of departures; and the best plan after
nodes have been lost or have come. Rows of an environment are gathered from these tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from parenvs.tasks.elastic.chances import plan_chances
from parenvs.tasks.elastic.course import MAX_NODES
from parenvs.tasks.elastic.library import (
    EVENTS,
    GONE,
    LOST,
    MAX_PLANS,
    MAX_SPARES,
    READY,
)
from parenvs.tasks.elastic.problem import Elastic

HORIZON = 10
"""Intervals in which a change has to pay off."""
DEGREES = 128.0
"""Degrees are shown as log2(1 + degree) over log2 of this."""
SHIFTS = (-1, -2, -4, 1, 2, 4)
"""Nodes lost and joined for which the best next plan is judged."""
RATES = np.geomspace(1e-4, 0.5, 96)
"""Probabilities that a node leaves in an interval, for which chances are worked out."""
_CUTS = np.sqrt(RATES[1:] * RATES[:-1])


class Chances(NamedTuple):
    """What may happen to plans in an interval, (len(RATES), 64) float32 each.

    Attributes:
        hit: a node in use leaves.
        stop: one does, and no spare is ready or a part of the state is lost.
        lost: a part of the state is lost.
    """

    hit: np.ndarray
    stop: np.ndarray
    lost: np.ndarray


class Outlook:
    """The tables of one library at one length of intervals.

    Args:
        problem: one with this library and this length.

    Attributes:
        library: the library.
        seconds: length of an interval.
        every: intervals between checkpoints.
        earned: (EVENTS, 64, 64) float64, see ``Elastic.earned``.
        lost_samples: (64,) float64.
        saved: (64,) float64.
        best: (65,) float64, samples of an interval of the fastest plan, by nodes.
        used, held: (64,) int64, nodes that train, and the same with spares.
        borders: (64, 65) int64, see ``Library.borders``; the last is repeated.
        fits: (65, 64) bool, whether nodes are enough for a plan.
        change: (EVENTS, 64, 64, 2) float32, seconds of a change over those of an interval, and
            bytes that the busiest node sends over those of the state.
        anew: (64,) float32, intervals of a restart that reads a checkpoint.
        save: intervals in which training waits for a checkpoint.
    """

    def __init__(self, problem: Elastic) -> None:
        self.library, self.seconds = library, seconds = problem.library, problem.seconds
        count, costs = len(library), library.costs
        self.count = count
        self.every, self.save = costs.every, costs.save / seconds
        self.earned = _padded(problem.earned, EVENTS, MAX_PLANS, MAX_PLANS)
        self.lost_samples = _padded(problem.lost_samples, MAX_PLANS)
        self.saved = _padded(problem.saved, MAX_PLANS)
        self.used, self.held = (_padded(x, MAX_PLANS) for x in (library.used, library.needed))
        borders = library.borders
        self.borders = np.zeros((MAX_PLANS, MAX_NODES + 1), dtype=np.int64)
        self.borders[:count] = borders[:, -1:]
        self.borders[:count, : borders.shape[1]] = borders
        self.fits = np.zeros((MAX_NODES + 1, MAX_PLANS), dtype=np.bool_)
        self.fits[:, :count] = library.needed <= np.arange(MAX_NODES + 1)[:, None]
        self.best = (self.fits[:, :count] * library.rate).max(axis=1) * seconds
        taken, egress = library.tables
        change = np.stack([taken / seconds, egress / library.state.bytes], axis=-1)
        self.change = _padded(change, EVENTS, MAX_PLANS, MAX_PLANS, 2).astype(np.float32)
        self.anew = self.change[0, 0, :, 0]

    @cached_property
    def plain(self) -> np.ndarray:
        """(64, 6) float32 of each plan: degrees, nodes, spares and rate."""
        library = self.library
        result = np.zeros((MAX_PLANS, 6))
        degrees = np.array([plan.degrees for plan in library.candidates])
        result[1 : self.count, :3] = np.log2(1.0 + degrees) / np.log2(DEGREES)
        result[: self.count, 3] = library.used / MAX_NODES
        result[: self.count, 4] = library.spares / MAX_SPARES
        result[: self.count, 5] = self.rate
        return result.astype(np.float32)

    @property
    def rate(self) -> np.ndarray:
        """(K,) samples a second over those of the fastest plan."""
        rate = self.library.rate
        return np.asarray(rate / rate.max())

    @cached_property
    def chances(self) -> Chances:
        """What may happen to each plan, by the rate of departures."""
        result = np.zeros((3, len(RATES), MAX_PLANS), dtype=np.float32)
        sizes = self.library.sizes
        column = [sizes.index(size) for size in sizes]  # equal sizes have equal chances
        for row, leave in enumerate(RATES.tolist()):
            for k, size in enumerate(sizes):
                if column[k] < k:
                    result[:, row, k] = result[:, row, column[k]]
                    continue
                likely = plan_chances(*size, leave).sum(axis=1)
                ready = likely[READY + 1 : GONE].sum()
                result[:, row, k] = likely[1:].sum(), likely[1:].sum() - ready, likely[GONE]
        return Chances(*result)

    @cached_property
    def after(self) -> np.ndarray:
        """(65, 64, 6) float32, the best net rate after ``SHIFTS``, by nodes now and plan.

        A plan's net rate is its samples a second without the seconds that the change to it takes of
        ``HORIZON`` intervals, over the rate of the fastest. Nodes that are lost are of the plan,
        and of as different parts of its state as there are.
        """
        count, library = self.count, self.library
        net = self.rate * np.maximum(1.0 - self.change[:, :count, :count, 0] / HORIZON, 0.0)
        best = np.zeros((EVENTS, count, MAX_NODES + 1))
        for nodes in range(MAX_NODES + 1):
            best[:, :, nodes] = (net * self.fits[nodes, :count]).max(axis=2)
        result = np.zeros((MAX_NODES + 1, MAX_PLANS, len(SHIFTS)), dtype=np.float32)
        now, plans = np.arange(MAX_NODES + 1), np.arange(count)
        for column, shift in enumerate(SHIFTS):
            event = np.zeros(count, dtype=np.int64)
            if shift < 0:
                event = np.where(library.spares >= -shift, READY - shift, min(-shift, LOST))
                safe = library.used - library.used // library.replicas
                event = np.where(-shift > safe, GONE, event)
                event[0] = 0
            later = np.clip(now + shift, 0, MAX_NODES)[:, None]
            result[:, :count, column] = best[event, plans, later] * (now + shift >= 0)[:, None]
        return result


def level(leave: np.ndarray) -> np.ndarray:
    """Return the number of the one of ``RATES`` that is nearest to probabilities, elementwise."""
    return np.searchsorted(_CUTS, leave)


_KEPT: dict[tuple[int, float], Outlook] = {}
_MAX_KEPT = 16


def outlook(problem: Elastic) -> Outlook:
    """Return the tables of a problem's library and interval; those of the last 16 are kept."""
    key = id(problem.library), problem.seconds  # the tables hold the library, so ids stay its own
    if key not in _KEPT:
        if len(_KEPT) == _MAX_KEPT:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[key] = Outlook(problem)
    return _KEPT[key]


def stacked(outlooks: Sequence[Outlook], name: str) -> np.ndarray:
    """Return an array of several outlooks, one below the other."""
    return np.stack([getattr(each, name) for each in outlooks])


def _padded(array: np.ndarray, *shape: int) -> np.ndarray:
    result = np.zeros(shape, dtype=array.dtype)
    result[tuple(slice(length) for length in array.shape)] = array
    return result
