"""Lower bounds of what stands in front of a suffix, from a coarse chain.

The pivots are merged into blocks. A cut anywhere in a block is replaced by the best of all its
pivots for each term: the stage behind it starts at the block's last pivot, the stage before it
ends at the first, and the fewest bytes of the block cross. Forward over the stages, three numbers
are bounded per (stages s, block, devices e): the length of the first s stages taken alone, their
seconds and their forward seconds (transfers included). With x the seconds of the next stage and t
those of the transfer before it,

    length' >= max(length, seconds + M t, seconds + t + M x, forward + t / 2 + M x + all-reduce)
"""

from __future__ import annotations

import numpy as np

from parenvs.pipeline import Pipeline

_BLOCKS = 128


class Prefixes:
    """Bounds for prefixes whose cuts are among ``pivots``, of plans shorter than ``budget``."""

    def __init__(self, pipeline: Pipeline, stages: int, pivots: np.ndarray, budget: float) -> None:
        """Prepare the bounds of up to ``stages`` - 1 stages in front."""
        self.pipeline, self.budget = pipeline, budget
        starts = np.unique(np.linspace(0, len(pivots), _BLOCKS, endpoint=False).astype(np.int64))
        self._first = pivots[starts]
        self._last = pivots[np.append(starts[1:], len(pivots)) - 1]
        self._bytes = np.minimum.reduceat(pipeline.cut_before[pivots], starts)
        devices, total = pipeline.cluster.devices, pipeline.seconds_sum
        m, blocks = pipeline.micro_batches, len(starts)
        self._tables: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}
        for s in range(1, stages - 1):
            for e in range(s, devices - stages + s + 1):
                # The work before a block and the work behind it must fit their devices.
                fits = m * total[self._first] <= budget * e
                fits &= m * (total[-1] - total[self._last]) <= budget * (devices - e)
                rows = np.flatnonzero(fits)
                table = tuple(np.full(blocks, np.inf) for _ in range(3))
                found = self.bounds(s, e, self._first[rows], self._last[rows])
                for values, some in zip(table, found, strict=True):
                    values[rows] = some
                self._tables[s, e] = table

    def bounds(
        self, s: int, e: int, pivots: np.ndarray, last: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Least length, seconds and forward seconds of s stages that end before the pivots.

        Args:
            s: stages in front.
            e: their devices.
            pivots: (p,) ascending; where the prefixes end.
            last: (p,) the last pivot that an entry stands for; the pivot itself if left out.
        """
        pipeline, cluster = self.pipeline, self.pipeline.cluster
        c, f, w = pipeline.seconds_sum, pipeline.forward_sum, pipeline.parameter_sum
        m, server = pipeline.micro_batches, cluster.devices_per_server
        last = pivots if last is None else last
        if s == 1:
            zero = np.zeros_like(pivots)
            reduce = cluster.sync_seconds(w[pivots], zero, zero + e, pipeline.sync)
            return m * c[pivots] / e + reduce, c[pivots] / e, f[pivots] / e
        best = np.full((3, len(pivots)), np.inf)
        for d in range(s - 1, e):
            table = self._tables[s - 1, d]
            some = np.flatnonzero(table[0] <= self.budget)
            if not some.size:
                continue
            length, seconds, forward = (x[some] for x in table)
            near = d // server == (e - 1) // server and (d < server if s == 2 else d % server > 0)
            fastest = max(cluster.intra_bw, cluster.inter_bw) if near else cluster.inter_bw
            transfer = 2 * self._bytes[some] / fastest
            end = self._last[some]
            byte, first_device, end_device = np.ones(1), np.array([d]), np.array([e])
            sync = cluster.sync_seconds(byte, first_device, end_device, pipeline.sync)
            x = np.maximum(c[pivots][:, None] - c[end], 0.0) / (e - d)
            value = x * m
            reduce = np.maximum(w[pivots][:, None] - w[end], 0.0) * sync
            reduce += value
            reduce += forward + transfer / 2
            value += seconds + transfer
            np.maximum(value, reduce, out=value)
            np.maximum(value, np.maximum(length, seconds + m * transfer), out=value)
            value[last[:, None] <= self._first[some]] = np.inf
            np.minimum(best[0], value.min(axis=1), out=best[0])
            lost = value > self.budget
            x += seconds + transfer
            x[lost] = np.inf
            np.minimum(best[1], x.min(axis=1), out=best[1])
            x = np.maximum(f[pivots][:, None] - f[end], 0.0) / (e - d)
            x += forward + transfer / 2
            x[lost] = np.inf
            np.minimum(best[2], x.min(axis=1), out=best[2])
        return best[0], best[1], best[2]
