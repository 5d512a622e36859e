"""What hindsight would still earn, for many courses at once: what regrets are measured from.

It is the recursion of ``parenvs.tasks.elastic.references.hindsight``, in float32 over a batch of
courses, with the tables of the environment.
"""

from __future__ import annotations

import numpy as np

from parenvs.tasks.elastic.course import Course
from parenvs.tasks.elastic.library import GONE, MAX_PLANS, happened
from parenvs.tasks.elastic.tables import Tables

BLOCK = 64
"""Courses at a time."""


def remaining(tables: Tables, row: np.ndarray, course: Course, length: np.ndarray) -> np.ndarray:
    """Return the most samples that can be earned from each state on, with the course known.

    Args:
        tables: of the problems.
        row: (n,) row of the tables of each course.
        course: the courses, with an axis n in front.
        length: (n,) intervals of each episode.

    Returns:
        (n, S+1, 64, C) float32, by interval, plan in force, and intervals since the state was safe.
        What happened to the plan before the interval is the course's.
    """
    count, intervals = course.nodes.shape
    result = np.zeros((count, intervals + 1, MAX_PLANS, int(tables.every.max())), dtype=np.float32)
    for library in np.unique(row):
        matching = np.flatnonzero(row == library)
        for first in range(0, len(matching), BLOCK):
            who = matching[first : first + BLOCK]
            part = _of_library(
                tables, int(library), course.nodes[who], course.lost[who], length[who]
            )
            result[who, :, :, : part.shape[3]] = part
    return result


def _of_library(
    tables: Tables, library: int, nodes: np.ndarray, lost: np.ndarray, length: np.ndarray
) -> np.ndarray:
    """Return ``remaining`` of courses of one row of the tables."""
    count, intervals = nodes.shape
    every, plans = int(tables.every[library]), np.arange(MAX_PLANS)
    change = tables.earned[library].astype(np.float32)
    change[0, plans[1:], plans[1:]] = -np.inf  # to keep a plan is no change
    change = change.reshape(-1, MAX_PLANS)
    unchanged = np.diagonal(tables.earned[library, 0])[:, None] - np.where(
        np.arange(every) == every - 1, tables.saved[library][:, None], 0.0
    )
    unchanged, since = unchanged.astype(np.float32), np.arange(every, dtype=np.float32)
    gone_samples = tables.lost_samples[library].astype(np.float32)
    events = _events(tables, library, lost)
    result = np.zeros((count, intervals + 1, MAX_PLANS, every), dtype=np.float32)
    for t in range(intervals - 1, -1, -1):
        after, event = result[:, t + 1], events[:, t]
        fits = tables.fits[library, nodes[:, t], :MAX_PLANS] > 0
        options = change[event * MAX_PLANS + plans]
        options += np.where(fits, after[:, :, 0], -np.inf)[:, None]
        moved = options.max(axis=2)[:, :, None]
        moved = moved - np.where(event == GONE, gone_samples, np.float32(0))[:, :, None] * since
        keep = unchanged + np.roll(after, -1, axis=2)
        keep[~fits | (event > 0)] = -np.inf
        keep[:, 0] = -np.inf
        result[:, t] = np.where((t < length)[:, None, None], np.maximum(keep, moved), 0.0)
    return result


def _events(tables: Tables, library: int, lost: np.ndarray) -> np.ndarray:
    """Return what happens to each plan before each interval, (n, S, 64) int64."""
    result = np.zeros((*lost.shape[:2], MAX_PLANS), dtype=np.int64)
    hit = np.nonzero(lost[:, :, -1])
    rows = lost[hit]
    columns = (tables.used, tables.held, tables.borders)
    events = np.zeros((len(rows), MAX_PLANS), dtype=np.int64)
    for plan in np.flatnonzero(tables.held[library] < lost.shape[2]):
        each = (column[library, plan] for column in columns)
        args = (np.broadcast_to(x, (len(rows), *x.shape)) for x in each)
        events[:, plan] = happened(rows, *args)
    result[hit] = events
    return result
