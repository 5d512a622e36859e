"""The label search of ``parenvs.agents.pipeline.label_search`` over a ``PointSpace``.

Labels, recursion and bounds are the same. With at most 128 points nearly all the time of a search
goes into starting array operations. So a layer is extended in one go, by ragged arrays: for each
state (point i, unit e) and each later unit d, the range of labels that start at a point j, unit d,
and that a stage of the points [i, j) on the units [e, d) can reach.

1. Seconds and parameters grow along the chain, so the labels that keep a state's limits with a
   stage to unit d are those up to some point: a range, as labels are sorted by (same, unit, point).
2. Units have equal sizes, but for the last, which only the last stage holds. So the least number of
   units of a stage [i, j), the k-th from the end, is the difference of the last unit from which the
   k - 1 stages behind it fit, ``start[k - 1, j]``, and ``latest[k, i, j]``, its own last unit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK, Bounds, Columns, OutOfTimeError, Prefixes
from parenvs.agents.pipeline.labels import not_beaten, pareto
from parenvs.cluster import same_server
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.spaces import PointSpace

_BLOCK = 25_000  # pairs of state and label handled at once: such arrays stay in the cache


class SpaceTables:
    """Tables that every search of one ``PointSpace`` looks up; m points and u units.

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
        """Compute the tables of ``space``."""
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
            # Fact 2, for all stages [i, j).
            units = np.where(space.latest[k] < 0, len(devices), self.start[k - 1] - space.latest[k])
            first_end = (self.reach[s - 1][:, None] + units).min(axis=0)
            self.reach[s] = np.minimum(first_end, len(devices))


@dataclass
class Layer:
    """The labels of the suffixes of k stages, sorted by (same, unit, point).

    Attributes:
        same: (l,) int64, 1 if the stage before starts in the server of ``unit``, else 0.
        unit: (l,) int64, first unit.
        point: (l,) int64, first point.
        core: (l,) float64 seconds, the transfer in front included.
        tail: (l,) float64 seconds, likewise.
        parent: (l,) int64, the label of the layer before that was extended.
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
        columns: their bounds and limits.
        unit: (s,) int64, first unit, ascending.
        point: (s,) int64, first point, ascending within a unit.
    """

    columns: Columns
    unit: np.ndarray
    point: np.ndarray


@dataclass
class Windows:
    """Labels that stages can reach: for each pair of a state and a later unit a range of labels.

    Attributes:
        state: (w,) int64, ascending; where the stages start.
        unit: (w,) int64, the unit d up to which they run.
        first: (w,) int64, the first label of the range.
        count: (w,) int64, the number of labels in it.
    """

    state: np.ndarray
    unit: np.ndarray
    first: np.ndarray
    count: np.ndarray

    def blocks(self, pairs: int) -> Iterator[Windows]:
        """The windows in parts of whole states, of at most ``pairs`` pairs of state and label each.

        A state with more pairs is a part by itself.
        """
        if not len(self.state):
            return
        first_row = np.flatnonzero(np.append(True, self.state[1:] != self.state[:-1]))
        end_row = np.append(first_row[1:], len(self.state))
        total = np.add.reduceat(self.count, first_row).cumsum()  # pairs up to each state
        begin = 0
        while begin < len(first_row):
            done = total[begin - 1] if begin else 0
            stop = max(int(np.searchsorted(total, done + pairs, side="right")), begin + 1)
            rows = slice(first_row[begin], end_row[stop - 1])
            yield Windows(self.state[rows], self.unit[rows], self.first[rows], self.count[rows])
            begin = stop


class LabelSums(NamedTuple):
    """Prefix sums of the chain at the first points of a layer's labels.

    Attributes:
        seconds: (l,) float64, forward plus backward seconds.
        backward: (l,) float64, backward seconds.
        weights: (l,) float64, parameter bytes.
    """

    seconds: np.ndarray
    backward: np.ndarray
    weights: np.ndarray


