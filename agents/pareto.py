"""The label search behind the exact planners: a Pareto dynamic programme over suffixes.

A plan is built from its last stage to its first. A suffix (the last k stages, from pivot p and device
e on, with the transfer in front of it) matters to what comes before it only through two numbers:
its ``core`` and its ``tail``. Putting a stage or a transfer with forward plus backward seconds x,
backward seconds b and all-reduce seconds r in front gives

    core' = x + max((M - 1) x, core)        tail' = max(r, tail - b)

Both grow with the old ones, so of the suffixes that share (k, p, e) only the Pareto front of
(core, tail) has to be kept. The link in front of a suffix is fast only if the suffix's first stage
and the stage before lie in one server, so every state is kept twice: for a stage before that starts
in the same server as e, and for one that does not.

Labels are dropped when a lower bound of the plans that they lead to reaches the incumbent U. The
bounds on the s stages in front, on e devices, with C seconds of work on one device:

* their seconds sum to at least ``C / (e - s + 1)``, and also to at least ``C - (e - s) U / M``,
  because each of them takes at most U / M and has at least one device;
* stage j of them takes at most ``(U - seconds before it) / M``, so that
  ``C <= U / M (e - s + sum_{j<s} (1 - 1/M)^j)``; the same holds for a suffix with U less what comes
  before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from parenvs.pipeline import Pipeline

SLACK = 1e-12
"""Relative: plans that beat the incumbent by less than this are not looked for. It is far above
the rounding of the few sums that a bound is made of, and far below any difference that matters."""
_BLOCK = 32768  # elements of one matrix: a handful of them stays in the processor's cache
_POOL = 400_000  # labels collected before they are thinned out

Targets = Callable[[int, int], np.ndarray]
"""``targets(k, e)``: sorted pivots at which the last k stages, on the devices from e on, may start."""


class OutOfTimeError(Exception):
    """The time limit passed before the proof was complete."""


@dataclass
class Labels:
    """One layer of labels: suffixes of k stages.

    Attributes:
        pivot: (l,) int64, first pivot.
        device: (l,) int64, first device.
        core: (l,) float64 seconds, the transfer in front included.
        tail: (l,) float64 seconds, likewise.
        parent: (l,) int64, label of the layer before that was extended.
        bound: least length of a plan through any of the labels, seconds.
        slices: where the labels of (device, the stage before starts in its server) lie.
    """

    pivot: np.ndarray
    device: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray
    bound: float
    slices: dict[tuple[int, bool], slice] = field(default_factory=dict)


@dataclass
class _Columns:
    """What is known of the states (k, p, e) of one k and e, arrays over the pivots p that are left.

    Attributes:
        pivot: p.
        seconds: prefix sum of seconds at p.
        before: least seconds of the stages and transfers in front of the transfer at p.
        before_forward: least forward seconds of them.
        before_backward: least backward seconds of them.
        reduce: least tail that they bring: the all-reduce of a single stage.
        transfer: seconds (forward plus backward) of the transfer at p, [0] if the first stage of
            the suffix lies in one server and the stage before starts there, [1] else.
        least: least seconds of that transfer, [0] if that stage lies in one server, [1] else.
        core_limit: most seconds of transfer plus core.
        sum_limit: most seconds of half the transfer plus core plus tail.
    """

    pivot: np.ndarray
    seconds: np.ndarray
    before: np.ndarray
    before_forward: np.ndarray
    before_backward: np.ndarray
    reduce: np.ndarray
    transfer: tuple[np.ndarray, np.ndarray]
    least: tuple[np.ndarray, np.ndarray]
    core_limit: np.ndarray
    sum_limit: np.ndarray


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
    ) -> None:
        """Look for plans shorter than ``upper`` until ``time.perf_counter()`` is ``deadline``."""
        self.pipeline, self.stages, self.targets = pipeline, stages, targets
        self.upper, self.deadline = upper, deadline
        self.best: tuple[np.ndarray, np.ndarray] | None = None
        self.bound, self.evaluations = 0.0, 0
        self._layers: list[Labels] = []
        c, f = pipeline.seconds_sum, pipeline.forward_sum
        self._c, self._f, self._b = c, f, pipeline.backward_sum
        self._w, self._v = pipeline.parameter_sum, pipeline.variable_sum
        work = pipeline.profile.seconds > 0
        share = pipeline.profile.forward[work] / pipeline.profile.seconds[work]
        self._forward_share, self._backward_share = float(share.min()), float((1 - share).min())
        self._cut = pipeline.cut_before
        inner = np.minimum.accumulate(np.append(np.inf, self._cut[1:-1]))
        # Entry p: fewest bytes at a cut strictly inside the first p pivots; none inside: no matter.
        self._least_cut = np.append(0.0, np.where(np.isfinite(inner), inner, 0.0))
        self._largest_cut = float(self._cut.max())
        self._fastest = max(pipeline.cluster.intra_bw, pipeline.cluster.inter_bw)
        self._decay = 1.0 - 1.0 / pipeline.micro_batches

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
        devices, server = self.pipeline.cluster.devices, self.pipeline.cluster.devices_per_server
        parts: list[tuple[int, bool, _Front]] = []
        bound = np.inf
        for e in range(self.stages - k, devices - k + 1):
            columns = self._columns(k, e)
            if not columns.pivot.size:
                continue
            fronts = (_Front(len(columns.pivot)), _Front(len(columns.pivot)))
            for d in range(e + 1, devices + 1):
                rows = labels.slices.get((d, e // server == d // server))
                if rows is None:
                    continue
                wide = int(e // server != (d - 1) // server)
                self._stage(k, e, d, labels, rows, columns, wide, fronts[wide])
            if k == self.stages - 1:
                continue
            for same in (False, True) if e % server else (False,):
                front = self._transfer(columns, fronts, same)
                if front.size:
                    self.evaluations += front.size
                    bound = min(bound, self._least_length(columns, front))
                    parts.append((e, same, front))
        return _join(parts, bound)

    def _columns(self, k: int, e: int) -> _Columns:
        """The pivots p at which a suffix of k stages on the devices from e on is worth having."""
        pipeline, cluster = self.pipeline, self.pipeline.cluster
        m, limit, s = pipeline.micro_batches, pipeline.memory_limit, self.stages - k
        p = self.targets(k, e)
        ok = (self._v[p] >= s) & (self._v[-1] - self._v[p] >= k)
        ok &= pipeline.copies * self._w[p] <= s * limit
        ok &= pipeline.copies * (self._w[-1] - self._w[p]) <= k * limit
        p = p[ok]
        c = self._c[p]
        budget = self.upper * (1.0 - SLACK)
        before = c / (e - s + 1)
        if np.isfinite(budget):
            before = np.maximum(before, c - (e - s) * budget / m)
        inside = (s - 1) * self._least_cut[p] / self._fastest
        before_forward = np.maximum(self._f[p] / (e - s + 1), self._forward_share * before) + inside
        before_backward = np.maximum(self._b[p] / (e - s + 1), self._backward_share * before)
        before_backward += inside
        before = before + 2 * inside
        reduce = np.zeros(len(p))
        # The single stage in front starts at device 0; else the best case is the same server.
        near = e < cluster.devices_per_server if s == 1 else e % cluster.devices_per_server > 0
        if s == 1:
            zero = np.zeros_like(p)
            reduce = cluster.sync_seconds(self._w[p], zero, zero + e, pipeline.sync)
        slow = 2 * self._cut[p] / cluster.inter_bw
        fast = 2 * self._cut[p] / cluster.intra_bw if near else slow
        least = np.minimum(fast, slow)
        left = budget - before - reduce
        capacity = self._decay ** np.arange(self.stages)
        suffix = cluster.devices - e - k + capacity[:k].sum()
        ok = (m * c <= budget * (e - s + capacity[:s].sum())) & (m * least <= left)
        ok &= m * (self._c[-1] - c) <= (left - least) * suffix
        if s == 1:
            ok &= pipeline.memory_of(zero, p, e + zero, self.stages) <= limit
            ok &= m * c / e + reduce <= budget
        columns = _Columns(
            p, c, before, before_forward, before_backward, reduce,
            (fast, slow), (least, slow), left, budget - before_forward,
        )  # fmt: skip
        return _take(columns, ok)

    def _stage(
        self,
        k: int,
        e: int,
        d: int,
        labels: Labels,
        rows: slice,
        columns: _Columns,
        wide: int,
        front: _Front,
    ) -> None:
        """Put the stages [p, q) on devices [e, d) in front of the labels that start at (q, d)."""
        pipeline, group = self.pipeline, d - e
        m, share = pipeline.micro_batches, 1.0 / group
        edge = np.int64([e, d])
        sync = float(pipeline.cluster.sync_seconds(1.0, edge[0], edge[1], pipeline.sync))
        pivot = labels.pivot[rows]
        core_limit = columns.core_limit - columns.least[wide]
        sum_limit = columns.sum_limit - columns.least[wide] / 2
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
            core = (m - 1) * x
            np.maximum(core, labels.core[some, None], out=core)
            core += x
            i, j = np.nonzero(core <= core_limit[first:last])
            if not i.size:
                continue
            core = core[i, j]
            j += first
            q, p = q[i], columns.pivot[j]
            tail = labels.tail[some][i] - (self._b[q] - self._b[p]) * share
            np.maximum(tail, sync * (self._w[q] - self._w[p]), out=tail)
            ok = (core + tail <= sum_limit[j]) & (self._v[q] > self._v[p])
            ok &= ~front.dominates(j, core, tail)
            kept = np.flatnonzero(ok)
            kept = kept[self._fits(k, p[kept], q[kept], group)]
            if kept.size:
                parent = some.start + i[kept]
                if k == self.stages - 1:
                    self._complete(e, columns, wide, j[kept], core[kept], tail[kept], parent)
                else:
                    front.add(j[kept], core[kept], tail[kept], parent)

    def _fits(self, k: int, p: np.ndarray, q: np.ndarray, group: int) -> np.ndarray | slice:
        """Which stages [p, q), the k-th from the end, fit the memory."""
        pipeline = self.pipeline
        if not p.size:
            return slice(None)
        if pipeline.recompute == "full":
            # The exact test needs a range maximum; most blocks pass with the largest of all cuts.
            flight = min(2 * k - 1, pipeline.micro_batches)
            most = pipeline.copies * float((self._w[q] - self._w[p]).max())
            most += (self._largest_cut + flight * float(self._cut[p].max())) / group
            if most <= pipeline.memory_limit:
                return slice(None)
        needed = pipeline.memory_of(p, q, np.full_like(p, group), np.full_like(p, k))
        return np.asarray(needed <= pipeline.memory_limit)

    def _complete(
        self,
        e: int,
        columns: _Columns,
        wide: int,
        j: np.ndarray,
        core: np.ndarray,
        tail: np.ndarray,
        parent: np.ndarray,
    ) -> None:
        """The stage in front of these is the first: their lengths, and a better plan if there is."""
        m = self.pipeline.micro_batches
        transfer, p = columns.transfer[wide][j], columns.pivot[j]
        x, b = self._c[p] / e, self._b[p] / e
        core = transfer + np.maximum((m - 1) * transfer, core)
        core = x + np.maximum((m - 1) * x, core)
        tail = np.maximum(np.maximum(tail - transfer / 2 - b, columns.reduce[j]), 0.0)
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

    def _transfer(self, columns: _Columns, fronts: tuple[_Front, _Front], same: bool) -> _Front:
        """Put the transfer at p in front, the stage before starting in the same server or not."""
        m, merged = self.pipeline.micro_batches, _Front(len(columns.pivot))
        for wide, front in enumerate(fronts):
            front.thin()
            j, core, tail, parent = front.arrays
            x = columns.transfer[0 if same and not wide else 1][j]
            core = x + np.maximum((m - 1) * x, core)
            # The stages in front hide at least this much of any all-reduce: less is no better.
            tail = np.maximum(tail - x / 2, columns.before_backward[j])
            ok = (core <= columns.core_limit[j]) & (core + tail <= columns.sum_limit[j])
            merged.add(j[ok], core[ok], tail[ok], parent[ok])
        merged.thin()
        merged.arrays = (columns.pivot[merged.arrays[0]], *merged.arrays[1:])
        return merged

    def _least_length(self, columns: _Columns, front: _Front) -> float:
        """Lower bound of the plans through the labels of a front."""
        pivot, core, tail, _ = front.arrays
        j = np.searchsorted(columns.pivot, pivot)
        bound = np.maximum(core + columns.before[j], core + tail + columns.before_forward[j])
        return float(bound.min())


class _Front:
    """Labels of several states, thinned out to their Pareto fronts now and then."""

    def __init__(self, states: int) -> None:
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._loose = 0
        # One strong label a state, that most others are worse than.
        self._core, self._tail = np.full(states, np.inf), np.full(states, np.inf)
        nothing = np.zeros(0, dtype=np.int64)
        self.arrays: tuple[np.ndarray, ...] = (nothing, np.zeros(0), np.zeros(0), nothing)

    @property
    def size(self) -> int:
        return len(self.arrays[0])

    def dominates(self, state: np.ndarray, core: np.ndarray, tail: np.ndarray) -> np.ndarray:
        """Labels that the strong label of their state is no worse than."""
        return np.asarray((self._core[state] <= core) & (self._tail[state] <= tail))

    def add(self, *label: np.ndarray) -> None:
        self._parts.append(label)
        self._loose += len(label[0])
        if self._loose > _POOL:
            self.thin()

    def thin(self) -> None:
        """Keep the labels that no other label of their state is as good as."""
        if not self._loose:
            return
        columns = zip(self.arrays, *self._parts, strict=True)
        state, core, tail, parent = (np.concatenate(x) for x in columns)
        self._parts, self._loose = [], 0
        order = np.lexsort((tail, core, state))
        state, tail = state[order], tail[order]
        # A label stays if its tail is below all tails before it in its state. The running minimum
        # restarts at each state because ranks of later states are shifted below all earlier ones.
        rank = np.unique(tail, return_inverse=True)[1] - state * np.int64(len(tail) + 1)
        stays = np.append(True, rank[1:] < np.minimum.accumulate(rank)[:-1])
        state, tail, order = state[stays], tail[stays], order[stays]
        core = core[order]
        self.arrays = (state, core, tail, parent[order])
        best = np.lexsort((-(core + tail), state))
        self._core[state[best]], self._tail[state[best]] = core[best], tail[best]


def _take(columns: _Columns, ok: np.ndarray) -> _Columns:
    def take(value: np.ndarray | tuple[np.ndarray, ...]) -> np.ndarray | tuple[np.ndarray, ...]:
        return tuple(x[ok] for x in value) if isinstance(value, tuple) else value[ok]

    return _Columns(**{key: take(value) for key, value in vars(columns).items()})


def _join(parts: list[tuple[int, bool, _Front]], bound: float) -> Labels:
    slices, device, start = {}, [], 0
    for e, same, front in parts:
        slices[e, same] = slice(start, start + front.size)
        start += front.size
        device.append(np.full(front.size, e))
    empty: list[tuple[np.ndarray, ...]] = [(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))]
    arrays = [front.arrays[:3] for _, _, front in parts] or empty
    pivot, core, tail = (np.concatenate(x) for x in zip(*arrays, strict=True))
    parent = np.concatenate([front.arrays[3] for _, _, front in parts] or [pivot])
    where = np.concatenate(device or [pivot])
    return Labels(pivot, where, core, tail, parent, bound, slices)
