"""What the stages in front of a suffix cost at least: where suffixes are worth having at all.

The bounds on the s stages in front, on the first e devices, with C seconds of work (on one device),
of a plan that beats the incumbent U:

* their seconds sum to at least ``C / (e - s + 1)``, the most devices that one of them can have, and
  to at least ``C - (e - s) U / M``, because each takes at most U / M and has at least one device;
* stage j of them takes at most ``(U - seconds before it) / M``, so that
  ``C <= U / M (e - s + sum_{j<s} (1 - 1/M)^j)``; the same holds for the k stages of the suffix,
  with U less what comes before them;
* an all-reduce of the suffix costs what is left of it after all backward passes in front, so that
  core plus tail of the suffix, plus the forward seconds in front, are a lower bound too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from parenvs.agents.prefixes import Prefixes
from parenvs.pipeline import Pipeline

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
        ok &= pipeline.copies * weights[p] <= s * limit
        ok &= pipeline.copies * (weights[-1] - weights[p]) <= k * limit
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
        near = e < cluster.devices_per_server if s == 1 else e % cluster.devices_per_server > 0
        slow = 2 * pipeline.cut_before[p] / cluster.inter_bw
        fast = np.where(near, 2 * pipeline.cut_before[p] / cluster.intra_bw, slow)
        return Columns(
            p, e, c, before, forward + inside, backward + inside, reduce, fast, slow,
            budget - before - reduce, budget - forward - inside,
        )  # fmt: skip
