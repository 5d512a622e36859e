"""The label search behind the exact planners: a Pareto dynamic programme over suffixes.

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
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK, Bounds, Columns, OutOfTimeError, Prefixes
from parenvs.agents.pipeline.labels import Front, Labels, LayerPart, join
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import can_split
from parenvs.tasks.pipeline.problem import Pipeline

_BLOCK = 32_768  # elements of a matrix; a handful of such matrices fits the processor's cache

Targets = Callable[[int, int], np.ndarray]
"""``targets(k, e)``: the pivots, ascending, where the last k stages may start on device e."""


class LabelSearch:
    """Finds the shortest plan whose cuts lie in ``targets``, or proves that none beats ``upper``.

    Attributes:
        best: (cuts, device cuts) of the shortest plan found, or None.
        upper: seconds, the length of ``best``, or that of the incumbent if there is none.
        bound: seconds, proven lower bound; equal to ``upper`` after a run that ended.
        evaluations: number of labels on the fronts, and of plans completed.
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
        """Prepare a search.

        Args:
            pipeline: the problem.
            stages: S.
            targets: where suffixes may start.
            upper: look for plans shorter than this, seconds.
            deadline: give up at this ``time.perf_counter()``.
            pivots: all pivots that ``targets`` ever gives, ascending; they allow for the better
                bounds of ``parenvs.agents.pipeline.bounds.Prefixes`` (default: do without).
        """
        self.pipeline, self.stages, self.targets = pipeline, stages, targets
        self.upper, self.deadline = upper, deadline
        self.best: tuple[np.ndarray, np.ndarray] | None = None
        self.bound, self.evaluations = 0.0, 0
        self._layers: list[Labels] = []
        self._bounds = Bounds(pipeline, stages)
        self._pivots = pivots
        self._seconds, self._backward = pipeline.seconds_sum, pipeline.backward_sum
        self._variables = pipeline.variable_sum
        self._largest_cut = float(pipeline.cut_before.max())
        sizes = np.flatnonzero(pipeline.is_group).tolist()
        devices = pipeline.cluster.devices
        # Can the k last stages share the devices from e on, and those in front the others?
        self._can_share = {
            k: [
                can_split(devices - e, k, sizes) and can_split(e, stages - k, sizes)
                for e in range(devices + 1)
            ]
            for k in range(1, stages)
            if not pipeline.fractions
        }

    def run(self) -> bool:
        """Search; True if the search space was exhausted, False if time ran out."""
        n, devices = len(self.pipeline.profile), self.pipeline.cluster.devices
        # The suffix of no stages: it starts behind the last pivot and the last device.
        index = np.zeros(1, dtype=np.int64)
        root = Labels(index + n, index + devices, np.zeros(1), np.zeros(1), index - 1, 0.0)
        root.slices[devices, False] = slice(0, 1)
        self._layers = [root]
        try:
            if self._pivots is not None and self.stages > 2 and np.isfinite(self.upper):
                self._bounds.prefixes = Prefixes(
                    self.pipeline, self.stages, self._pivots, self.upper * (1.0 - SLACK),
                    deadline=self.deadline,
                )  # fmt: skip
            for k in range(1, self.stages):
                self._layers.append(self._extend(k, self._layers[-1]))
                # By fact 5.
                self.bound = max(self.bound, min(self._layers[-1].bound, self.upper))
        except OutOfTimeError:
            return False
        self.bound = self.upper
        return True

    def _extend(self, k: int, labels: Labels) -> Labels:
        """Put a stage in front of all labels, and keep the fronts; the last layer is completed."""
        cluster, devices = self.pipeline.cluster, self.pipeline.cluster.devices
        device = np.arange(devices + 1)
        parts: list[LayerPart] = []
        bound = np.inf
        for e in range(self.stages - k, devices - k + 1):
            if time.perf_counter() > self.deadline:
                raise OutOfTimeError
            pivots = self.targets(k, e)
            if not pivots.size or (self._can_share and not self._can_share[k][e]):
                continue
            columns = self._bounds.columns(k, e, pivots, self.upper)
            if not columns.pivot.size:
                continue
            fronts = {near: Front(len(columns.pivot)) for near in (False, True)}
            # Do the devices e and d share a server? Do all devices of [e, d)?
            with_start: list[bool] = cluster.same_server(device[e], device + 1).tolist()
            inside: list[bool] = cluster.same_server(device[e], device).tolist()
            for d in range(e + 1, devices + 1):
                rows = labels.slices.get((d, with_start[d]))
                if rows is not None and self.pipeline.is_group[d - e]:
                    self._stage(k, e, d, labels, rows, columns, inside[d], fronts[inside[d]])
            if k == self.stages - 1:
                continue
            # Unless e is the first device of its server, the stage before may start there, too.
            for same in (False, True) if with_start[e - 1] else (False,):
                part, least_length = self._transfer(e, columns, fronts, same)
                if len(part.pivot):
                    self.evaluations += len(part.pivot)
                    bound = min(bound, least_length)
                    parts.append(part)
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
        """Put the stages [p, q) on devices [e, d) in front of the labels that start at (q, d).

        Args:
            k: stages of the new suffixes.
            e: first device of the new stages.
            d: first device behind them.
            labels: the layer of suffixes of k - 1 stages.
            rows: the range of its labels to extend; ascending by pivot.
            columns: the states at e, that is the pivots p.
            near: whether the devices [e, d) share a server.
            front: where the new labels are put, unless they complete plans.
        """
        pipeline, group = self.pipeline, d - e
        # The costs of a stage are linear: seconds of a second's work, of a byte's all-reduce.
        m, share = pipeline.micro_batches, formulas.compute_seconds(1.0, group)
        byte, first_device, end_device = np.ones(1), np.array([e]), np.array([d])
        sync = pipeline.cluster.sync_seconds(byte, first_device, end_device, pipeline.sync)
        ends = labels.pivot[rows]
        core_limit = columns.core_limit - columns.least_transfer(near)
        sum_limit = columns.sum_limit - columns.least_transfer(near) / 2
        # Stages of more work than this exceed every core limit: label i can follow the states from
        # first_state[i] to end_state[i].
        most_work = group * float(core_limit.max()) / m
        first_state = np.searchsorted(
            columns.seconds, self._seconds[ends] * (1 - SLACK) - most_work
        )
        end_state = np.searchsorted(columns.pivot, ends)
        begin = 0
        while begin < len(ends):
            if time.perf_counter() > self.deadline:
                raise OutOfTimeError
            size = max(_BLOCK // max(int(end_state[begin] - first_state[begin]), 1), 8)
            stop = min(begin + size, len(ends))
            low, high = int(first_state[begin]), int(end_state[stop - 1])
            block = slice(rows.start + begin, rows.start + stop)
            begin = stop
            if high <= low:
                continue
            # A row for each label, a column for each state.
            seconds = self._seconds[labels.pivot[block]][:, None] - columns.seconds[low:high]
            seconds *= share
            cores = formulas.prepend_core(labels.core[block, None], seconds, m)
            i, j = np.nonzero(cores <= core_limit[low:high])
            if not i.size:
                continue
            core = cores[i, j]
            j += low
            q, p = labels.pivot[block][i], columns.pivot[j]
            backward = (self._backward[q] - self._backward[p]) * share
            reduce = sync * pipeline.variable_bytes(p, q) + pipeline.exchange_seconds(p, q)
            tail = formulas.prepend_tail(labels.tail[block][i], backward, reduce)
            legal = (core + tail <= sum_limit[j]) & (self._variables[q] > self._variables[p])
            legal &= ~front.dominates(j, core, tail)
            fresh = np.flatnonzero(legal)
            fresh = fresh[self._fits(k, p[fresh], q[fresh], group)]
            if fresh.size:
                parent = block.start + i[fresh]
                if k == self.stages - 1:
                    self._complete(e, columns, near, j[fresh], core[fresh], tail[fresh], parent)
                else:
                    front.add(j[fresh], core[fresh], tail[fresh], parent)

    def _fits(self, k: int, p: np.ndarray, q: np.ndarray, group: int) -> np.ndarray | slice:
        """An index of the stages [p, q), the k-th from the end, that fit the memory."""
        pipeline = self.pipeline
        if not p.size:
            return slice(None)
        if pipeline.recompute == "full":
            # The exact test needs a range maximum; most blocks pass with the largest of all cuts.
            flight = formulas.in_flight(k, pipeline.micro_batches)
            entering = float(pipeline.cut_before[p].max())
            weights = pipeline.weight_bytes(p, q).max()
            activations = formulas.recomputed_bytes(self._largest_cut, entering, flight)
            if formulas.stage_bytes(weights, activations, group) <= pipeline.memory_limit:
                return slice(None)
        needed_bytes = pipeline.memory_of(p, q, np.full_like(p, group), np.full_like(p, k))
        return np.asarray(needed_bytes <= pipeline.memory_limit)

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
        """Put the first stage in front of these labels; keep the best plan if it is better.

        Args:
            e: the labels' first device, and so the devices of the first stage.
            columns: the states at e; their limits are lowered with ``upper``.
            near: whether the labels' first stages lie in one server.
            j: (l,) int64, the states of the labels.
            core: (l,) float64 seconds, the transfer in front not included.
            tail: (l,) float64 seconds, likewise.
            parent: (l,) int64, the label of the layer before that was extended.
        """
        m = self.pipeline.micro_batches
        transfer, p = columns.transfer(near)[j], columns.pivot[j]
        seconds = formulas.compute_seconds(self._seconds[p], e)
        backward = formulas.compute_seconds(self._backward[p], e)
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

    def _transfer(
        self, e: int, columns: Columns, fronts: dict[bool, Front], same: bool
    ) -> tuple[LayerPart, float]:
        """Put the transfers at the pivots p in front of the labels of both fronts.

        Args:
            e: the labels' first device.
            columns: the states at e.
            fronts: whether the labels' first stage lies in one server -> the labels.
            same: whether the stage before the transfer starts in the server of e.

        Returns:
            The part of the new layer, and a lower bound of the plans through it, seconds.
        """
        m, merged = self.pipeline.micro_batches, Front(len(columns.pivot))
        for near, front in fronts.items():
            front.thin()
            j, core, tail, parent = front.labels
            transfer = columns.transfer(same and near)[j]
            core = formulas.prepend_core(core, transfer, m)
            # Tails are raised as in fact 4.
            tail = formulas.prepend_tail(tail, transfer / 2, columns.before_backward[j])
            legal = (core <= columns.core_limit[j]) & (core + tail <= columns.sum_limit[j])
            merged.add(j[legal], core[legal], tail[legal], parent[legal])
        merged.thin()
        j, core, tail, parent = merged.labels
        bound = np.maximum(core + columns.before[j], core + tail + columns.before_forward[j])
        part = LayerPart(e, same, columns.pivot[j], core, tail, parent)
        return part, float(bound.min(initial=np.inf))
