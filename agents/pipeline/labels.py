"""The exact label search: a Pareto dynamic program over suffixes of plans, in compiled loops.

A plan is built from its last stage to its first. A suffix is the last k stages, from pivot p and
device e on, with the transfer in front of it. Its *label* is the pair (core, tail): what these
resources contribute to the length of a plan, in seconds.

1. With one more stage or transfer in front, of x seconds (B of them backward) and AR seconds of
   all-reduce, ``formulas.prepend_core`` and ``formulas.prepend_tail`` give the new label:

       core' = x + max((M - 1) x, core)        tail' = max(AR, tail - B)

   So a suffix matters to what is in front of it only through its label.
2. Both numbers grow with the old ones. Of the suffixes that share (k, p, e), only the Pareto front
   of the labels has to be kept: a plan gets no shorter with a label that another one dominates.
3. The transfer in front is fast only if the stage before it and the suffix's first stage lie in one
   server. So each (k, p, e) has two fronts: for a stage before that starts in the server of e, and
   for one that does not.
4. The stages in front hide at least their least backward seconds of every all-reduce of the suffix.
   A tail below that is no better than one that equals it, so tails are raised to it.
5. A label is dropped if a lower bound (``parenvs.agents.pipeline.bounds``) of the plans that it
   leads to reaches the incumbent. Every shorter plan passes through a label of each layer, so the
   least bound of a layer's labels is a lower bound of all plans, up to the incumbent's length.

``parenvs.tasks.pipeline.sweeps`` keeps its labels in fronts of the same form.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK, Bounds, Columns, OutOfTimeError, Prefixes
from parenvs.compiled import Array, compiled, warm
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import can_split
from parenvs.tasks.pipeline.problem import EMPTY, Pipeline, bytes_of, reduce_seconds, tables_of
from parenvs.tasks.pipeline.sweeps import insert_label, prepend_core, prepend_tail

Targets = Callable[[int, int], Array]
"""``targets(k, e)``: the pivots, ascending, where the last k stages may start on device e."""
MANY = 200
"""Fewest pivots for which the bounds of ``Prefixes`` repay their cost."""
# States of a layer whose bounds are computed at once.
_STATES = 20_000
# Pairs of state and label between two looks at the clock, about 50 ms.
_PAIRS = 20_000_000
_FRONT = 64  # labels of a front before its arrays grow


class Labels(NamedTuple):
    """One layer of labels, sorted by (shared, device, pivot, core).

    Attributes:
        start: (2, D+2) int64; of each device the first of its labels, in row 1 those for a stage in
            front that starts in the device's server, in row 0 those for any other.
        pivot: (l,) int64, first pivot.
        device: (l,) int64, first device.
        core: (l,) float64 seconds, the transfer in front included.
        tail: (l,) float64 seconds, likewise.
        parent: (l,) int64, the label of the layer before that was extended.
    """

    start: Array
    pivot: Array
    device: Array
    core: Array
    tail: Array
    parent: Array


@compiled
def _doubled(values):
    rows, columns = values.shape
    grown = np.empty((rows, 2 * columns), values.dtype)
    # Numba compiles loops in a tenth of the time of slices.
    for row in range(rows):
        for column in range(columns):
            grown[row, column] = values[row, column]
    return grown


@compiled
def _extend_labels(tables, labels, states, k, first, end, last, saved):
    """Put a stage in front of labels for the states [first, end), then a transfer.

    Args:
        tables: the problem.
        labels: the layer of suffixes of k - 1 stages.
        states: where the new stages start.
        k: stages from the new ones on.
        first: the first state.
        end: one past the last.
        last: whether the first stage of all comes next: then plans are completed.
        saved: seconds by which limits are lower than ``states`` has them.

    Returns:
        Rows of (state, parent) and of (core, tail) by ``shared``: whether a stage in front starts
        in the server; their numbers; the least bound; core, tail, state, parent of the best plan.
    """
    m, devices = tables.micro_batches, len(tables.is_group) - 1
    cores, tails = np.empty((2, _FRONT)), np.empty((2, _FRONT))
    parents = np.empty((2, _FRONT), np.int64)
    merged_cores, merged_tails = np.empty((1, 2 * _FRONT)), np.empty((1, 2 * _FRONT))
    merged_parents = np.empty((1, 2 * _FRONT), np.int64)
    index_rows = np.empty((4, 1024), np.int64)  # state and parent, by ``shared``
    second_rows = np.empty((4, 1024))
    counts, sizes = np.zeros(2, np.int64), np.zeros(2, np.int64)
    bound = best_core = best_tail = np.inf
    best_state = best_parent = -1
    for i in range(first, end):
        p, e = states.pivot[i], states.device[i]
        core_limit, sum_limit = states.core_limit[i] - saved, states.sum_limit[i] - saved
        fast, slow, hidden = states.fast[i], states.slow[i], states.before_backward[i]
        sizes[:] = 0
        for d in range(e + 1, devices + 1):
            group = d - e
            if not tables.is_group[group]:
                continue
            near = 1 if e // tables.server == (d - 1) // tables.server else 0
            shared = 1 if e // tables.server == d // tables.server else 0
            link = min(fast, slow) if near else slow
            # The transfer in front adds at least link to the core, and half of it to the sum.
            core_most, sum_most = core_limit - link, sum_limit - link / 2
            begin, stop = labels.start[shared, d], labels.start[shared, d + 1]
            while begin < stop:  # the first label behind p
                middle = (begin + stop) // 2
                if labels.pivot[middle] <= p:
                    begin = middle + 1
                else:
                    stop = middle
            stop = labels.start[shared, d + 1]
            q, is_fit = -1, 0
            x = backward = reduce = 0.0
            for label in range(begin, stop):
                if labels.pivot[label] != q:
                    q, is_fit = labels.pivot[label], 0
                    x = (tables.work[q] - tables.work[p]) / group
                    if m * x > core_most:
                        break  # work grows along the chain
                    if tables.variables[q] == tables.variables[p]:
                        is_fit = -1
                    backward = (tables.backward[q] - tables.backward[p]) / group
                    reduce = reduce_seconds(tables, p, q, near, group)
                if is_fit < 0:
                    continue
                core = prepend_core(labels.core[label], x, m, max)
                if core > core_most:
                    continue
                tail = prepend_tail(labels.tail[label], backward, reduce, max)
                if core + tail > sum_most:
                    continue
                # Looked at once a stage, when a label comes so far.
                if is_fit == 0:
                    is_fit = 1 if bytes_of(tables, p, q, group, k) <= tables.limit else -1
                    if is_fit < 0:
                        continue
                if sizes[near] == cores.shape[1]:
                    cores, tails, parents = _doubled(cores), _doubled(tails), _doubled(parents)
                sizes[near] = insert_label(
                    cores, tails, parents, near, sizes[near], core, tail, label
                )
        if last:
            share = 1.0 / e
            for near in range(2):
                link = fast if near else slow
                for j in range(sizes[near]):
                    core = prepend_core(cores[near, j], link, m, max)
                    core = prepend_core(core, tables.work[p] * share, m, max)
                    tail = prepend_tail(tails[near, j], link / 2, 0.0, max)
                    tail = prepend_tail(tail, tables.backward[p] * share, states.reduce[i], max)
                    tail = max(tail, 0.0)
                    counts[0] += 1
                    if core + tail < best_core + best_tail:
                        best_core, best_tail = core, tail
                        best_state, best_parent = i, parents[near, j]
            continue
        # Unless e is the first device of its server, the stage before may start there, too.
        for shared in range(2 if e % tables.server else 1):
            size = 0
            if sizes[0] + sizes[1] > merged_cores.shape[1]:
                merged_cores = np.empty((1, 2 * (sizes[0] + sizes[1])))
                merged_tails = np.empty_like(merged_cores)
                merged_parents = np.empty(merged_cores.shape, np.int64)
            for near in range(2):
                link = fast if shared and near else slow
                for j in range(sizes[near]):
                    core = prepend_core(cores[near, j], link, m, max)
                    tail = prepend_tail(tails[near, j], link / 2, hidden, max)
                    if core <= core_limit and core + tail <= sum_limit:
                        size = insert_label(
                            merged_cores, merged_tails, merged_parents, 0, size, core, tail,
                            parents[near, j],
                        )  # fmt: skip
            while counts[shared] + size > index_rows.shape[1]:
                index_rows, second_rows = _doubled(index_rows), _doubled(second_rows)
            for j in range(size):
                at, core, tail = counts[shared] + j, merged_cores[0, j], merged_tails[0, j]
                index_rows[2 * shared, at], index_rows[2 * shared + 1, at] = i, merged_parents[0, j]
                second_rows[2 * shared, at], second_rows[2 * shared + 1, at] = core, tail
                bound = min(
                    bound, max(core + states.before[i], core + tail + states.before_forward[i])
                )
            counts[shared] += size
    return index_rows, second_rows, counts, bound, best_core, best_tail, best_state, best_parent


class LabelSearch:
    """Finds the shortest plan whose cuts lie in ``targets``, or proves that none beats ``upper``.

    Args:
        pipeline: the problem, of two stages or more.
        targets: where suffixes may start; the pivots alone, (p,) ascending, if they may start at
            each of them on any device.
        upper: look for plans shorter than this, seconds.
        deadline: give up at this ``time.perf_counter()``.
        devices: where plans may cut the devices, both ends included (default: anywhere).
        whole: keep the labels of all suffixes of plans shorter than ``upper``, and complete none.

    Attributes:
        best: (cuts, device cuts) of the shortest plan found, or None.
        upper: seconds, the length of ``best``, or that of the incumbent if there is none.
        bound: seconds, proven lower bound; equal to ``upper`` after a run that ended.
        evaluations: number of labels on the fronts, and of plans completed.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        targets: Targets | Array,
        upper: float = np.inf,
        deadline: float = np.inf,
        devices: Array | None = None,
        whole: bool = False,
    ) -> None:
        prepare()
        self.pipeline, self.targets = pipeline, targets
        all_devices = np.arange(pipeline.cluster.devices + 1)
        self.devices = all_devices if devices is None else devices
        self.upper, self.deadline, self.whole = upper, deadline, whole
        self.best: tuple[Array, Array] | None = None
        self.bound, self.evaluations = 0.0, 0
        self.layers: list[Labels] = []
        self._bounds = Bounds(pipeline)
        self.tables = tables_of(pipeline)

    def run(self) -> bool:
        """Search; True if the search space was exhausted, False if time ran out."""
        n, devices = len(self.pipeline.profile), self.pipeline.cluster.devices
        stages = self.pipeline.stages
        # The suffix of no stages starts behind the last pivot and the last device.
        start = np.ones((2, devices + 2), np.int64)
        start[0, : devices + 1] = 0
        index, zero = np.zeros(1, np.int64), np.zeros(1)
        self.layers = [Labels(start, index + n, index + devices, zero, zero, index - 1)]
        try:
            pivots = self.targets if isinstance(self.targets, Array) else ()
            if len(pivots) >= MANY and stages > 2 and np.isfinite(self.upper):
                budget = formulas.core_budget(self.upper) * (1.0 - SLACK)
                self._bounds.prefixes = Prefixes(
                    self.pipeline, np.asarray(pivots), budget, self.deadline, self.devices
                )
            for k in range(1, stages):
                labels, bound = self._extended_layer(k, self.layers[-1])
                self.layers.append(labels)
                # By fact 5.
                self.bound = max(self.bound, min(formulas.compose(bound, 0.0), self.upper))
        except OutOfTimeError:
            return False
        self.bound = self.upper
        return True

    def _extended_layer(self, k: int, labels: Labels) -> tuple[Labels, float]:
        """Put a stage in front of all labels; the last layer is completed, and stays empty.

        Returns:
            The new layer, and a lower bound of core plus tail of plans through it, seconds.
        """
        parts: list[list[tuple[Array, ...]]] = [[], []]
        lowest, is_last = np.inf, k == self.pipeline.stages - 1 and not self.whole
        chunk = max(_PAIRS // max(len(labels.core), 1), 1)
        for states in self._states(k):
            upper = self.upper
            for first in range(0, len(states.pivot), chunk):
                if time.perf_counter() > self.deadline:
                    raise OutOfTimeError
                end = min(first + chunk, len(states.pivot))
                # Plans that were found meanwhile lower the limits of the states.
                saved = upper - self.upper if np.isfinite(upper) else 0.0
                indices, seconds, counts, bound, core, tail, state, parent = _extend_labels(
                    self.tables, labels, states, k, first, end, is_last, saved
                )
                lowest = min(lowest, bound)
                self.evaluations += int(counts.sum())
                if state >= 0:
                    self._update_best(states, state, parent, formulas.compose(core, tail))
                if is_last:
                    continue
                for shared in (0, 1):
                    rows, count = slice(2 * shared, 2 * shared + 2), counts[shared]
                    state_of, parents = indices[rows, :count]
                    cores, tails = seconds[rows, :count]
                    positions = states.pivot[state_of], states.device[state_of]
                    parts[shared].append((*positions, cores, tails, parents))
        columns_of = zip(*parts[0], *parts[1], strict=True)
        empty, number = np.zeros(0, np.int64), np.zeros(0)
        # Of the usual types even where no label is left: loops are compiled for each.
        merged = [np.concatenate(column) for column in columns_of]
        merged = merged or [empty, empty, number, number, empty]
        count = sum(len(part[0]) for part in parts[0])
        numbers = np.arange(self.pipeline.cluster.devices + 2)
        _, device, *_ = merged
        outside, inside = (np.searchsorted(x, numbers) for x in (device[:count], device[count:]))
        return Labels(np.stack([outside, inside + count]), *merged), lowest

    def _states(self, k: int) -> Iterator[Columns]:
        pipeline, devices = self.pipeline, self.pipeline.cluster.devices
        stages_before = pipeline.stages - k
        sizes = np.flatnonzero(pipeline.is_group).tolist()
        pivots: list[Array] = []
        devices_of: list[Array] = []
        in_range = (self.devices >= stages_before) & (self.devices <= devices - k)
        starts = self.devices[in_range].tolist()
        for e in starts:
            pivots_here = self.targets
            if not isinstance(pivots_here, Array):
                pivots_here = pivots_here(k, e)
            if not pipeline.fractions:
                # The k last stages share the devices from e on, those in front the others.
                shared = can_split(devices - e, k, sizes) and can_split(e, stages_before, sizes)
                pivots_here = pivots_here if shared else pivots_here[:0]
            pivots.append(pivots_here)
            devices_of.append(np.full(len(pivots_here), e))
            if sum(map(len, pivots)) > _STATES or e == starts[-1]:
                if time.perf_counter() > self.deadline:
                    raise OutOfTimeError
                yield self._bounds.columns(
                    k, np.concatenate(devices_of), np.concatenate(pivots), self.upper
                )
                pivots, devices_of = [], []

    def _update_best(self, states: Columns, state: int, parent: int, length: float) -> None:
        if length >= self.upper * (1.0 - SLACK):
            return
        self.upper = length
        # Parents lead from the first stage back to the last.
        cuts, device_cuts = [int(states.pivot[state])], [int(states.device[state])]
        for layer in self.layers[:0:-1]:
            cuts.append(int(layer.pivot[parent]))
            device_cuts.append(int(layer.device[parent]))
            parent = layer.parent[parent]
        self.best = np.array(cuts), np.array(device_cuts)


@cache
def prepare() -> None:
    """Compile the loops, or load them, once per process: that is no part of a search."""
    empty, number = np.zeros(0, np.int64), np.zeros(0)
    labels = Labels(np.zeros((2, 2), np.int64), empty, empty, number, number, empty)
    states = Columns(empty, empty, *(number,) * 9)
    warm(_extend_labels, EMPTY, labels, states, 1, 0, 0, False, 0.0)
