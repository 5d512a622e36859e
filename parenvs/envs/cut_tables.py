"""Tables of stages, of which a plan of ``PipelineCut-v0`` is put together.

What a step shows and pays is made of figures of single stages, and a stage is a pair of
neighbouring cuts: few enough to tabulate. All figures come from the pipeline's own functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parenvs.candidates import CutSpace

MOST_BYTES = 16 << 20
"""Size up to which one environment tabulates stages; beyond, they are computed in every step."""
MOST_BYTES_VECTOR = 96 << 20
"""The same of many environments: tables that take longer to build pay off."""


class CutTables:
    """Figures of candidates and of the stages between them. Nothing in it changes.

    Candidates are counted 0..c-1; as neighbours of a stage, ``end`` (c) stands for the end of the
    chain and ``start`` (c+1) for its first pivot. Step k, 0..S-2, chooses cut k and so completes
    stage k; stage S-1 goes on to the end. Figures of observations are *scaled*: over the instance's
    maximum, at most 1, rounded to float32.

    Attributes:
        space: the candidates.
        cuts: S-1, cuts of a plan.
        low: first candidate of each step's window.
        high: one past the last candidate of each step's window.
        follower: (c+2,) int64, the first candidate that may come after each; ``start`` included.
        after: the same as a list, which is faster for single ones.
        overlaps: of each step, whether some cut before it makes part of its window illegal.
        inside: of each step, whether a transfer over the cut before it can stay in one server.
        shares: (c,) float32, pivots over n.
        transfers: (2, c+2) float64, seconds of a transfer over each cut between servers, and inside
            one.
        slow: (c+2,) float32, the first of them scaled.
        fast: (c+2,) float32, the second.
        edge: (c+2,) int64: the transfer over the cut after this one stays inside a server if the
            next cut is below the edge, ``end`` counted as a cut.
        tabulated: whether there are tables of stages, the attributes that follow.
        columns: (S,) int64, of each stage, the number of cuts that may end it.
        bias: (S,) int64, of each stage, to find it: ``pair = last * columns + cut + bias``.
        figures: (4, pairs) float64: forward plus backward seconds, backward seconds, all-reduce
            seconds, bytes on each device.
        paces: (pairs, 2) float64: forward plus backward seconds as observations have them (another
            order of sums), and their negative.
        peaks: (pairs, 2) float32: scaled all-reduce, and 0.
        step_rows: of each step, all that ``rows`` can give.
        step_masks: of each step, (w, c) bool, the legal candidates after each cut of the window
            before (or ``start``).
    """

    def __init__(self, space: CutSpace, most_bytes: int = MOST_BYTES) -> None:
        """Build the tables, those of stages if they take no more than so many bytes."""
        pipeline, cluster = space.pipeline, space.pipeline.cluster
        count, windows = len(space.pivots), space.windows()
        self.space = space
        self.cuts = space.stages - 1
        self.end, self.start = count, count + 1
        self.low, self.high = [low for low, _ in windows], [high for _, high in windows]
        follower = space.followers()
        self.follower = np.append(follower, follower[-1])
        self.after: list[int] = self.follower.tolist()
        self.shares = (space.pivots / len(pipeline.profile)).astype(np.float32)
        self.pivot = np.append(space.pivots, [len(pipeline.profile), 0])
        self.device = np.append(space.devices, [cluster.devices, 0])
        # A group of devices is inside a server if that of its first device is that of its last.
        first_server = self.device // cluster.devices_per_server
        end_server = (self.device[: self.start] - 1) // cluster.devices_per_server
        self.edge = np.searchsorted(end_server, first_server, side="right")
        self._seconds_sum = pipeline.seconds_sum[self.pivot]
        self._parameter_sum = pipeline.parameter_sum[self.pivot]
        crossing = pipeline.cut_before[self.pivot]
        self.transfers = np.stack([crossing / cluster.inter_bw, crossing / cluster.intra_bw])

        whole = (np.array(0), np.array(cluster.devices))
        reduce = float(cluster.sync_seconds(pipeline.parameter_sum[-1:], *whole)[0])
        transfer = float(crossing[:count].max() / cluster.bandwidth(*whole))
        self.scale = np.array([reduce or 1.0, transfer or 1.0, 1.0])
        self.slow, self.fast = self._scaled(self.transfers, 1)

        self._ahead = [np.array([self.start]), *(np.arange(*window) for window in windows)]
        self.overlaps = [
            bool((self.follower[last] > low).any())
            for last, low in zip(self._ahead, self.low, strict=False)
        ]
        self._rest = self.computed(np.arange(count), np.array(self.end))

        # A transfer depends on the cut before and the cut after by way of the edge alone.
        before = [self._ahead[0], *self._ahead[:-1]]
        after = [*self._ahead[1:], np.array([self.end])]
        edges = [
            np.unique(self.edge[first].clip(cut[0], cut[-1] + 1))
            for first, cut in zip(before, after, strict=True)
        ]
        self.inside = [bool(edge[-1] > cut[0]) for edge, cut in zip(edges, after, strict=True)]
        sizes = [len(last) * len(cut) for last, cut in zip(self._ahead, after, strict=True)]
        variants = sum(size * len(edge) for size, edge in zip(sizes, edges, strict=True))
        masks = sum(len(last) for last in self._ahead) * count
        self.tabulated = 72 * sum(sizes) + 12 * variants + masks <= most_bytes
        self.step_rows: list[tuple[np.ndarray, np.ndarray]] = []
        self.step_masks: list[np.ndarray] = []
        self._variants: list[np.ndarray] = []
        if self.tabulated:
            self._tabulate_stages(after, sizes)
            self._tabulate_rows(before, edges)

    def computed(self, last: np.ndarray, cut: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``compute`` and ``reduce`` of the stages between two cuts, elementwise, no table used.

        Pairs that are no stage give numbers that mean nothing.
        """
        first = self.device[last]
        end = np.maximum(self.device[cut], first + 1)
        seconds = (self._seconds_sum[cut] - self._seconds_sum[last]) / (end - first)
        weights = self._parameter_sum[cut] - self._parameter_sum[last]
        pipeline = self.space.pipeline
        reduce = pipeline.cluster.sync_seconds(weights, first, end, pipeline.sync)
        return seconds, self._scaled(reduce, 0)

    def rows(
        self, step: int, before: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What each candidate of a window would add, the rest being one last stage.

        Args:
            step: cuts made so far, at least 1.
            before: (m,) the last but one of them, or ``start``.
            last: (m,) the last of them.

        Returns:
            ``peaks`` (m, 3, w) float32: the longest scaled all-reduce and transfer, and whether the
            candidate is legal, 1 or 0; ``paces`` (m, 2, w) float64: least compute seconds, and the
            negative of the greatest; 0 and -1 where not legal. Fresh arrays.
        """
        if not self.tabulated:
            return self._computed_rows(step, before, last)
        peaks, paces = self.step_rows[step]
        variant = self._variants[step].take(before) + last
        return peaks.take(variant, axis=0), paces.take(last - self.low[step - 1], axis=0)

    def row(self, step: int, before: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """``rows`` of one pair of cuts, (3, w) and (2, w), not to be written to."""
        if self.tabulated:
            peaks, paces = self.step_rows[step]
            return peaks[self._variants[step].item(before) + last], paces[last - self.low[step - 1]]
        found = self._computed_rows(step, np.array([before]), np.array([last]))
        return found[0][0], found[1][0]

    def _computed_rows(
        self, step: int, before: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        cut = np.arange(self.low[step], self.high[step])
        mine = last[:, None]
        legal = cut >= self.follower[mine]
        compute, reduce = self.computed(mine, cut)
        compute_last, reduce_last = (figure[cut] for figure in self._rest)
        # Transfers over the last cut, which is settled by the candidate, and over the candidate.
        link = np.where(cut < self.edge[before][:, None], self.fast[mine], self.slow[mine])
        link_new = np.where(self.edge[mine] > self.end, self.fast[cut], self.slow[cut])
        peaks = np.zeros((len(last), 3, len(cut)), dtype=np.float32)
        np.maximum(reduce, reduce_last, out=peaks[:, 0], where=legal)
        np.maximum(link, link_new, out=peaks[:, 1], where=legal)
        peaks[:, 2] = legal
        paces = np.zeros((len(last), 2, len(cut)))
        paces[:, 1] = -1.0
        np.minimum(compute, compute_last, out=paces[:, 0], where=legal)
        np.minimum(-compute, -compute_last, out=paces[:, 1], where=legal)
        return peaks, paces

    def _tabulate_rows(self, before: list[np.ndarray], edges: list[np.ndarray]) -> None:
        for step in range(self.cuts):
            last, edge = self._ahead[step], edges[step]
            numbers = np.arange(self.end)
            legal = (numbers >= self.low[step]) & (numbers < self.high[step])
            self.step_masks.append(legal & (numbers >= self.follower[last][:, None]))
            if step == 0:
                self.step_rows.append((np.empty(0), np.empty(0)))
                self._variants.append(np.empty(0))
                continue
            # One cut of each edge stands for all.
            mine = self.edge[before[step]].clip(self.low[step], self.high[step])
            kinds = before[step][[int(np.flatnonzero(mine == x)[0]) for x in edge]]
            tables = [self._computed_rows(step, np.full(len(last), x), last) for x in kinds]
            peaks = np.concatenate([table for table, _ in tables])
            self.step_rows.append((peaks, tables[0][1]))
            rank = np.searchsorted(edge, self.edge.clip(edge[0], edge[-1]))
            self._variants.append(rank * len(last) - last[0])

    def _tabulate_stages(self, after: list[np.ndarray], sizes: list[int]) -> None:
        pipeline = self.space.pipeline
        offsets = np.cumsum([0, *sizes])
        self.columns = np.array([len(cut) for cut in after])
        starts = zip(self._ahead, after, strict=True)
        self.bias = offsets[:-1] - [last[0] * len(cut) + cut[0] for last, cut in starts]
        self.figures = np.empty((4, offsets[-1]))
        self.paces = np.empty((offsets[-1], 2))
        self.peaks = np.zeros((offsets[-1], 2), dtype=np.float32)
        for stage, (rows, columns) in enumerate(zip(self._ahead, after, strict=True)):
            here = slice(offsets[stage], offsets[stage + 1])
            last, cut = np.repeat(rows, len(columns)), np.tile(columns, len(rows))
            # Pairs that are no stage are made one, so that they do no harm; nobody looks there.
            first, first_device = self.pivot[last], self.device[last]
            end = np.maximum(self.pivot[cut], first + 1)
            group = np.maximum(self.device[cut] - first_device, 1)
            forward, backward = (
                (total[end] - total[first]) / group
                for total in (pipeline.forward_sum, pipeline.backward_sum)
            )
            weights = pipeline.parameter_sum[end] - pipeline.parameter_sum[first]
            devices = (first_device, first_device + group)
            self.figures[:, here] = (
                forward + backward,
                backward,
                pipeline.cluster.sync_seconds(weights, *devices, pipeline.sync),
                pipeline.memory_of(first, end, group, np.array(self.space.stages - stage)),
            )
            compute, self.peaks[here, 0] = self.computed(last, cut)
            self.paces[here] = np.stack([compute, -compute], axis=-1)

    def _scaled(self, figures: Any, feature: int) -> np.ndarray:
        return np.minimum(figures / self.scale[feature], 1.0).astype(np.float32)
