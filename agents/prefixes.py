"""Lower bounds of what stands in front of a suffix, from a coarse chain.

The pivots are merged into blocks. A cut anywhere in a block is replaced by the best of all its
pivots for each term: the stage behind it starts at the block's last pivot, the stage before it
ends at the first, and the fewest bytes of the block cross. Forward over the stages, three numbers
are bounded per (stages s, block, devices e): the length of the first s stages taken alone; their
seconds plus the tail that they bring; and their forward seconds (transfers included). With x the
seconds of the next stage, f its forward seconds, r its all-reduce and t the seconds of the transfer
before it,

    seconds' >= max(seconds + t, forward + t / 2 + r) + x
    length'  >= max(length, seconds + M t, seconds' + (M - 1) x)
    forward' >= forward + t / 2 + f
"""

from __future__ import annotations

import numpy as np

from parenvs.pipeline import Pipeline

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
            seconds = c[pivots] / e
            return np.stack([m * seconds + reduce, seconds + reduce, f[pivots] / e])
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
            near = d // server == (one - 1) // server
            near &= (d < server) if s == 2 else (d % server > 0)
            transfer = 2 * crossing[:n] / np.where(near, fastest, cluster.inter_bw)
            sync = cluster.sync_seconds(np.ones(1), d, one, pipeline.sync)
            before, hidden = seconds[:n] + transfer, forward[:n] + transfer / 2
            least = np.maximum(length[:n], before + (m - 1) * transfer)
            begin, stop = np.searchsorted(e, [one, one + 1])
            step = max(_ELEMENTS // n, 1)
            for at in range(begin, stop, step):
                some = slice(at, min(at + step, stop))
                p = pivots[some, None]
                share = 1.0 / (one - d)
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
