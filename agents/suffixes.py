"""The label search of ``agents.pareto`` over a ``PlanSpace``: few points, whole layers at once.

Labels, recursion and bounds are the same. With at most 128 points nearly all the time of a search
goes into starting array operations, so that here a layer is one ragged array: for each state (point
i, unit e) and each later unit d, the labels that start at (j, d) and that a stage [i, j) can reach.
"""

from __future__ import annotations

import time

import numpy as np

from parenvs.agents.bounds import SLACK, Bounds
from parenvs.agents.labels import not_beaten, pareto
from parenvs.agents.layers import Fresh, Layer, SpaceTables, States, Windows
from parenvs.agents.pareto import OutOfTimeError
from parenvs.agents.prefixes import Prefixes
from parenvs.plan_space import PlanSpace

_BLOCK = 25_000  # pairs of state and label handled at once: such arrays stay in the cache


class PointSearch:
    """Finds the shortest plan of a ``PlanSpace`` below ``upper``, or proves that there is none.

    Attributes:
        best: (points, units) of the cuts of the best plan found, each (S-1,), or None.
        upper: its length (rounded labels: a lower bound of it), or the incumbent's that was given.
        bound: proven lower bound for plans over the points; ``upper`` after a run that ended.
        evaluations: labels that were made.
    """

    def __init__(
        self,
        space: PlanSpace,
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
            blocks: of points, for the better bounds of ``agents.prefixes``; 0: without them.
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
        most = (columns.core_limit - columns.least(True))[state] / tables.share[unit, d] / m
        most += columns.seconds[state] + SLACK * tables.seconds[-1]
        last = np.searchsorted(tables.seconds, most, side="right")
        most = (columns.sum_limit - columns.least(True) / 2)[state]
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
        transfer = np.where(near, columns.least(True)[state], columns.slow[state])
        label = np.arange(count.sum())
        label += np.repeat(windows.first - (count.cumsum() - count), count)
        x = sums[0][label]
        x -= np.repeat(columns.seconds[state], count)
        x *= np.repeat(share, count)
        core = (m - 1) * x
        np.maximum(core, labels.core[label], out=core)
        core += x
        kept = np.flatnonzero(core <= np.repeat(columns.core_limit[state] - transfer, count))
        core, label = core[kept], label[kept]
        pair = np.repeat(np.arange(len(state)), count)[kept]
        backward = sums[1][label]
        backward -= tables.backward[i][pair]
        backward *= share[pair]
        reduce = sums[2][label]
        reduce -= tables.weights[i][pair]
        reduce *= tables.sync[e, d][pair]
        tail = np.maximum(labels.tail[label] - backward, reduce)
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
        core = x + np.maximum((m - 1) * x, fresh.core)
        # The stages in front hide at least this much of any all-reduce: less is no better.
        tail = np.maximum(fresh.tail - x / 2, columns.before_backward[state])
        if self.grid:  # which keeps lower bounds of all plans: both only count where they are large
            core, tail = (np.floor(y / self.grid) * self.grid for y in (core, tail))
        kept = (core <= columns.core_limit[state]) & (core + tail <= columns.sum_limit[state])
        if same:
            kept &= columns.device[state] % cluster.devices_per_server > 0
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
        core = transfer + np.maximum((m - 1) * transfer, fresh.core)
        core = x + np.maximum((m - 1) * x, core)
        tail = np.maximum(fresh.tail - transfer / 2 - b, columns.reduce[state])
        length = core + np.maximum(tail, 0.0)
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
