"""What the label search over a ``PlanSpace`` works on: look-up tables, layers and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parenvs.agents.bounds import Columns
from parenvs.plan_space import PlanSpace


class SpaceTables:
    """What every search of one ``PlanSpace`` looks up.

    Attributes:
        seconds: (m+1,) float64, prefix sum of seconds at the boundaries of the points.
        backward: (m+1,) float64, of backward seconds.
        weights: (m+1,) float64, of parameter bytes.
        share: (u+1, u+1) float64, one over the devices from a unit to a later one.
        sync: (u+1, u+1) float64, seconds to synchronise a byte over them.
        near: (u+1, u+1) bool, they lie in one server.
        same: (u+1, u+1) int64, 1 if both units start in the same server.
        start: (S+1, m+1) int64, last unit from which the last k stages, from each point, fit.
        reach: (S+1, m+1) int64, first unit at which the first s stages, up to each point, can end.
    """

    def __init__(self, space: PlanSpace) -> None:
        """Look everything up once."""
        pipeline, devices = space.pipeline, space.devices
        cluster, server = pipeline.cluster, devices // pipeline.cluster.devices_per_server
        self.seconds = pipeline.seconds_sum[space.pivots]
        self.backward = pipeline.backward_sum[space.pivots]
        self.weights = pipeline.parameter_sum[space.pivots]
        first, end = devices[:, None], np.maximum(devices, devices[:, None] + 1)
        self.share = 1.0 / (end - first)
        self.sync = cluster.sync_seconds(np.ones(1), first, end, pipeline.sync)
        self.near = server[:, None] == (end - 1) // cluster.devices_per_server
        self.same = (server[:, None] == server).astype(np.int64)
        self.start = space.latest.max(axis=2).astype(np.int64)
        self.reach = np.full(self.start.shape, len(devices))
        self.reach[0, 0] = 0
        for s in range(1, space.stages + 1):
            k = space.stages - s + 1
            # A stage from its latest unit to the last start of what is behind it is as short as can
            # be: units have equal sizes, but for the last, which only the last stage holds.
            least = np.where(space.latest[k] < 0, len(devices), self.start[k - 1] - space.latest[k])
            end = (self.reach[s - 1][:, None] + least).min(axis=0)
            self.reach[s] = np.minimum(end, len(devices))


@dataclass
class Layer:
    """Suffixes of k stages, sorted by (same, unit, point).

    Attributes:
        same: (l,) int64, 1 if the stage before starts in the server of ``unit``, else 0.
        unit: (l,) int64, first unit.
        point: (l,) int64, first point.
        core: (l,) float64 seconds, the transfer in front included.
        tail: (l,) float64 seconds, likewise.
        parent: (l,) int64, label of the layer before that was extended.
    """

    same: np.ndarray
    unit: np.ndarray
    point: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray


@dataclass
class States:
    """The states that may be part of a plan: where the suffixes of a new layer start.

    Attributes:
        columns: what is known of them.
        unit: (s,) int64, first unit, ascending.
        point: (s,) int64, first point, ascending within a unit.
    """

    columns: Columns
    unit: np.ndarray
    point: np.ndarray


@dataclass
class Windows:
    """Labels that stages can reach: for each pair of a state and a unit d a range of labels.

    Attributes:
        state: (w,) int64, ascending.
        unit: (w,) int64, d.
        first: (w,) int64, the first of the labels.
        count: (w,) int64, their number.
    """

    state: np.ndarray
    unit: np.ndarray
    first: np.ndarray
    count: np.ndarray

    def blocks(self, pairs: int) -> Iterator[Windows]:
        """Parts of about so many pairs of state and label, with whole states."""
        if not len(self.state):
            return
        new = np.flatnonzero(np.append(True, self.state[1:] != self.state[:-1]))
        ends, total = np.append(new[1:], len(self.state)), np.add.reduceat(self.count, new).cumsum()
        at = 0
        while at < len(new):
            done = total[at - 1] if at else 0
            to = max(int(np.searchsorted(total, done + pairs, side="right")), at + 1)
            some = slice(new[at], ends[to - 1])
            yield Windows(self.state[some], self.unit[some], self.first[some], self.count[some])
            at = to


@dataclass
class Fresh:
    """Labels with a new stage in front, before its transfer, sorted by state.

    Attributes:
        state: (l,) int64, place in the states' columns.
        core: (l,) float64 seconds.
        tail: (l,) float64 seconds.
        parent: (l,) int64, label that was extended.
        near: (l,) bool, the stage lies in one server.
    """

    state: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray
    near: np.ndarray
