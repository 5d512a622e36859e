"""What a step of ``PipelineCut-v0`` shows and pays, for one environment and for many at once.

Observations are bit for bit those of ``Pipeline.cut_features`` and values those of
``judge.plan_values``: sums run in the same order, and everything else is maxima, minima, division
by a positive scale and rounding to float32, which may be exchanged: they keep the order of numbers,
so that the maximum of rounded figures is the rounded maximum.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from parenvs.candidates import CutSpace
from parenvs.envs.cut_tables import MOST_BYTES, CutTables
from parenvs.judge import ILLEGAL, plan_values

MOST_OPENINGS = 1 << 22
"""Float32 numbers up to which the observations after the first cut are tabulated."""
BLOCK = 1 << 14
"""Pairs of environment and candidate worked on at a time, so that temporaries stay in the cache."""

Settled = tuple[float, float, float, float]
"""Of the stages settled: longest scaled all-reduce, transfer, least seconds, minus the greatest."""
NOTHING: Settled = (0.0, 0.0, np.inf, np.inf)
"""Before the first cut."""


class CutKernel(CutTables):
    """The tables and what is made of them; one object is shared by the environments of a problem.

    A *chain* is ``start``, the cuts made, and for a whole plan ``end``.

    Attributes:
        first: (c, 3) float32, features before the first cut.
        openings: (w, c, 3) float32, features after each candidate of the first window, or None
            where there is no second cut or they are too many.
    """

    def __init__(self, space: CutSpace, most_bytes: int = MOST_BYTES) -> None:
        """Build the tables; ``kernel_of`` finds those that exist."""
        super().__init__(space, most_bytes)
        self._most_bytes = most_bytes
        pipeline = space.pipeline
        self._more = pipeline.micro_batches - 1
        self._bubble_free, self._limit = pipeline.bubble_free, pipeline.memory_limit
        if self.tabulated:
            self._scalars = list(zip(self.columns.tolist(), self.bias.tolist(), strict=True))
        self.first = self._first_features()
        self.openings = self._opening_features()
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> CutKernel:
        """Itself: nothing in it changes."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its space; tables are made anew, once in a process."""
        return kernel_of, (self.space, self._most_bytes)

    # One environment: numbers are Python's, which are float64, too.

    def settled(self, chain: list[int], cut: int, past: Settled) -> Settled:
        """What is settled once ``cut`` follows the chain, ``past`` being so before."""
        step, last = len(chain) - 1, chain[-1]
        if self.tabulated:
            columns, bias = self._scalars[step]
            pair = last * columns + cut + bias
            seconds, reduce = self.paces.item(pair, 0), self.peaks.item(pair, 0)
        else:
            compute, scaled = self.computed(np.array(last), np.array(cut))
            seconds, reduce = float(compute), float(scaled)
        link = 0.0
        if step:
            link = (self.fast if cut < self.edge.item(chain[-2]) else self.slow).item(last)
        most_reduce, most_transfer, least, greatest = past
        return (
            max(most_reduce, reduce),
            max(most_transfer, link),
            min(least, seconds),
            min(greatest, -seconds),
        )

    def one(self, chain: list[int], begin: int, settled: Settled) -> np.ndarray:
        """(c, 3) float32, features after the cuts of a chain, the legal ones from ``begin`` on."""
        step, last = len(chain) - 1, chain[-1]
        if step == 0:
            return self.first.copy()
        if step == 1 and self.openings is not None:
            return self.openings[last - self.low[0]].copy()
        features = np.zeros((self.end, 3), dtype=np.float32)
        peaks, paces = self.row(step, chain[-2], last)
        reduce, transfer, least, greatest = settled
        skip = begin - self.low[step]
        view = features[begin : self.high[step]]
        np.maximum(peaks[0, skip:], reduce, out=view[:, 0])
        np.maximum(peaks[1, skip:], transfer, out=view[:, 1])
        ratio = np.minimum(paces[0, skip:], least)
        ratio /= np.minimum(paces[1, skip:], greatest)
        view[:, 2] = np.negative(ratio, out=ratio)
        return features

    def value(self, chain: list[int]) -> float:
        """Value of a whole plan as the judge has it."""
        if not self.tabulated:
            return float(self.values(np.array(chain)[:, None])[0])
        more, figure, before = self._more, self.figures.item, 0
        total = backward = core = tail = fullest = 0.0
        for stage, (columns, bias) in enumerate(self._scalars):
            last, cut = chain[stage], chain[stage + 1]
            if stage:
                link = self.transfers.item(int(cut < self.edge.item(before)), last)
                total += link + link
                core = max(core, total + more * (link + link))
                backward += link
            pair = last * columns + cut + bias
            seconds, back = figure(0, pair), figure(1, pair)
            total += seconds
            core = max(core, total + more * seconds)
            backward += back
            tail = max(tail, figure(2, pair) - (backward - back))
            fullest = max(fullest, figure(3, pair))
            before = last
        return self._bubble_free / (core + tail) if fullest <= self._limit else ILLEGAL

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
            compute, reduce = self.computed(last, cut)
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

    def values(self, chains: np.ndarray) -> np.ndarray:
        """(m,) float64, values of whole plans, chains (S+1, m), as the judge has them."""
        if not self.tabulated:
            cuts = chains[1:-1].T
            return plan_values(self.space.pipeline, self.pivot[cuts], self.device[cuts])
        most, last = np.maximum.reduce, chains[1:-1]
        pair = chains[:-1] * self.columns[:, None]
        pair += chains[1:]
        pair += self.bias[:, None]
        stages = self.figures.take(pair, axis=1)
        link = self.transfers[0].take(last)
        if any(self.inside):
            near = chains[2:] < self.edge.take(chains[:-2])
            link = np.where(near, self.transfers[1].take(last), link)
        # Both directions, and backward alone, of the stages and of the links between them.
        seconds = np.empty((2, len(pair) + len(link), pair.shape[1]))
        seconds[:, ::2] = stages[:2]
        np.add(link, link, out=seconds[0, 1::2])
        seconds[1, 1::2] = link
        total = seconds.cumsum(axis=1)
        both = seconds[0]
        both *= self._more
        core = most(np.add(total[0], both, out=both), axis=0)
        before = total[1, ::2] - stages[1]
        tail = most(np.subtract(stages[2], before, out=before), axis=0)
        length = core + np.maximum(tail, 0.0, out=tail)
        fits = most(stages[3], axis=0) <= self._limit
        return np.where(fits, self._bubble_free / length, ILLEGAL)

    def _first_features(self) -> np.ndarray:
        space, nothing = self.space, np.empty(0, dtype=np.int64)
        features = np.zeros((self.end, 3), dtype=np.float32)
        legal = slice(max(self.follower.item(self.start), self.low[0]), self.high[0])
        raw = space.pipeline.cut_features(
            nothing, nothing, space.pivots[legal], space.devices[legal]
        )
        features[legal] = np.minimum(raw / self.scale, 1.0)
        return features

    def _opening_features(self) -> np.ndarray | None:
        cut = np.arange(self.low[0], self.high[0])
        if self.cuts < 2 or 3 * self.end * len(cut) > MOST_OPENINGS:
            return None
        chains = np.stack([np.full(len(cut), self.start), cut])
        nothing = np.empty(0)
        peaks, paces = self.settle(0, chains, nothing, nothing)
        result = np.zeros((len(cut), self.end, 3), dtype=np.float32)
        self.features(1, chains, peaks, paces, result)
        return result


_kernels: WeakValueDictionary[bytes, CutKernel] = WeakValueDictionary()


def kernel_of(space: CutSpace, most_bytes: int = MOST_BYTES) -> CutKernel:
    """The kernel of a space; spaces of equal content share one while it is in use."""
    pipeline, profile = space.pipeline, space.pipeline.profile
    settings = (pipeline.cluster, pipeline.micro_batches, pipeline.copies, pipeline.recompute)
    key = hashlib.sha256(repr((*settings, pipeline.sync, space.stages, most_bytes)).encode())
    arrays = [profile.forward, profile.backward, profile.cut_bytes, profile.parameter_bytes]
    if profile.resident_bytes is not None:
        arrays.append(profile.resident_bytes)
    for array in (*arrays, space.pivots, space.devices, space.allowed):
        key.update(f"{array.shape}".encode())
        key.update(array.tobytes())
    found = _kernels.get(key.digest())
    if found is None:
        found = _kernels[key.digest()] = CutKernel(space, most_bytes)
    return found
