"""What a step of ``PipelineCut-v0`` shows and pays, for one environment and for many at once.

A step is made of figures of single stages, and a stage is a pair of neighbouring cuts: few enough
to tabulate. ``parenvs.tasks.pipeline.formulas`` fills the tables and puts the stages of a plan
together; nothing is computed by another rule. Lengths are bit for bit those of ``Pipeline.length``.

Features are maxima, minima, division by a positive scale and rounding to float32. These keep the
order of numbers and so may be exchanged: the maximum of rounded figures is the rounded maximum.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from parenvs.arrays import largest
from parenvs.cluster import server_of
from parenvs.core.plan import ILLEGAL
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.cuts import CutSpace

MOST_BYTES = 16 << 20
"""Size up to which one environment tabulates stages; beyond, they are computed in every step."""
MAX_BYTES_VECTOR = 96 << 20
"""The same of many environments: tables that take longer to build pay off."""
MAX_OPENINGS = 1 << 22
"""Float32 numbers up to which the observations after the first cut are tabulated."""
BLOCK = 1 << 14
"""Pairs of environment and candidate worked on at a time, so that temporaries stay in the cache."""


class SettledStages(NamedTuple):
    """Extremes over the stages whose both ends are chosen: what features need of the past.

    Attributes:
        longest_all_reduce: scaled.
        longest_transfer: scaled.
        least_compute: seconds.
        minus_greatest_compute: seconds, negated so that one minimum updates both.
    """

    longest_all_reduce: float
    longest_transfer: float
    least_compute: float
    minus_greatest_compute: float


NOTHING = SettledStages(0.0, 0.0, np.inf, np.inf)
"""Before the first cut."""


class CutKernel:
    """Tables of a problem and what is made of them; the environments of a problem share one.

    Candidates are counted 0..c-1; as neighbours of a stage, ``end`` (c) stands for the end of the
    chain and ``start`` (c+1) for its first pivot. A *chain* is ``start``, the cuts made, and for a
    whole plan ``end``. Step k, 0..S-2, chooses cut k and so completes stage k; stage S-1 goes on to
    the end. Figures of observations are *scaled*: over the instance's maximum, at most 1, rounded
    to float32. Nothing in a kernel changes once it is built.

    Args:
        space: the candidates.
        most_bytes: tables of stages are built if they take no more than this.

    Attributes:
        space: the candidates.
        bubble_free: ``Pipeline.bubble_free``, seconds.
        cuts: S-1, cuts of a plan.
        counts: the numbers 0..S-1 as observations have them; making one takes longer.
        no_cuts: (S-1,) float32, -1 each, likewise.
        low: first candidate of each step's window.
        high: one past the last candidate of each step's window.
        follower: (c+2,) int64, the first candidate that may come after each; ``start`` included.
        after: the same as a list, which is faster for single ones.
        overlaps: of each step, whether some cut before it makes part of its window illegal.
        inside: of each step, whether a transfer over the cut before it can stay in one server.
        shares: (c,) float32, pivots over n.
        seconds_sum: (c+2,) float64, seconds of the model before each; all of them at ``end``.
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
        first: (c, 3) float32, features before the first cut.
        openings: (w, c, 3) float32, features after each candidate of the first window, or None
            where there is no second cut or they are too many.
    """

    def __init__(self, space: CutSpace, most_bytes: int = MOST_BYTES) -> None:
        """Build the tables; ``kernel_of`` finds those that exist."""
        self._most_bytes = most_bytes
        pipeline, cluster = space.pipeline, space.pipeline.cluster
        count, windows = len(space.pivots), space.windows()
        self.space = space
        self.cuts = space.stages - 1
        self.counts = [np.int64(step) for step in range(space.stages)]
        self.no_cuts = np.full(self.cuts, -1.0, dtype=np.float32)
        self.end, self.start = count, count + 1
        self.low, self.high = [low for low, _ in windows], [high for _, high in windows]
        follower = space.followers()
        self.follower = np.append(follower, follower[-1])
        self.after: list[int] = self.follower.tolist()
        self.shares = (space.pivots / len(pipeline.profile)).astype(np.float32)
        self.pivot = np.append(space.pivots, [len(pipeline.profile), 0])
        self.device = np.append(space.devices, [cluster.devices, 0])
        # A group of devices is inside a server if that of its first device is that of its last.
        last_device, per_server = self.device[: self.start] - 1, cluster.devices_per_server
        first_server: np.ndarray = server_of(self.device, per_server)
        last_server: np.ndarray = server_of(last_device, per_server)
        self.edge = np.searchsorted(last_server, first_server, side="right")
        self.seconds_sum = pipeline.seconds_sum[self.pivot]
        crossing = pipeline.cut_before[self.pivot]
        self.transfers = np.stack(
            [formulas.transfer_seconds(crossing, x) for x in (cluster.inter_bw, cluster.intra_bw)]
        )
        self.bubble_free, self._limit = pipeline.bubble_free, pipeline.memory_limit
        self._micro_batches = pipeline.micro_batches

        whole = (np.array(0), np.array(cluster.devices))
        reduce = float(cluster.sync_seconds(pipeline.parameter_sum[-1:], *whole)[0])
        most_crossing = crossing[:count].max()
        transfer = float(formulas.transfer_seconds(most_crossing, cluster.bandwidth(*whole)))
        self._scale = np.array([reduce or 1.0, transfer or 1.0, 1.0])
        self.slow, self.fast = self._scaled(self.transfers, 1)
        # Lists are faster than arrays where single numbers are looked up.
        self._edges: list[int] = self.edge.tolist()
        self._links: list[list[float]] = self.transfers.tolist()
        self._scaled_links: list[list[float]] = [self.slow.tolist(), self.fast.tolist()]

        self._ahead = [np.array([self.start]), *(np.arange(*window) for window in windows)]
        self.overlaps = [
            bool((self.follower[last] > low).any())
            for last, low in zip(self._ahead, self.low, strict=False)
        ]
        self._rest = self._compute_and_reduce(np.arange(count), np.array(self.end))

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
            self._scalars = list(zip(self.columns.tolist(), self.bias.tolist(), strict=True))
        self.first = self._first_features()
        self.openings = self._opening_features()
        for attribute in vars(self).values():
            if isinstance(attribute, np.ndarray):
                attribute.setflags(write=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> CutKernel:
        """Itself: nothing in it changes."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its space; tables are made anew, once in a process."""
        return kernel_of, (self.space, self._most_bytes)

    # One environment: numbers are Python's, which are float64, too.

    def settle_one(self, chain: list[int], cut: int, past: SettledStages) -> SettledStages:
        """What is settled once ``cut`` follows the chain, ``past`` being so before."""
        step, last = len(chain) - 1, chain[-1]
        if self.tabulated:
            columns, bias = self._scalars[step]
            pair = last * columns + cut + bias
            seconds, reduce = self.paces.item(pair, 0), self.peaks.item(pair, 0)
        else:
            compute, scaled = self._compute_and_reduce(np.array(last), np.array(cut))
            seconds, reduce = float(compute), float(scaled)
        link = 0.0
        if step:
            link = self._scaled_links[cut < self._edges[chain[-2]]][last]
        longest_all_reduce, longest_transfer, least_compute, minus_greatest = past
        return SettledStages(
            max(longest_all_reduce, reduce),
            max(longest_transfer, link),
            min(least_compute, seconds),
            min(minus_greatest, -seconds),
        )

    def features_one(self, chain: list[int], begin: int, settled: SettledStages) -> np.ndarray:
        """(c, 3) float32, features after the cuts of a chain, the legal ones from ``begin`` on."""
        step, last = len(chain) - 1, chain[-1]
        if step == 0:
            return self.first.copy()
        if step == 1 and self.openings is not None:
            return self.openings[last - self.low[0]].copy()
        features = np.zeros((self.end, 3), dtype=np.float32)
        peaks, paces = self.row(step, chain[-2], last)
        reduce, transfer, least_compute, minus_greatest = settled
        skip = begin - self.low[step]
        view = features[begin : self.high[step]]
        np.maximum(peaks[0, skip:], reduce, out=view[:, 0])
        np.maximum(peaks[1, skip:], transfer, out=view[:, 1])
        ratio = np.minimum(paces[0, skip:], least_compute)
        ratio /= np.minimum(paces[1, skip:], minus_greatest)
        view[:, 2] = np.negative(ratio, out=ratio)
        return features

    def length_and_excess_one(self, chain: list[int]) -> tuple[float, float]:
        """``Pipeline.length`` and ``Pipeline.excess_bytes`` of a whole plan."""
        if not self.tabulated:
            length, excess = self.length_and_excess(np.array(chain)[:, None])
            return float(length[0]), float(excess[0])
        append, m, figure = formulas.append, self._micro_batches, self.figures.item
        prefix, fullest, link, before = formulas.NOTHING, 0.0, 0.0, 0
        for stage, (columns, bias) in enumerate(self._scalars):
            last, cut = chain[stage], chain[stage + 1]
            if stage:
                link = self._links[cut < self._edges[before]][last]
            pair = last * columns + cut + bias
            prefix = append(prefix, link, figure(0, pair), figure(1, pair), figure(2, pair), m)
            fullest = max(fullest, figure(3, pair))
            before = last
        return prefix.core + prefix.tail, fullest - self._limit

    def reward(self, length: np.ndarray, excess_bytes: np.ndarray) -> np.ndarray:
        """Return what whole plans of some lengths and excess bytes, (m,) each, are paid."""
        return np.where(excess_bytes <= 0, formulas.value(length, self.bubble_free), ILLEGAL)

    def least_excess(self) -> float:
        """``Pipeline.excess_bytes`` of the plan that needs least; minus infinity without tables."""
        if not self.tabulated:
            return -np.inf
        fullest = np.zeros(1)  # of the best stages up to each cut of the window before
        for step, last in enumerate(self._ahead):
            cut = np.array([self.end]) if step == self.cuts else self._ahead[step + 1]
            pair = last[:, None] * self.columns[step] + cut + self.bias[step]
            legal = self.follower[last][:, None] <= cut
            after = np.where(legal, np.maximum(fullest[:, None], self.figures[3][pair]), np.inf)
            fullest = after.min(axis=0)
        return float(fullest[0] - self._limit)

    # Many environments, arrays over them.

    def settle(
        self, step: int, chains: np.ndarray, peaks: np.ndarray, paces: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What is settled once each chain has got its cut ``step``.

        Args:
            step: number of the stage that this completes.
            chains: (step + 2 or more, m), the new cut in row ``step + 1``.
            peaks: (m, 2) float32, longest scaled all-reduce and transfer before (step 0: anything).
            paces: (m, 2) float64, least compute seconds and minus the greatest before.

        Returns:
            ``peaks`` and ``paces`` with the new stage, fresh arrays.
        """
        last, cut = chains[step], chains[step + 1]
        if self.tabulated:
            pair = last * self._scalars[step][0]
            pair += cut
            pair += self._scalars[step][1]
            new_peaks, new_paces = self.peaks.take(pair, axis=0), self.paces.take(pair, axis=0)
        else:
            compute, reduce = self._compute_and_reduce(last, cut)
            new_peaks = np.stack([reduce, np.zeros_like(reduce)], axis=-1)
            new_paces = np.stack([compute, -compute], axis=-1)
        if step == 0:
            return new_peaks, new_paces
        link = self.slow.take(last)
        if self.inside[step]:
            link = np.where(cut < self.edge.take(chains[step - 1]), self.fast.take(last), link)
        new_peaks[:, 1] = link
        np.maximum(peaks, new_peaks, out=new_peaks)
        np.minimum(paces, new_paces, out=new_paces)
        return new_peaks, new_paces

    def features(
        self,
        step: int,
        chains: np.ndarray,
        peaks: np.ndarray,
        paces: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Write features after ``step`` >= 1 cuts.

        Args:
            step: cuts made.
            chains: (step + 1 or more, m).
            peaks: (m, 2) float32, what is settled, see ``settle``.
            paces: (m, 2) float64, likewise.
            out: (m, c, 3) float32, all zeros.
        """
        low, high = self.low[step], self.high[step]
        rows = max(1, BLOCK // (high - low))
        for begin in range(0, chains.shape[1], rows):
            part = slice(begin, begin + rows)
            view = out[part, low:high]
            # Candidates that are not legal have paces 0 and -1, of which the ratio is 0.
            peak, pace = self.rows(step, chains[step - 1, part], chains[step, part])
            both = peak[:, :2]
            np.maximum(both, peaks[part, :, None], out=both)
            if self.overlaps[step]:
                both *= peak[:, 2:]
            view[..., 0], view[..., 1] = both[:, 0], both[:, 1]
            np.minimum(pace, paces[part, :, None], out=pace)
            ratio = np.divide(pace[:, 0], pace[:, 1])
            view[..., 2] = np.negative(ratio, out=ratio)

    def evenly(self, step: int, chains: np.ndarray) -> None:
        """Go on with stages of the same seconds each, as far as candidates are near and legal.

        Args:
            step: cuts made less one.
            chains: (S+1, m), of which rows up to ``step + 1`` are given and the others are written.
        """
        before = self.seconds_sum[: self.end]
        for k in range(step + 1, self.cuts):
            last = chains[k]
            done = self.seconds_sum[last]
            ideal = done + (self.seconds_sum[self.end] - done) / (self.cuts + 1 - k)
            cut = np.searchsorted(before, ideal).clip(1, self.end - 1)
            cut -= ideal - before[cut - 1] < before[cut] - ideal
            least = np.maximum(self.follower[last], self.low[k])
            chains[k + 1] = cut.clip(least, self.high[k] - 1)
        chains[self.cuts + 1] = self.end

    def length_and_excess(self, chains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``Pipeline.length`` and ``Pipeline.excess_bytes``, (m,), of whole plans (S+1, m)."""
        if not self.tabulated:
            inner, pipeline = chains[1:-1].T, self.space.pipeline
            plans = self.pivot[inner], self.device[inner]
            return pipeline.length(*plans), pipeline.excess_bytes(*plans)
        last = chains[1:-1]
        pair = chains[:-1] * self.columns[:, None]
        pair += chains[1:]
        pair += self.bias[:, None]
        seconds, backward, all_reduce, memory = self.figures.take(pair, axis=1)
        link = self.transfers[0].take(last)
        if any(self.inside):
            near = chains[2:] < self.edge.take(chains[:-2])
            link = np.where(near, self.transfers[1].take(last), link)
        core, tail = formulas.core_and_tail(
            formulas.interleaved(seconds, link + link),
            formulas.interleaved(backward, link),
            all_reduce,
            self._micro_batches,
        )
        return core + tail, largest(memory) - self._limit

    # What each candidate of a window would add, the rest being one last stage.

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
        peaks, paces = self._computed_rows(step, np.array([before]), np.array([last]))
        return peaks[0], paces[0]

    def _computed_rows(
        self, step: int, before: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """``rows`` without tables; for step 0, too: ``before`` and ``last`` are ``start`` then."""
        cut, first = np.arange(self.low[step], self.high[step]), last[:, None]
        legal = cut >= self.follower[first]
        compute, reduce = self._compute_and_reduce(first, cut)
        compute_last, reduce_last = (figure[cut] for figure in self._rest)
        # Transfers over the last cut, which is settled by the candidate, and over the candidate.
        link = np.where(cut < self.edge[before][:, None], self.fast[first], self.slow[first])
        link_new = np.where(self.edge[first] > self.end, self.fast[cut], self.slow[cut])
        peaks = np.zeros((len(last), 3, len(cut)), dtype=np.float32)
        np.maximum(reduce, reduce_last, out=peaks[:, 0], where=legal)
        np.maximum(link, link_new, out=peaks[:, 1], where=legal)
        peaks[:, 2] = legal
        paces = np.zeros((len(last), 2, len(cut)))
        paces[:, 1] = -1.0
        np.minimum(compute, compute_last, out=paces[:, 0], where=legal)
        np.minimum(-compute, -compute_last, out=paces[:, 1], where=legal)
        return peaks, paces

    def _compute_and_reduce(
        self, last: np.ndarray, cut: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute seconds and scaled all-reduce of the stages between two cuts, elementwise.

        Pairs that are no stage give numbers that mean nothing.
        """
        first = self.device[last]
        end = np.maximum(self.device[cut], first + 1)
        work = self.seconds_sum[cut] - self.seconds_sum[last]
        pivots = self.pivot[last], np.maximum(self.pivot[cut], self.pivot[last])
        reduce = self.space.pipeline.reduce_seconds(*pivots, first, end)
        return formulas.compute_seconds(work, end - first), self._scaled(reduce, 0)

    # How the tables are filled.

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
            clipped = self.edge[before[step]].clip(self.low[step], self.high[step])
            kinds = before[step][[int(np.flatnonzero(clipped == x)[0]) for x in edge]]
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
            pairs = slice(offsets[stage], offsets[stage + 1])
            last, cut = np.repeat(rows, len(columns)), np.tile(columns, len(rows))
            # Pairs that are no stage get one pivot and one device, to avoid division by zero; they
            # are never read.
            first, first_device = self.pivot[last], self.device[last]
            end = np.maximum(self.pivot[cut], first + 1)
            end_device = np.maximum(self.device[cut], first_device + 1)
            group = end_device - first_device
            forward, backward = (
                formulas.compute_seconds(total[end] - total[first], group)
                for total in (pipeline.forward_sum, pipeline.backward_sum)
            )
            self.figures[:, pairs] = (
                forward + backward,
                backward,
                pipeline.reduce_seconds(first, end, first_device, end_device),
                pipeline.memory_of(first, end, group, np.array(self.space.stages - stage)),
            )
            compute, self.peaks[pairs, 0] = self._compute_and_reduce(last, cut)
            self.paces[pairs] = np.stack([compute, -compute], axis=-1)

    def _first_features(self) -> np.ndarray:
        start = np.array([self.start])
        peaks, paces = self._computed_rows(0, start, start)
        features = np.zeros((self.end, 3), dtype=np.float32)
        view = features[self.low[0] : self.high[0]]
        view[:, :2] = peaks[0, :2].T
        view[:, 2] = -(paces[0, 0] / paces[0, 1])
        return features

    def _opening_features(self) -> np.ndarray | None:
        cut = np.arange(self.low[0], self.high[0])
        if self.cuts < 2 or 3 * self.end * len(cut) > MAX_OPENINGS:
            return None
        chains = np.stack([np.full(len(cut), self.start), cut])
        unset = np.empty(0)
        peaks, paces = self.settle(0, chains, unset, unset)
        result = np.zeros((len(cut), self.end, 3), dtype=np.float32)
        self.features(1, chains, peaks, paces, result)
        return result

    def _scaled(self, figures: Any, feature: int) -> np.ndarray:
        return np.minimum(figures / self._scale[feature], 1.0).astype(np.float32)


_kernels: WeakValueDictionary[bytes, CutKernel] = WeakValueDictionary()


def kernel_of(space: CutSpace, most_bytes: int = MOST_BYTES) -> CutKernel:
    """The kernel of a space; spaces of equal content share one while it is in use."""
    pipeline, profile = space.pipeline, space.pipeline.profile
    options = tuple(pipeline.options.values())
    settings = (pipeline.cluster, pipeline.micro_batches, options, profile.tied, space.stages)
    key = hashlib.sha256(repr((*settings, most_bytes)).encode())
    arrays = [profile.forward, profile.backward, profile.cut_bytes, profile.parameter_bytes]
    optional = (profile.resident_bytes, profile.frozen_bytes)
    arrays += [array for array in optional if array is not None]
    for array in (*arrays, space.pivots, space.devices, space.allowed):
        key.update(f"{array.shape}".encode())
        key.update(array.tobytes())
    kernel = _kernels.get(key.digest())
    if kernel is None:
        kernel = _kernels[key.digest()] = CutKernel(space, most_bytes)
    return kernel
