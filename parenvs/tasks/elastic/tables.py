"""Problems in arrays of one size, as policies of the leaderboard see and play them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from parenvs.tasks.elastic.course import MAX_NODES
from parenvs.tasks.elastic.library import MAX_PLANS, MAX_SPARES, Library
from parenvs.tasks.elastic.problem import Elastic

PLAN_COLUMNS = ("tensor", "pipeline", "data", "nodes", "spares", "rate")
"""Columns of the observation's ``plans``: log2(1 + degree) / 7 of T, P and D, nodes that train over
64, spares over 2, samples a second over those of the fastest candidate."""
CHANGE_COLUMNS = ("seconds", "bytes", "current")
"""Columns of the observation's ``change``, from the plan in force and what happened to it: seconds
of the change over an interval, at most 1; bytes that the busiest node sends over those of the
state; 1 for the plan in force."""
DEGREES = 128.0
"""Degrees are observed as log2(1 + degree) over log2 of this."""


class Tables(NamedTuple):
    """Problems as ``Turns`` plays them; rows of the arrays are (library, interval length).

    Attributes:
        problems: (P,) the problems.
        row: (P,) int64, row of each problem.
        ideal: (P,) float64, see ``Elastic.ideal``.
        earned: (L, EVENTS, 64, 64) float64, see ``Elastic.earned``.
        lost_samples: (L, 64) float64.
        saved: (L, 64) float64.
        best: (L, 65) float64, samples of an interval of the fastest plan, by nodes.
        every: (L,) int64, intervals between checkpoints.
        used: (L, 64) int64, nodes of each plan that train.
        held: (L, 64) int64, the same with its spares.
        borders: (L, 64, G+1) int64, see ``Library.borders``.
        fits: (L, 65, 65) int8, whether nodes are enough for a plan; the last column is no action.
        plans: (L, 64, 6) float32, the observation.
        change: (L, EVENTS, 64, 64, 3) float32, the observation, by event and plan in force.
    """

    problems: tuple[Elastic, ...]
    row: np.ndarray
    ideal: np.ndarray
    earned: np.ndarray
    lost_samples: np.ndarray
    saved: np.ndarray
    best: np.ndarray
    every: np.ndarray
    used: np.ndarray
    held: np.ndarray
    borders: np.ndarray
    fits: np.ndarray
    plans: np.ndarray
    change: np.ndarray

    @classmethod
    def of(cls, problems: Sequence[Elastic]) -> Tables:
        """Make the arrays of some problems."""
        rows: dict[tuple[int, float], Elastic] = {}
        slots = []
        for problem in problems:
            key = (id(problem.library), problem.seconds)
            rows.setdefault(key, problem)
            slots.append(list(rows).index(key))
        firsts = list(rows.values())
        libraries = [problem.library for problem in firsts]
        width = max(library.borders.shape[1] for library in libraries)
        nodes = np.arange(MAX_NODES + 1)[:, None]
        fits = np.zeros((len(firsts), MAX_NODES + 1, MAX_PLANS + 1), dtype=np.int8)
        best = np.zeros((len(firsts), MAX_NODES + 1))
        for i, (problem, library) in enumerate(zip(firsts, libraries, strict=True)):
            fits[i, :, : len(library)] = library.needed <= nodes
            best[i] = (fits[i, :, : len(library)] * library.rate).max(axis=1) * problem.seconds
        return cls(
            tuple(problems),
            np.array(slots),
            np.array([problem.ideal for problem in problems]),
            _stack([problem.earned for problem in firsts], MAX_PLANS, MAX_PLANS),
            _stack([problem.lost_samples for problem in firsts], MAX_PLANS),
            _stack([problem.saved for problem in firsts], MAX_PLANS),
            best,
            np.array([library.costs.every for library in libraries]),
            _stack([library.used for library in libraries], MAX_PLANS),
            _stack([library.needed for library in libraries], MAX_PLANS),
            _stack([_widened(library.borders, width) for library in libraries], MAX_PLANS, width),
            fits,
            _stack([_plans(library) for library in libraries], MAX_PLANS, len(PLAN_COLUMNS)),
            _stack([_change(x) for x in firsts], MAX_PLANS, MAX_PLANS, len(CHANGE_COLUMNS)),
        )


def _stack(arrays: Sequence[np.ndarray], *shape: int) -> np.ndarray:
    """Stack arrays, with their last axes filled up with zeros to a shape."""
    first = arrays[0]
    front = first.shape[: first.ndim - len(shape)]
    result = np.zeros((len(arrays), *front, *shape), dtype=first.dtype)
    for i, array in enumerate(arrays):
        index: Any = (i, *(slice(length) for length in array.shape))
        result[index] = array
    return result


def _widened(borders: np.ndarray, width: int) -> np.ndarray:
    """Repeat the end of every plan's nodes up to a width."""
    return np.pad(borders, ((0, 0), (0, width - borders.shape[1])), mode="edge")


def _plans(library: Library) -> np.ndarray:
    """Return what is observed of the plans themselves, (K, 6) float32; the one that waits is 0."""
    degrees = [plan.degrees for plan in library.candidates]
    result = np.zeros((len(library), len(PLAN_COLUMNS)))
    result[1:, :3] = np.log2(1.0 + np.array(degrees)) / np.log2(DEGREES)
    result[:, 3] = library.used / MAX_NODES
    result[:, 4] = library.spares / MAX_SPARES
    result[:, 5] = library.rate / library.rate.max()
    return np.minimum(result, 1.0).astype(np.float32)


def _change(problem: Elastic) -> np.ndarray:
    """Return what is observed of changes, (EVENTS, K, K, 3) float32."""
    library = problem.library
    seconds, egress = library.tables
    result = np.zeros((*seconds.shape, len(CHANGE_COLUMNS)), dtype=np.float32)
    result[..., 0] = np.minimum(seconds / problem.seconds, 1.0)
    result[..., 1] = np.minimum(egress / library.state.bytes, 1.0)
    result[..., 2] = np.eye(len(library))
    return result
