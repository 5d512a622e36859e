"""The label search of ``parenvs.agents.exact.label_search`` over a ``PointSpace``.

Labels, recursion and bounds are the same. With at most 128 points nearly all the time of a search
goes into starting array operations, so that here a layer is one ragged array: for each state (point
i, unit e) and each later unit d, the labels that start at (j, d) and that a stage [i, j) can reach.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parenvs.agents.exact.bounds import SLACK, Bounds, Columns, Prefixes
from parenvs.agents.exact.label_search import OutOfTimeError
from parenvs.agents.exact.labels import not_beaten, pareto
from parenvs.cluster import same_server
from parenvs.pipeline import formulas
from parenvs.pipeline.points import PointSpace


class SpaceTables:
    """What every search of one ``PointSpace`` looks up.

    Attributes:
        seconds: (m+1,) float64, prefix sum of seconds at the boundaries of the points.
        backward: (m+1,) float64, of backward seconds.
        weights: (m+1,) float64, of parameter bytes.
        share: (u+1, u+1) float64, seconds of a second's work on the devices from a unit to a later
            one.
        sync: (u+1, u+1) float64, seconds to synchronise a byte over them.
        near: (u+1, u+1) bool, they lie in one server.
        same: (u+1, u+1) int64, 1 if both units start in the same server.
        start: (S+1, m+1) int64, last unit from which the last k stages, from each point, fit.
        reach: (S+1, m+1) int64, first unit at which the first s stages, up to each point, can end.
    """

    def __init__(self, space: PointSpace) -> None:
        """Look everything up once."""
        pipeline, devices = space.pipeline, space.devices
        cluster, per_server = pipeline.cluster, pipeline.cluster.devices_per_server
        self.seconds = pipeline.seconds_sum[space.pivots]
        self.backward = pipeline.backward_sum[space.pivots]
        self.weights = pipeline.parameter_sum[space.pivots]
        first, end = devices[:, None], np.maximum(devices, devices[:, None] + 1)
        self.share = formulas.compute_seconds(1.0, end - first)
        self.sync = cluster.sync_seconds(np.ones(1), first, end, pipeline.sync)
        self.near = same_server(first, end, per_server)
        self.same = same_server(first, devices + 1, per_server).astype(np.int64)
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


_BLOCK = 25_000  # pairs of state and label handled at once: such arrays stay in the cache


class PointSearch:
    """Finds the shortest plan of a ``PointSpace`` below ``upper``, or proves that there is none.

    Attributes:
        best: (points, units) of the cuts of the best plan found, each (S-1,), or None.
        upper: its length (rounded labels: a lower bound of it), or the incumbent's that was given.
        bound: proven lower bound for plans over the points; ``upper`` after a run that ended.
        evaluations: labels that were made.
    """

    def __init__(
        self,
        space: PointSpace,
        tables: SpaceTables,
        points: np.ndarray,
        upper: float,
        deadline: float = np.inf,
        blocks: int = 0,
        most: float = np.inf,
        grid: float = 0.0,
    ) -> None:
        """Prepare.

        Args:
            space: the problem.
            tables: of the space.
            points: where to cut, ascending.
            upper: look for plans shorter than this, seconds.
            deadline: give up at this ``time.perf_counter()``.
            blocks: blocks of points for ``parenvs.agents.exact.bounds.Prefixes``; 0: without them.
            most: give up before a layer with more pairs of state and label than this.
            grid: seconds to whose multiples core and tail of labels are rounded down; with it there
                are fewer labels, ``upper`` is a lower bound, and the plan is longer than it.
        """
        self.space, self.tables, self.points = space, tables, points
        self.upper, self.deadline, self.most, self.grid = upper, deadline, most, grid
        self.best: tuple[np.ndarray, np.ndarray] | None = None
        self.bound, self.evaluations = 0.0, 0
        self._layers: list[Layer] = []
        self._bounds = Bounds(space.pipeline, space.stages)
        if blocks and space.stages > 2:
            pivots, budget = space.pivots[points], upper * (1.0 - SLACK)
            self._bounds.prefixes = Prefixes(
                space.pipeline, space.stages, pivots, budget, blocks, space.devices
            )

    def run(self) -> bool:
        """Search; True if the search space was exhausted, False if the search gave up."""
        m, u = len(self.space.pivots) - 1, len(self.space.devices) - 1
        zero, one = np.zeros(1), np.ones(1, dtype=np.int64)
        self._layers = [Layer(one - 1, one * u, one * m, zero, zero, one)]
        try:
            for k in range(1, self.space.stages):
                layer, bound = self._extend(k, self._layers[-1])
                self._layers.append(layer)
                # Every plan passes through the layer; those that were dropped reach the incumbent.
                self.bound = max(self.bound, min(bound, self.upper))
        except OutOfTimeError:
            return False
        self.bound = self.upper
        return True

    def _extend(self, k: int, labels: Layer) -> tuple[Layer, float]:
        """Put a stage in front of all labels: the new layer, and the least length through it.

        The last layer is completed and stays empty.
        """
        states = self._states(k)
        windows = self._windows(labels, states)
        if windows.count.sum() > self.most:
            raise OutOfTimeError
        tables = self.tables
        sums = [x[labels.point] for x in (tables.seconds, tables.backward, tables.weights)]
        nothing, zero = np.zeros(0, dtype=np.int64), np.zeros(0)
        parts: list[tuple[np.ndarray, ...]] = [(nothing, nothing, zero, zero, nothing)]
        least = np.inf
        for block in windows.blocks(_BLOCK):
            if time.perf_counter() > self.deadline:
                raise OutOfTimeError
            fresh = self._stage(k, labels, sums, states, block)
            if k == self.space.stages - 1:
                self._complete(states, fresh)
                continue
            for same in (False, True):
                front = self._transfer(states, fresh, same)
                flag = np.full_like(front.state, same)
                parts.append((flag, front.state, front.core, front.tail, front.parent))
                least = min(least, self._least_length(states, front))
        flags, state, core, tail, parent = (np.concatenate(x) for x in zip(*parts, strict=True))
        self.evaluations += len(state)
        order = np.argsort(flags * len(states.unit) + state, kind="stable")
        state = state[order]
        unit, point = states.unit[state], states.point[state]
        return Layer(flags[order], unit, point, core[order], tail[order], parent[order]), least

    def _states(self, k: int) -> States:
        """Where the last k stages may start."""
        space, front = self.space, self.space.stages - k
        units = np.arange(front, len(space.devices) - k)[:, None]
        fits = self.tables.start[k][self.points] >= units
        fits &= self.tables.reach[front][self.points] <= units
        e, i = np.nonzero(fits)
        devices, pivots = space.devices[e + front], space.pivots[self.points[i]]
        columns = self._bounds.columns(k, devices, pivots, self.upper)
        unit = np.searchsorted(space.devices, columns.device)
        return States(columns, unit, np.searchsorted(space.pivots, columns.pivot))

    def _windows(self, labels: Layer, states: States) -> Windows:
        """The labels that stages from each state on can reach within its limits."""
        tables, units, ends = self.tables, len(self.space.devices), len(self.space.pivots)
        keys = (labels.same * units + labels.unit) * ends + labels.point
        place = np.searchsorted(keys, np.arange(2 * units * ends + 1))
        later = np.unique(labels.unit)
        state, d = np.nonzero(later > states.unit[:, None])
        d = later[d]
        unit, point = states.unit[state], states.point[state]
        # Stages that are longer, or that take longer to synchronise, break a limit.
        columns, m = states.columns, self.space.pipeline.micro_batches
        most = (
            (columns.core_limit - columns.least_transfer(True))[state] / tables.share[unit, d] / m
        )
        most += columns.seconds[state] + SLACK * tables.seconds[-1]
        last = np.searchsorted(tables.seconds, most, side="right")
        most = (columns.sum_limit - columns.least_transfer(True) / 2)[state]
        sync = tables.sync[unit, d]
        most = np.divide(most, sync, out=np.full(len(most), np.inf), where=sync > 0)
        most += tables.weights[point] + SLACK * tables.weights[-1]
        last = np.minimum(last, np.searchsorted(tables.weights, most, side="right"))
        begin = (tables.same[unit, d] * units + d) * ends
        first = place[begin + point + 1]
        count = place[begin + last] - first
        some = np.flatnonzero(count > 0)
        return Windows(state[some], d[some], first[some], count[some])

    def _stage(
        self, k: int, labels: Layer, sums: list[np.ndarray], states: States, windows: Windows
    ) -> Fresh:
        """Put a stage in front of the labels of the windows; those within the limits are left.

        ``sums`` are the prefix sums of seconds, backward seconds and weights at the labels.
        """
        tables, columns, m = self.tables, states.columns, self.space.pipeline.micro_batches
        state, d, count = windows.state, windows.unit, windows.count
        e, i = states.unit[state], states.point[state]
        near, share = tables.near[e, d], tables.share[e, d]
        transfer = np.where(near, columns.least_transfer(True)[state], columns.slow[state])
        label = np.arange(count.sum())
        label += np.repeat(windows.first - (count.cumsum() - count), count)
        x = sums[0][label]
        x -= np.repeat(columns.seconds[state], count)
        x *= np.repeat(share, count)
        core = formulas.prepend_core(labels.core[label], x, m)
        kept = np.flatnonzero(core <= np.repeat(columns.core_limit[state] - transfer, count))
        core, label = core[kept], label[kept]
        pair = np.repeat(np.arange(len(state)), count)[kept]
        backward = sums[1][label]
        backward -= tables.backward[i][pair]
        backward *= share[pair]
        reduce = sums[2][label]
        reduce -= tables.weights[i][pair]
        reduce *= tables.sync[e, d][pair]
        tail = formulas.prepend_tail(labels.tail[label], backward, reduce)
        kept = np.flatnonzero(core + tail <= (columns.sum_limit[state] - transfer / 2)[pair])
        core, tail, label, pair = core[kept], tail[kept], label[kept], pair[kept]
        # A stage fits from e to d if it is no shorter than from its latest unit to the last start.
        j = labels.point[label]
        spare = self.space.latest[k, i[pair], j] - e[pair]
        kept = np.flatnonzero(spare >= tables.start[k - 1][j] - d[pair])
        pair = pair[kept]
        return Fresh(state[pair], core[kept], tail[kept], label[kept], near[pair])

    def _transfer(self, states: States, fresh: Fresh, same: bool) -> Fresh:
        """Put a transfer in front, from a stage that starts in the same server or not: fronts."""
        m, cluster = self.space.pipeline.micro_batches, self.space.pipeline.cluster
        columns, state = states.columns, fresh.state
        x = columns.slow[state]
        if same:
            x = np.where(fresh.near, columns.fast[state], x)
        core = formulas.prepend_core(fresh.core, x, m)
        # The stages in front hide at least this much of any all-reduce: less is no better.
        tail = formulas.prepend_tail(fresh.tail, x / 2, columns.before_backward[state])
        if self.grid:  # which keeps lower bounds of all plans: both only count where they are large
            core, tail = (np.floor(y / self.grid) * self.grid for y in (core, tail))
        kept = (core <= columns.core_limit[state]) & (core + tail <= columns.sum_limit[state])
        if same:
            device = columns.device[state]  # and some device in front is in its server
            kept &= same_server(device - 1, device + 1, cluster.devices_per_server)
        some = np.flatnonzero(kept)
        for thin in (not_beaten, pareto):
            some = some[thin(state[some], core[some], tail[some])]
        return Fresh(state[some], core[some], tail[some], fresh.parent[some], fresh.near[some])

    def _least_length(self, states: States, front: Fresh) -> float:
        """Lower bound of the plans through the labels of a front."""
        columns, state = states.columns, front.state
        bound = front.core + columns.before[state]
        other = front.core + front.tail + columns.before_forward[state]
        return float(np.maximum(bound, other).min(initial=np.inf))

    def _complete(self, states: States, fresh: Fresh) -> None:
        """Put the first stage in front of these labels; keep the best plan if it is better."""
        self.evaluations += len(fresh.state)
        if not len(fresh.state):
            return
        m, columns, state = self.space.pipeline.micro_batches, states.columns, fresh.state
        transfer = np.where(fresh.near, columns.fast[state], columns.slow[state])
        share = self.tables.share[0, states.unit[state]]
        x, b = columns.seconds[state] * share, self.tables.backward[states.point[state]] * share
        core = formulas.prepend_core(fresh.core, transfer, m)
        core = formulas.prepend_core(core, x, m)
        tail = formulas.prepend_tail(fresh.tail, transfer / 2, 0.0)
        tail = formulas.prepend_tail(tail, b, columns.reduce[state])
        length = core + tail
        best = int(length.argmin())
        if length[best] >= self.upper * (1.0 - SLACK):
            return
        saved = self.upper - length[best]
        columns.core_limit -= saved
        columns.sum_limit -= saved
        self.upper = float(length[best])
        points, units = [int(states.point[state[best]])], [int(states.unit[state[best]])]
        label = int(fresh.parent[best])
        for layer in self._layers[:0:-1]:
            points.append(int(layer.point[label]))
            units.append(int(layer.unit[label]))
            label = int(layer.parent[label])
        self.best = np.array(points), np.array(units)
