"""The label search behind the exact planners: a Pareto dynamic programme over suffixes.

A plan is built from its last stage to its first. A suffix (the last k stages, from pivot p and
device e on, with the transfer in front of it) matters to what comes before it only through two
numbers, its ``core`` and its ``tail``: together they are a *label*. ``formulas.prepend_core`` and
``formulas.prepend_tail`` give the label with one more stage or transfer in front:

    core' = x + max((M - 1) x, core)        tail' = max(AR, tail - B)

Both grow with the old ones, so of the suffixes that share (k, p, e) only the Pareto front of
(core, tail) has to be kept. The link in front of a suffix is fast only if the suffix's first stage
and the stage before lie in one server, so every state is kept twice: for a stage before that starts
in the same server as e, and for one that does not.

Labels are dropped when a lower bound (``parenvs.agents.exact.bounds``) of the plans that they lead
to reaches the incumbent.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from parenvs.agents.exact.bounds import SLACK, Bounds, Columns, Prefixes
from parenvs.agents.exact.labels import Front, Labels, join
from parenvs.pipeline import formulas
from parenvs.pipeline.problem import Pipeline

_BLOCK = 32768  # elements of one matrix: a handful of them stays in the processor's cache

Targets = Callable[[int, int], np.ndarray]
"""``targets(k, e)``: sorted pivots where the last k stages, on the devices from e on, may start."""


class OutOfTimeError(Exception):
    """The time limit passed before the proof was complete."""


class LabelSearch:
    """Finds the shortest plan among those whose cuts lie in ``targets``, or proves that none is.

    Attributes:
        best: (cuts, device cuts) of the best plan found, or None.
        upper: its length, or the incumbent's that was given.
        bound: proven lower bound; equal to ``upper`` after a run that ended.
        evaluations: labels that were made.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        stages: int,
        targets: Targets,
        upper: float = np.inf,
        deadline: float = np.inf,
        pivots: np.ndarray | None = None,
    ) -> None:
        """Look for plans shorter than ``upper`` until ``time.perf_counter()`` is ``deadline``.

        ``pivots``, all that ``targets`` ever gives, allow for better bounds
        (``parenvs.agents.exact.bounds.Prefixes``).
        """
        self.pipeline, self.stages, self.targets = pipeline, stages, targets
        self.upper, self.deadline = upper, deadline
        self.best: tuple[np.ndarray, np.ndarray] | None = None
        self.bound, self.evaluations = 0.0, 0
        self._layers: list[Labels] = []
        self._bounds = Bounds(pipeline, stages)
        if pivots is not None and stages > 2 and np.isfinite(upper):
            budget = upper * (1.0 - SLACK)
            self._bounds.prefixes = Prefixes(pipeline, stages, pivots, budget)
        self._c, self._b = pipeline.seconds_sum, pipeline.backward_sum
        self._w, self._v = pipeline.parameter_sum, pipeline.variable_sum
        self._cut = pipeline.cut_before
        self._largest_cut = float(self._cut.max())

    def run(self) -> bool:
        """Search; True if the search space was exhausted, False if time ran out."""
        n, devices = len(self.pipeline.profile), self.pipeline.cluster.devices
        zero, one = np.zeros(1), np.zeros(1, dtype=np.int64)
        root = Labels(one + n, one + devices, zero, zero, one - 1, 0.0)
        root.slices[devices, False] = slice(0, 1)
        self._layers = [root]
        try:
            for k in range(1, self.stages):
                self._layers.append(self._extend(k, self._layers[-1]))
                # Every plan passes through the layer; those that were dropped reach the incumbent.
                self.bound = max(self.bound, min(self._layers[-1].bound, self.upper))
        except OutOfTimeError:
            return False
        self.bound = self.upper
        return True

    def _extend(self, k: int, labels: Labels) -> Labels:
        """Put a stage in front of all labels, and keep the fronts; the last layer is completed."""
        cluster, devices = self.pipeline.cluster, self.pipeline.cluster.devices
        every = np.arange(devices + 1)
        parts: list[tuple[int, bool, Front]] = []
        bound = np.inf
        for e in range(self.stages - k, devices - k + 1):
            pivots = self.targets(k, e)
            if not pivots.size:
                continue
            columns = self._bounds.columns(k, e, pivots, self.upper)
            if not columns.pivot.size:
                continue
            fronts = {near: Front(len(columns.pivot)) for near in (False, True)}
            starts_with: list[bool] = cluster.same_server(every[e], every + 1).tolist()
            inside: list[bool] = cluster.same_server(every[e], every).tolist()
            for d in range(e + 1, devices + 1):
                rows = labels.slices.get((d, starts_with[d]))
                if rows is not None:
                    self._stage(k, e, d, labels, rows, columns, inside[d], fronts[inside[d]])
            if k == self.stages - 1:
                continue
            # Unless e is the first of its server, the stage before may start there, too.
            for same in (False, True) if starts_with[e - 1] else (False,):
                front = self._transfer(columns, fronts, same)
                if front.size:
                    self.evaluations += front.size
                    bound = min(bound, self._least_length(columns, front))
                    parts.append((e, same, front))
        return join(parts, bound)

    def _stage(
        self,
        k: int,
        e: int,
        d: int,
        labels: Labels,
        rows: slice,
        columns: Columns,
        near: bool,
        front: Front,
    ) -> None:
        """Put the stages [p, q) on devices [e, d) in front of the labels that start at (q, d)."""
        pipeline, group = self.pipeline, d - e
        # The costs of a stage are linear: seconds of a second's work, of a byte's all-reduce.
        m, share = pipeline.micro_batches, formulas.compute_seconds(1.0, group)
        byte, first_device, end_device = np.ones(1), np.array([e]), np.array([d])
        sync = pipeline.cluster.sync_seconds(byte, first_device, end_device, pipeline.sync)
        pivot = labels.pivot[rows]
        core_limit = columns.core_limit - columns.least(near)
        sum_limit = columns.sum_limit - columns.least(near) / 2
        # Stages longer than this break every limit; it bounds p from below.
        longest = group * float(core_limit.max()) / m
        start = np.searchsorted(columns.seconds, self._c[pivot] * (1 - SLACK) - longest)
        stop = np.searchsorted(columns.pivot, pivot)
        at = 0
        while at < len(pivot):
            if time.perf_counter() > self.deadline:
                raise OutOfTimeError
            size = max(_BLOCK // max(int(stop[at] - start[at]), 1), 8)
            first, last = int(start[at]), int(stop[min(at + size, len(pivot)) - 1])
            some = slice(rows.start + at, min(rows.start + at + size, rows.stop))
            at += size
            if last <= first:
                continue
            q = labels.pivot[some]
            x = self._c[q][:, None] - columns.seconds[first:last]
            x *= share
            core = formulas.prepend_core(labels.core[some, None], x, m)
            i, j = np.nonzero(core <= core_limit[first:last])
            if not i.size:
                continue
            core = core[i, j]
            j += first
            q, p = q[i], columns.pivot[j]
            backward, reduce = self._b[q] - self._b[p], sync * (self._w[q] - self._w[p])
            tail = formulas.prepend_tail(labels.tail[some][i], backward * share, reduce)
            ok = (core + tail <= sum_limit[j]) & (self._v[q] > self._v[p])
            ok &= ~front.dominates(j, core, tail)
            kept = np.flatnonzero(ok)
            kept = kept[self._fits(k, p[kept], q[kept], group)]
            if kept.size:
                parent = some.start + i[kept]
                if k == self.stages - 1:
                    self._complete(e, columns, near, j[kept], core[kept], tail[kept], parent)
                else:
                    front.add(j[kept], core[kept], tail[kept], parent)

    def _fits(self, k: int, p: np.ndarray, q: np.ndarray, group: int) -> np.ndarray | slice:
        """Which stages [p, q), the k-th from the end, fit the memory."""
        pipeline = self.pipeline
        if not p.size:
            return slice(None)
        if pipeline.recompute == "full":
            # The exact test needs a range maximum; most blocks pass with the largest of all cuts.
            flight = formulas.in_flight(k, pipeline.micro_batches)
            entering = float(self._cut[p].max())
            weights = formulas.weight_bytes((self._w[q] - self._w[p]).max(), pipeline.copies)
            activations = formulas.recomputed_bytes(self._largest_cut, entering, flight)
            if formulas.stage_bytes(weights, activations, group) <= pipeline.memory_limit:
                return slice(None)
        needed = pipeline.memory_of(p, q, np.full_like(p, group), np.full_like(p, k))
        return np.asarray(needed <= pipeline.memory_limit)

    def _complete(
        self,
        e: int,
        columns: Columns,
        near: bool,
        j: np.ndarray,
        core: np.ndarray,
        tail: np.ndarray,
        parent: np.ndarray,
    ) -> None:
        """Put the first stage in front of these labels; keep the best plan if it is better."""
        m = self.pipeline.micro_batches
        transfer, p = columns.transfer(near)[j], columns.pivot[j]
        seconds, backward = (formulas.compute_seconds(x[p], e) for x in (self._c, self._b))
        core = formulas.prepend_core(core, transfer, m)
        core = formulas.prepend_core(core, seconds, m)
        tail = formulas.prepend_tail(tail, transfer / 2, 0.0)
        tail = formulas.prepend_tail(tail, backward, columns.reduce[j])
        length = core + tail
        self.evaluations += len(j)
        best = int(length.argmin())
        if length[best] >= self.upper * (1.0 - SLACK):
            return
        saved = (self.upper - length[best]) if np.isfinite(self.upper) else 0.0
        columns.core_limit -= saved
        columns.sum_limit -= saved
        self.upper = float(length[best])
        cuts, device_cuts = [int(p[best])], [e]
        label = int(parent[best])
        for layer in self._layers[:0:-1]:
            cuts.append(int(layer.pivot[label]))
            device_cuts.append(int(layer.device[label]))
            label = int(layer.parent[label])
        self.best = np.array(cuts), np.array(device_cuts)

    def _transfer(self, columns: Columns, fronts: dict[bool, Front], same: bool) -> Front:
        """Put the transfer at p in front, the stage before starting in the same server or not."""
        m, merged = self.pipeline.micro_batches, Front(len(columns.pivot))
        for near, front in fronts.items():
            front.thin()
            j, core, tail, parent = front.arrays
            x = columns.transfer(same and near)[j]
            core = formulas.prepend_core(core, x, m)
            # The stages in front hide at least this much of any all-reduce: less is no better.
            tail = formulas.prepend_tail(tail, x / 2, columns.before_backward[j])
            ok = (core <= columns.core_limit[j]) & (core + tail <= columns.sum_limit[j])
            merged.add(j[ok], core[ok], tail[ok], parent[ok])
        merged.thin()
        merged.arrays = (columns.pivot[merged.arrays[0]], *merged.arrays[1:])
        return merged

    def _least_length(self, columns: Columns, front: Front) -> float:
        """Lower bound of the plans through the labels of a front."""
        pivot, core, tail, _ = front.arrays
        j = np.searchsorted(columns.pivot, pivot)
        bound = np.maximum(core + columns.before[j], core + tail + columns.before_forward[j])
        return float(bound.min())
