"""Lower bounds of what the stages in front of a suffix cost: where suffixes are worth having.

``Bounds`` looks at the s stages in front, on the first e devices, with C seconds of work (on one
device), of a plan that beats the incumbent U:

* their seconds sum to at least ``C / (e - s + 1)``, the most devices that one of them can have, and
  to at least ``C - (e - s) U / M``, because each takes at most U / M and has at least one device;
* stage j of them takes at most ``(U - seconds before it) / M``, so that
  ``C <= U / M (e - s + sum_{j<s} (1 - 1/M)^j)``; the same holds for the k stages of the suffix,
  with U less what comes before them;
* an all-reduce of the suffix costs what is left of it after all backward passes in front, so that
  core plus tail of the suffix, plus the forward seconds in front, are a lower bound too.

``Prefixes`` looks at a coarse chain as well. The pivots are merged into blocks. A cut anywhere in a
block is replaced by the best of all its pivots for each term: the stage behind it starts at the
block's last pivot, the stage before it ends at the first, and the fewest bytes of the block cross.
Forward over the stages, three numbers are bounded per (stages s, block, devices e): the length of
the first s stages taken alone; their seconds plus the tail that they bring; and their forward
seconds (transfers included). With x the seconds of the next stage, f its forward seconds, r its
all-reduce and t the seconds of the transfer before it,

    seconds' >= max(seconds + t, forward + t / 2 + r) + x
    length'  >= max(length, seconds + M t, seconds' + (M - 1) x)
    forward' >= forward + t / 2 + f

Seconds of single stages and transfers are those of ``parenvs.pipeline.formulas``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from parenvs.cluster import group_bandwidth, same_server
from parenvs.pipeline import formulas
from parenvs.pipeline.problem import Pipeline

_BLOCKS = 128
_ELEMENTS = 65536  # of one matrix


class Prefixes:
    """Bounds for prefixes whose cuts are among ``pivots``, of plans shorter than ``budget``."""

    def __init__(
        self,
        pipeline: Pipeline,
        stages: int,
        pivots: np.ndarray,
        budget: float,
        blocks: int | None = None,
        devices: np.ndarray | None = None,
    ) -> None:
        """Prepare the bounds of up to ``stages`` - 1 stages in front.

        Args:
            pipeline: the problem.
            stages: S.
            pivots: where plans may cut the chain.
            budget: seconds.
            blocks: number of blocks.
            devices: where plans may cut the devices, both ends included; anywhere if left out.
        """
        self.pipeline, self.budget = pipeline, budget
        count = _BLOCKS if blocks is None else blocks
        starts = np.unique(np.linspace(0, len(pivots), count, endpoint=False).astype(np.int64))
        self._first = pivots[starts]
        self._last = pivots[np.append(starts[1:], len(pivots)) - 1]
        self._bytes = np.minimum.reduceat(pipeline.cut_before[pivots], starts)
        count, total, m = pipeline.cluster.devices, pipeline.seconds_sum, pipeline.micro_batches
        cuts = np.arange(1, count) if devices is None else devices[1:-1]
        # Entry s: devices, blocks and the three bounds of s stages, where they keep the budget.
        self._tables: list[tuple[np.ndarray, ...]] = [()]
        for s in range(1, stages):
            e = cuts[s - 1 : len(cuts) - stages + s + 1]
            # The work before a block and the work behind it must fit their devices.
            fits = m * total[self._first] <= budget * e[:, None]
            fits &= m * (total[-1] - total[self._last]) <= budget * (count - e[:, None])
            unit, block = np.nonzero(fits)
            found = self._best(s, e[unit], self._first[block], self._last[block])
            some = found[0] <= budget
            self._tables.append((e[unit][some], block[some], *(x[some] for x in found)))

    def bounds(
        self, s: int, e: np.ndarray, pivots: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Least length, seconds with tail and forward seconds of s stages; infinite where beyond.

        Args:
            s: stages in front.
            e: (p,) ascending; their devices.
            pivots: (p,) where the prefixes end.
        """
        # What the whole block of a pivot cannot keep, the pivot cannot.
        device, block = self._tables[s][:2]
        blocks = len(self._first)
        place = e * blocks + np.searchsorted(self._first, pivots, side="right") - 1
        some = np.flatnonzero(np.isin(place, device * blocks + block))
        result = np.full((3, len(pivots)), np.inf)
        result[:, some] = self._best(s, e[some], pivots[some], pivots[some])
        return result[0], result[1], result[2]

    def _best(self, s: int, e: np.ndarray, pivots: np.ndarray, last: np.ndarray) -> np.ndarray:
        """(3, p) bounds of s stages that end at one of the pivots from ``pivots`` to ``last``."""
        pipeline, cluster = self.pipeline, self.pipeline.cluster
        m, server = pipeline.micro_batches, cluster.devices_per_server
        c, f, w = pipeline.seconds_sum, pipeline.forward_sum, pipeline.parameter_sum
        if s == 1:
            reduce = cluster.sync_seconds(w[pivots], np.zeros_like(e), e, pipeline.sync)
            seconds, forward = (formulas.compute_seconds(x[pivots], e) for x in (c, f))
            return np.stack([m * seconds + reduce, seconds + reduce, forward])
        device, block, length, seconds, forward = self._tables[s - 1]
        end, first, crossing = self._last[block], self._first[block], self._bytes[block]
        fastest = max(cluster.intra_bw, cluster.inter_bw)
        best = np.full((3, len(pivots)), np.inf)
        for one in np.unique(e):
            n = int(np.searchsorted(device, one))
            if not n:
                continue
            # All stages [d, e) at once: what depends on d and the block is a row of each matrix.
            d = device[:n]
            # The transfer before it starts on device 0, or at best on the device before d.
            near = same_server(np.zeros_like(d) if s == 2 else d - 1, one, server)
            bandwidth = group_bandwidth(near, fastest, cluster.inter_bw)
            transfer = 2 * formulas.transfer_seconds(crossing[:n], bandwidth)
            sync = cluster.sync_seconds(np.ones(1), d, one, pipeline.sync)
            before, hidden = seconds[:n] + transfer, forward[:n] + transfer / 2
            least = np.maximum(length[:n], before + (m - 1) * transfer)
            begin, stop = np.searchsorted(e, [one, one + 1])
            step = max(_ELEMENTS // n, 1)
            for at in range(begin, stop, step):
                some = slice(at, min(at + step, stop))
                p = pivots[some, None]
                share = formulas.compute_seconds(1.0, one - d)
                x = np.maximum(c[p] - c[end[:n]], 0.0) * share
                total = np.maximum(w[p] - w[end[:n]], 0.0) * sync
                total += hidden
                np.maximum(total, before, out=total)
                total += x
                y = np.maximum(f[p] - f[end[:n]], 0.0) * share
                y += hidden
                x *= m - 1
                x += total
                np.maximum(x, least, out=x)
                x[last[some, None] <= first[:n]] = np.inf
                lost = x > self.budget
                total[lost] = np.inf
                y[lost] = np.inf
                best[:, some] = x.min(axis=1), total.min(axis=1), y.min(axis=1)
        return best


SLACK = 1e-12
"""Relative: plans that beat the incumbent by less than this are not looked for. It is far above
the rounding of the few sums that a bound is made of, and far below any difference that matters."""


@dataclass
class Columns:
    """What is known of the states (k, p, e) of one k: arrays over the states that are left.

    Attributes:
        pivot: p.
        device: e.
        seconds: prefix sum of seconds at p.
        before: least seconds of the stages and transfers in front of the transfer at p; with the
            better bounds, of them and the tail that they bring.
        before_forward: least forward seconds of them.
        before_backward: least backward seconds of them.
        reduce: least tail that they bring: the all-reduce of a single stage.
        fast: seconds (forward plus backward) of the transfer at p if the first stage of the suffix
            lies in one server and the stage before starts there.
        slow: seconds of that transfer otherwise.
        core_limit: most seconds of transfer plus core.
        sum_limit: most seconds of half the transfer plus core plus tail.
    """

    pivot: np.ndarray
    device: np.ndarray
    seconds: np.ndarray
    before: np.ndarray
    before_forward: np.ndarray
    before_backward: np.ndarray
    reduce: np.ndarray
    fast: np.ndarray
    slow: np.ndarray
    core_limit: np.ndarray
    sum_limit: np.ndarray

    def take(self, kept: np.ndarray) -> Columns:
        """The states where ``kept``, bool, is true."""
        return Columns(*(getattr(self, column.name)[kept] for column in fields(self)))

    def tighten(self, before: np.ndarray, forward: np.ndarray, budget: float) -> None:
        """Put in better bounds of the seconds (with tail) and the forward seconds in front."""
        self.before = np.maximum(self.before, before)
        self.before_forward = np.maximum(self.before_forward, forward)
        self.core_limit = budget - self.before - self.reduce
        self.sum_limit = budget - self.before_forward

    def transfer(self, near: bool) -> np.ndarray:
        """Seconds of the transfers inside a server or not."""
        return self.fast if near else self.slow

    def least(self, near: bool) -> np.ndarray:
        """Least seconds of the transfers if the suffix's first stage lies in one server or not."""
        return np.minimum(self.fast, self.slow) if near else self.slow


class Bounds:
    """Lower bounds for plans of ``stages`` stages."""

    def __init__(self, pipeline: Pipeline, stages: int) -> None:
        """Prepare what does not depend on the state."""
        self.pipeline, self.stages = pipeline, stages
        self.prefixes: Prefixes | None = None
        seconds = pipeline.profile.seconds
        work = seconds > 0
        share = pipeline.profile.forward[work] / seconds[work]
        self._forward_share, self._backward_share = float(share.min()), float((1 - share).min())
        # Entry p: fewest bytes that cross a cut strictly inside the first p pivots.
        inner = np.minimum.accumulate(np.append(np.inf, pipeline.cut_before[1:-1]))
        self._least_cut = np.append(0.0, np.where(np.isfinite(inner), inner, 0.0))
        self._fastest = max(pipeline.cluster.intra_bw, pipeline.cluster.inter_bw)
        decay = (1.0 - 1.0 / pipeline.micro_batches) ** np.arange(stages)
        self._capacity = np.append(0.0, np.cumsum(decay))

    def columns(self, k: int, e: int | np.ndarray, p: np.ndarray, upper: float) -> Columns:
        """The states (p, e), elementwise, where k last stages may be part of a plan below upper."""
        pipeline, cluster = self.pipeline, self.pipeline.cluster
        e = np.broadcast_to(e, p.shape)
        m, s, budget = pipeline.micro_batches, self.stages - k, upper * (1.0 - SLACK)
        weights, variables = pipeline.parameter_sum, pipeline.variable_sum
        limit = pipeline.memory_limit * (1 + SLACK)
        ok = (variables[p] >= s) & (variables[-1] - variables[p] >= k)
        ok &= formulas.weight_bytes(weights[p], pipeline.copies) <= s * limit
        ok &= formulas.weight_bytes(weights[-1] - weights[p], pipeline.copies) <= k * limit
        ok &= m * pipeline.seconds_sum[p] <= budget * (e - s + self._capacity[s])
        zero, reduce = np.zeros_like(p), np.zeros(len(p))
        if s == 1:
            reduce = cluster.sync_seconds(weights[p], zero, zero + e, pipeline.sync)
            ok &= m * pipeline.seconds_sum[p] / e + reduce <= budget
            needs = pipeline.memory_of(zero, p, zero + e, zero + self.stages)
            ok &= needs <= pipeline.memory_limit
        columns = self._worth(k, self._in_front(k, e[ok], p[ok], reduce[ok], budget))
        if s > 1 and self.prefixes is not None and columns.pivot.size:
            length, before, forward = self.prefixes.bounds(s, columns.device, columns.pivot)
            columns.tighten(before, forward, budget)
            columns = self._worth(k, columns.take(length <= budget))
        return columns

    def _worth(self, k: int, columns: Columns) -> Columns:
        """Those whose transfer, and whose suffix's work alone, leave a chance."""
        m, least = self.pipeline.micro_batches, columns.least(True)
        room = self.pipeline.cluster.devices - columns.device - k + self._capacity[k]
        rest = self.pipeline.seconds_sum[-1] - columns.seconds
        left = columns.core_limit - least
        return columns.take((m * least <= columns.core_limit) & (m * rest <= left * room))

    def _in_front(
        self, k: int, e: np.ndarray, p: np.ndarray, reduce: np.ndarray, budget: float
    ) -> Columns:
        """Bounds on the stages in front of p, on the first e devices, by their work alone."""
        pipeline, cluster, s = self.pipeline, self.pipeline.cluster, self.stages - k
        c = pipeline.seconds_sum[p]
        before = c / (e - s + 1)
        if np.isfinite(budget):
            before = np.maximum(before, c - (e - s) * budget / pipeline.micro_batches)
        forward = np.maximum(pipeline.forward_sum[p] / (e - s + 1), self._forward_share * before)
        backward = np.maximum(pipeline.backward_sum[p] / (e - s + 1), self._backward_share * before)
        inside = (s - 1) * self._least_cut[p] / self._fastest
        before = before + 2 * inside
        # The single stage in front starts at device 0; of several, the last may start anywhere.
        near = cluster.same_server(np.zeros_like(e) if s == 1 else e - 1, e + 1)
        slow, fast = (
            2 * formulas.transfer_seconds(pipeline.cut_before[p], bandwidth)
            for bandwidth in (cluster.inter_bw, cluster.intra_bw)
        )
        fast = np.where(near, fast, slow)
        return Columns(
            p, e, c, before, forward + inside, backward + inside, reduce, fast, slow,
            budget - before - reduce, budget - forward - inside,
        )  # fmt: skip