@dataclass
class StateLabels:
    """Labels of suffixes that start at numbered states, sorted by state.

    Attributes:
        state: (l,) int64, row of the states' columns.
        core: (l,) float64 seconds.
        tail: (l,) float64 seconds.
        parent: (l,) int64, the label of the layer before that was extended.
        near: (l,) bool, whether the first stage lies in one server.
    """

    state: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray
    near: np.ndarray


class _LayerPart(NamedTuple):
    """Labels of a new layer before they are sorted; the columns are those of ``Layer``."""

    same: np.ndarray
    state: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray


class PointSearch:
    """Finds the shortest plan of a ``PointSpace`` below ``upper``, or proves that there is none.

    Attributes:
        best: (points, units) of the cuts of the shortest plan found, each (S-1,), or None.
        upper: seconds, the length of ``best`` (with rounded labels a lower bound of it), or that of
            the incumbent if there is none.
        bound: seconds, proven lower bound of plans over the points; ``upper`` after a run that
            ended.
        evaluations: number of labels on the fronts, and of plans completed.
    """

    def __init__(
        self,
        space: PointSpace,
        tables: SpaceTables,
        points: np.ndarray,
        upper: float,
        deadline: float = np.inf,
        blocks: int = 0,
        max_pairs: float = np.inf,
        grid: float = 0.0,
    ) -> None:
        """Prepare a search.

        Args:
            space: the problem.
            tables: those of the space.
            points: points to cut before, ascending.
            upper: look for plans shorter than this, seconds.
            deadline: give up at this ``time.perf_counter()``.
            blocks: number of blocks of ``agents.pipeline.bounds.Prefixes``; 0: do without it.
            max_pairs: give up before a layer with more pairs of state and label.
            grid: seconds; core and tail are rounded down to its multiples (0: not at all). That
                leaves fewer labels; ``upper`` is then a lower bound, ``best`` may be longer.
        """
        self.space, self.tables, self.points = space, tables, points
        self.upper, self.deadline, self.max_pairs, self.grid = upper, deadline, max_pairs, grid
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
        # The suffix of no stages: it starts behind the last point and the last unit.
        m, u = len(self.space.pivots) - 1, len(self.space.devices) - 1
        zero, index = np.zeros(1), np.zeros(1, dtype=np.int64)
        self._layers = [Layer(index, index + u, index + m, zero, zero, index + 1)]
        try:
            for k in range(1, self.space.stages):
                layer, bound = self._extend(k, self._layers[-1])
                self._layers.append(layer)
                # By fact 5 of ``label_search``.
                self.bound = max(self.bound, min(bound, self.upper))
        except OutOfTimeError:
            return False
        self.bound = self.upper
        return True

    def _extend(self, k: int, labels: Layer) -> tuple[Layer, float]:
        """Put a stage in front of all labels.

        Returns:
            The new layer, and a lower bound of the plans through it, seconds. In the last step the
            plans are completed, and the layer is empty.
        """
        states = self._states(k)
        windows = self._windows(labels, states)
        if windows.count.sum() > self.max_pairs:
            raise OutOfTimeError
        tables, point = self.tables, labels.point
        sums = LabelSums(tables.seconds[point], tables.backward[point], tables.weights[point])
        nothing, zero = np.zeros(0, dtype=np.int64), np.zeros(0)
        parts = [_LayerPart(nothing, nothing, zero, zero, nothing)]
        bound = np.inf
        for block in windows.blocks(_BLOCK):
            if time.perf_counter() > self.deadline:
                raise OutOfTimeError
            extended = self._stage(k, labels, sums, states, block)
            if k == self.space.stages - 1:
                self._complete(states, extended)
                continue
            for same in (False, True):
                front = self._transfer(states, extended, same)
                flag = np.full_like(front.state, same)
                parts.append(_LayerPart(flag, front.state, front.core, front.tail, front.parent))
                bound = min(bound, self._least_length(states, front))
        joined = _LayerPart(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        self.evaluations += len(joined.state)
        order = np.argsort(joined.same * len(states.unit) + joined.state, kind="stable")
        state = joined.state[order]
        layer = Layer(
            joined.same[order],
            states.unit[state],
            states.point[state],
            joined.core[order],
            joined.tail[order],
            joined.parent[order],
        )
        return layer, bound

    def _states(self, k: int) -> States:
        """The states at which the last k stages may start."""
        space, front = self.space, self.space.stages - k
        units = np.arange(front, len(space.devices) - k)[:, None]
        fits = self.tables.start[k][self.points] >= units
        fits &= self.tables.reach[front][self.points] <= units
        row, i = np.nonzero(fits)
        devices, pivots = space.devices[row + front], space.pivots[self.points[i]]
        columns = self._bounds.columns(k, devices, pivots, self.upper)
        unit = np.searchsorted(space.devices, columns.device)
        return States(columns, unit, np.searchsorted(space.pivots, columns.pivot))

    def _windows(self, labels: Layer, states: States) -> Windows:
        """The labels that stages from each state can reach within the state's limits (fact 1)."""
        tables, units, ends = self.tables, len(self.space.devices), len(self.space.pivots)
        # first_label[key] is the first label whose (same, unit, point), as a number, is >= key.
        keys = (labels.same * units + labels.unit) * ends + labels.point
        first_label = np.searchsorted(keys, np.arange(2 * units * ends + 1))
        start_units = np.unique(labels.unit)
        state, index = np.nonzero(start_units > states.unit[:, None])
        d = start_units[index]
        unit, point = states.unit[state], states.point[state]
        # The greatest prefix sums at which a stage may end: beyond them core, or core plus tail,
        # exceeds its limit.
        columns, m = states.columns, self.space.pipeline.micro_batches
        transfer = columns.least_transfer(True)
        end_seconds = (columns.core_limit - transfer)[state] / tables.share[unit, d] / m
        end_seconds += columns.seconds[state] + SLACK * tables.seconds[-1]
        end_point = np.searchsorted(tables.seconds, end_seconds, side="right")
        reduce_seconds = (columns.sum_limit - transfer / 2)[state]
        sync = tables.sync[unit, d]
        end_weights = np.divide(
            reduce_seconds, sync, out=np.full(len(reduce_seconds), np.inf), where=sync > 0
        )
        end_weights += tables.weights[point] + SLACK * tables.weights[-1]
        end_point = np.minimum(
            end_point, np.searchsorted(tables.weights, end_weights, side="right")
        )
        key = (tables.same[unit, d] * units + d) * ends
        first = first_label[key + point + 1]
        count = first_label[key + end_point] - first
        reached = np.flatnonzero(count > 0)
        return Windows(state[reached], d[reached], first[reached], count[reached])

    def _stage(
        self, k: int, labels: Layer, sums: LabelSums, states: States, windows: Windows
    ) -> StateLabels:
        """Put a stage in front of the labels of the windows; those within the limits are left."""
        tables, columns, m = self.tables, states.columns, self.space.pipeline.micro_batches
        state, d, count = windows.state, windows.unit, windows.count
        e, i = states.unit[state], states.point[state]
        near, share = tables.near[e, d], tables.share[e, d]
        transfer = np.where(near, columns.least_transfer(True)[state], columns.slow[state])
        # First an element for each pair of window and label; few of them pass the core limit.
        label = np.arange(count.sum())
        label += np.repeat(windows.first - (count.cumsum() - count), count)
        seconds = sums.seconds[label]
        seconds -= np.repeat(columns.seconds[state], count)
        seconds *= np.repeat(share, count)
        core = formulas.prepend_core(labels.core[label], seconds, m)
        legal = np.flatnonzero(core <= np.repeat(columns.core_limit[state] - transfer, count))
        core, label = core[legal], label[legal]
        window = np.repeat(np.arange(len(state)), count)[legal]
        backward = sums.backward[label]
        backward -= tables.backward[i][window]
        backward *= share[window]
        reduce = sums.weights[label]
        reduce -= tables.weights[i][window]
        pipeline = self.space.pipeline
        if pipeline.tied_weights is not None:
            pivots = self.space.pivots[i[window]], self.space.pivots[labels.point[label]]
            reduce += pipeline.tied_weights.again_bytes(*pivots)
            reduce *= tables.sync[e, d][window]
            reduce += pipeline.exchange_seconds(*pivots)
        else:
            reduce *= tables.sync[e, d][window]
        tail = formulas.prepend_tail(labels.tail[label], backward, reduce)
        legal = np.flatnonzero(core + tail <= (columns.sum_limit[state] - transfer / 2)[window])
        core, tail, label, window = core[legal], tail[legal], label[legal], window[legal]
        # The memory, by fact 2: d - e is at least start - latest.
        j = labels.point[label]
        spare = self.space.latest[k, i[window], j] - e[window]
        legal = np.flatnonzero(spare >= tables.start[k - 1][j] - d[window])
        window = window[legal]
        return StateLabels(state[window], core[legal], tail[legal], label[legal], near[window])

    def _transfer(self, states: States, labels: StateLabels, same: bool) -> StateLabels:
        """The fronts of the labels with a transfer in front.

        Args:
            states: the states of the labels.
            labels: labels with a stage in front.
            same: whether the stage before the transfer starts in the server of the state's unit.
        """
        m, cluster = self.space.pipeline.micro_batches, self.space.pipeline.cluster
        columns, state = states.columns, labels.state
        transfer = columns.slow[state]
        if same:
            transfer = np.where(labels.near, columns.fast[state], transfer)
        core = formulas.prepend_core(labels.core, transfer, m)
        # Tails are raised as in fact 4 of ``label_search``.
        tail = formulas.prepend_tail(labels.tail, transfer / 2, columns.before_backward[state])
        if self.grid:  # rounded down, they still give lower bounds of all plans
            core, tail = (np.floor(seconds / self.grid) * self.grid for seconds in (core, tail))
        legal = (core <= columns.core_limit[state]) & (core + tail <= columns.sum_limit[state])
        if same:  # only where a device in front of the state is in its server
            device = columns.device[state]
            legal &= same_server(device - 1, device + 1, cluster.devices_per_server)
        front = np.flatnonzero(legal)
        for thin in (not_beaten, pareto):
            front = front[thin(state[front], core[front], tail[front])]
        return StateLabels(
            state[front], core[front], tail[front], labels.parent[front], labels.near[front]
        )

    def _least_length(self, states: States, front: StateLabels) -> float:
        """Lower bound of the plans through the labels of a front, seconds."""
        columns, state = states.columns, front.state
        by_core = front.core + columns.before[state]
        by_sum = front.core + front.tail + columns.before_forward[state]
        return float(np.maximum(by_core, by_sum).min(initial=np.inf))

    def _complete(self, states: States, labels: StateLabels) -> None:
        """Put the first stage in front of these labels; keep the best plan if it is better."""
        self.evaluations += len(labels.state)
        if not len(labels.state):
            return
        m, columns, state = self.space.pipeline.micro_batches, states.columns, labels.state
        transfer = np.where(labels.near, columns.fast[state], columns.slow[state])
        share = self.tables.share[0, states.unit[state]]
        seconds = columns.seconds[state] * share
        backward = self.tables.backward[states.point[state]] * share
        core = formulas.prepend_core(labels.core, transfer, m)
        core = formulas.prepend_core(core, seconds, m)
        tail = formulas.prepend_tail(labels.tail, transfer / 2, 0.0)
        tail = formulas.prepend_tail(tail, backward, columns.reduce[state])
        length = core + tail
        best = int(length.argmin())
        if length[best] >= self.upper * (1.0 - SLACK):
            return
        saved = self.upper - length[best]
        columns.core_limit -= saved
        columns.sum_limit -= saved
        self.upper = float(length[best])
        points, units = [int(states.point[state[best]])], [int(states.unit[state[best]])]
        label = int(labels.parent[best])
        for layer in self._layers[:0:-1]:
            points.append(int(layer.point[label]))
            units.append(int(layer.unit[label]))
            label = int(layer.parent[label])
        self.best = np.array(points), np.array(units)
